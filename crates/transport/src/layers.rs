//! The layers between a socket and MQTT, if the listener has them: a proxy's header, TLS, then the HTTP upgrade and
//! WebSocket frames. Boxed in the connection, so that plain TCP does not pay for it.
//!
//! Like the core it is fed and drained and touches no socket.

use std::net::SocketAddr;
use std::sync::Arc;

use tungstenite::handshake::server::Request;

use fulmar_broker::PeerIdentity;

use crate::config::{ListenerConfig, TlsSettings};
use crate::origin::Origins;
use crate::proxy_protocol::{Header, HeaderReader, Proxies};
use crate::secure::{MAX_RAW_BYTES, TlsSession};
use crate::tls;
use crate::ws::{
    CloseCode, Event, FrameDecoder, MAX_REQUEST_BYTES, Upgrade, answer, append_binary,
    append_close, append_pong,
};

/// Maximum number of bytes that [`Layers::put_kept`] puts before what is read next.
pub(crate) const MAX_KEPT_BYTES: usize = MAX_RAW_BYTES;

/// Bytes waiting to be written above which pings stay unanswered; a peer that sends pings without
/// reading must not make us hoard pongs.
const MAX_PENDING_FOR_PONG_BYTES: usize = 4096;

/// The layers of one connection.
#[derive(Debug)]
pub(crate) struct Layers {
    address: SocketAddr,
    /// Until the header of the proxy is complete.
    proxy: Option<Box<ProxyHeader>>,
    tls: Option<Box<TlsSession>>,
    web: Option<Web>,
    /// MQTT has begun.
    opened: bool,
}

#[derive(Debug)]
struct ProxyHeader {
    reader: HeaderReader,
    proxies: Arc<Proxies>,
}

#[derive(Debug)]
enum Web {
    /// Collects the request.
    Upgrading(Vec<u8>, Arc<Origins>),
    Frames(FrameDecoder),
    /// A close frame was sent or the upgrade refused.
    Closed,
}

/// Contents of the bytes received.
#[derive(Debug)]
pub(crate) enum Decoded<'a> {
    /// Handshakes are done and MQTT begins; with the client's address, and the name in its certificate.
    Opened(SocketAddr, Option<PeerIdentity>),
    /// Bytes of MQTT.
    Data(&'a [u8]),
}

type Sink<'s> = dyn FnMut(Decoded<'_>) + 's;

impl Layers {
    /// The layers that `listener` asks for, none for plain TCP without a proxy.
    pub(crate) fn new(
        listener: &ListenerConfig,
        origins: &Arc<Origins>,
        address: SocketAddr,
    ) -> Result<Option<Box<Layers>>, rustls::Error> {
        let ListenerConfig { carrier, proxies, .. } = listener;
        if carrier.tls.is_none() && !carrier.websocket && proxies.is_none() {
            return Ok(None);
        }
        let tls = match &carrier.tls {
            Some(settings) => Some(Box::new(TlsSession::new(settings.config.current())?)),
            None => None,
        };
        let web = carrier.websocket.then(|| Web::Upgrading(Vec::new(), Arc::clone(origins)));
        let proxy = proxies.as_ref().map(|proxies| {
            let proxies = Arc::clone(proxies);
            Box::new(ProxyHeader { reader: HeaderReader::default(), proxies })
        });
        Ok(Some(Box::new(Layers { address, proxy, tls, web, opened: false })))
    }

    /// Layers of a connection whose upgrade to WebSocket is already done.
    pub(crate) fn upgraded(address: SocketAddr) -> Box<Layers> {
        let web = Some(Web::Frames(FrameDecoder::default()));
        Box::new(Layers { address, proxy: None, tls: None, web, opened: true })
    }

    /// The client's address; the proxy's until its header is complete.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether they do nothing any more.
    pub(crate) fn are_done(&self) -> bool {
        self.opened && self.tls.is_none() && self.web.is_none()
    }

    /// The time for handshakes is over.
    pub(crate) fn time_out(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.proxies.refuse(self.address, &"no complete header within handshake_timeout_s");
        }
    }

    /// Memory held for incomplete input, in bytes.
    pub(crate) fn held(&self) -> usize {
        let request = match &self.web {
            Some(Web::Upgrading(request, _)) => request.capacity(),
            _ => 0,
        };
        request + self.tls.as_ref().map_or(0, |tls| tls.held())
    }

    /// Copies ciphertext kept from before to the start of `buffer`, for the next bytes to be read
    /// after it; says how many.
    pub(crate) fn put_kept(&self, buffer: &mut [u8]) -> usize {
        let raw = self.tls.as_ref().map_or(&[][..], |tls| tls.raw());
        buffer[..raw.len()].copy_from_slice(raw);
        raw.len()
    }

    /// Decodes the bytes read, kept bytes first, and passes the MQTT bytes to `sink`; answers of the layers themselves
    /// are appended to `out`. `plain` is room for decrypted bytes. The error says why the connection is to be closed
    /// once `out` is sent.
    pub(crate) fn receive(
        &mut self,
        settings: Option<&TlsSettings>,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<(), &'static str> {
        let Some(used) = self.receive_header(input)? else { return Ok(()) };
        let input = &mut input[used..];
        let Some(tls) = &mut self.tls else {
            return self.receive_plain(None, input, 0, out, sink);
        };
        let progress = tls.receive(input, plain, out).map_err(|error| {
            let why = tls::explained(&error);
            tracing::info!(peer = %self.address, "TLS handshake or record failed: {why}");
            "TLS failed"
        })?;
        let too_long = tls.raw().len() > MAX_RAW_BYTES;
        if progress.established {
            let mut answers = Vec::new();
            // What a peer has not read counts, encrypted or not.
            let decoded = self.receive_plain(settings, plain, out.len(), &mut answers, sink);
            self.send(&answers, out);
            decoded?;
        }
        match (progress.peer_closed, too_long) {
            (true, _) => Err("the peer ended TLS"),
            (_, true) => Err("a TLS handshake message is too long"),
            _ => Ok(()),
        }
    }

    /// Takes the proxy's header from the bytes read, if it is not complete yet; says how many bytes it was, or `None`
    /// if more are needed.
    fn receive_header(&mut self, input: &[u8]) -> Result<Option<usize>, &'static str> {
        let Some(proxy) = &mut self.proxy else { return Ok(Some(0)) };
        match proxy.reader.receive(input) {
            Ok((_, None)) => Ok(None),
            Ok((used, Some(header))) => {
                if let Header::Proxied(address) = header {
                    self.address = address;
                }
                self.proxy = None;
                Ok(Some(used))
            }
            Err(error) => {
                proxy.proxies.refuse(self.address, &error);
                self.proxy = None;
                Err("no header of a proxy")
            }
        }
    }

    fn receive_plain(
        &mut self,
        settings: Option<&TlsSettings>,
        input: &mut [u8],
        unread: usize,
        out: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<(), &'static str> {
        let mut rest = input;
        if let Some(Web::Upgrading(request, origins)) = &mut self.web {
            let before = request.len();
            let (plain, peer) = (self.tls.is_none(), self.address);
            let admits = |asked: &Request| match plain {
                true => origins.admits_plain(asked, peer),
                false => origins.admits(asked, peer),
            };
            match upgrade(request, rest, admits) {
                Upgrade::Incomplete => return Ok(()),
                Upgrade::Reject { response, reason } => {
                    out.extend_from_slice(&response);
                    self.web = Some(Web::Closed);
                    return Err(reason);
                }
                Upgrade::Accept { response, consumed } => {
                    out.extend_from_slice(&response);
                    rest = &mut rest[consumed - before..];
                    self.web = Some(Web::Frames(FrameDecoder::default()));
                }
            }
        }
        if !self.opened {
            self.opened = true;
            sink(Decoded::Opened(self.address, self.identity(settings)));
        }
        match &mut self.web {
            Some(Web::Frames(frames)) => match receive_frames(frames, rest, unread, out, sink) {
                Ok(()) => Ok(()),
                Err((code, reason)) => {
                    append_close(out, code);
                    self.web = Some(Web::Closed);
                    Err(reason)
                }
            },
            None if !rest.is_empty() => {
                sink(Decoded::Data(rest));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn identity(&self, settings: Option<&TlsSettings>) -> Option<PeerIdentity> {
        let identify = settings?.identify;
        identify(self.tls.as_ref()?.peer_certificates()?)
    }

    /// Appends `output`, framed and encrypted, to `out`. `spare` is room for what is in between.
    pub(crate) fn encode(
        &mut self,
        output: &[u8],
        out: &mut Vec<u8>,
        spare: &mut Vec<u8>,
    ) -> Result<(), rustls::Error> {
        match (&mut self.tls, &self.web) {
            (None, None) => out.extend_from_slice(output),
            (None, Some(_)) => append_binary(out, output),
            (Some(tls), None) => tls.encrypt(output, out)?,
            (Some(tls), Some(_)) => {
                spare.clear();
                append_binary(spare, output);
                tls.encrypt(spare, out)?;
                spare.clear();
            }
        }
        Ok(())
    }

    /// Appends the close frame and close_notify that have not been sent.
    pub(crate) fn say_goodbye(&mut self, out: &mut Vec<u8>) {
        if let Some(Web::Frames(_)) = self.web {
            let mut frame = Vec::new();
            append_close(&mut frame, CloseCode::Normal);
            self.web = Some(Web::Closed);
            self.send(&frame, out);
        }
        if let Some(tls) = &mut self.tls {
            tls.close(out);
        }
    }

    /// Appends bytes of the layer above TLS to `out`.
    fn send(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match &mut self.tls {
            None => out.extend_from_slice(bytes),
            // A session that cannot encrypt any more has failed and is being closed.
            Some(tls) => drop(tls.encrypt(bytes, out)),
        }
    }
}

/// Adds the bytes read to the request and parses it: with the first bytes, to refuse other protocols than HTTP at once,
/// and when a line has ended, so that a request that arrives byte by byte is not parsed for each byte.
fn upgrade(request: &mut Vec<u8>, read: &[u8], admits: impl FnOnce(&Request) -> bool) -> Upgrade {
    let first = request.is_empty();
    let room = MAX_REQUEST_BYTES.saturating_sub(request.len());
    let before = request.len();
    request.extend_from_slice(&read[..read.len().min(room)]);
    if !first && room > read.len() && !request[before..].contains(&b'\n') {
        return Upgrade::Incomplete;
    }
    answer(request, admits)
}

fn receive_frames(
    frames: &mut FrameDecoder,
    mut rest: &mut [u8],
    unread: usize,
    out: &mut Vec<u8>,
    sink: &mut Sink<'_>,
) -> Result<(), (CloseCode, &'static str)> {
    while !rest.is_empty() {
        let (used, event) =
            frames.next(rest).map_err(|code| (code, "the peer violates WebSocket framing"))?;
        match event {
            Some(Event::Data(bytes)) => sink(Decoded::Data(bytes)),
            Some(Event::Ping(bytes)) if unread + out.len() < MAX_PENDING_FOR_PONG_BYTES => {
                append_pong(out, bytes);
            }
            Some(Event::Close) => return Err((CloseCode::Normal, "the peer closed the WebSocket")),
            Some(Event::Ping(_)) | None => {}
        }
        rest = &mut rest[used..];
    }
    Ok(())
}

//! A socket, a clock and perhaps DTLS for `fulmar_coap::Client`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use anyhow::Context as _;
use fulmar_coap::dtls::DtlsSession;
use fulmar_coap::{Call, CallId, Client, ClientEvent, ClientLimits, Response};
use tokio::net::UdpSocket;

use super::{TrustArgs, Url, resolve};

/// Room for the largest datagram there is.
const MAX_DATAGRAM: usize = 65_535;

/// A client with its socket.
pub(super) struct Wire {
    client: Client,
    socket: UdpSocket,
    session: Option<DtlsSession>,
    room: Vec<u8>,
}

impl Wire {
    /// Prepares requests to the server of `url`. For CoAP, nothing is sent; for DTLS, the session is opened and the
    /// server verified.
    pub(super) async fn open(url: &Url, given: &TrustArgs) -> anyhow::Result<Wire> {
        let server = resolve(url).await?;
        let any = match server.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await.context("socket")?;
        socket.connect(server).await.with_context(|| server.to_string())?;
        // From the system: tokens are what keeps strangers from answering in the server's place.
        let client = Client::new(ClientLimits::default(), fulmar_certs::random_number()?);
        let mut wire = Wire { client, socket, session: None, room: vec![0; MAX_DATAGRAM] };
        if url.secure {
            wire.session = Some(DtlsSession::client(&given.credentials()?, Instant::now())?);
            while wire.session.as_ref().is_some_and(|session| !session.is_open()) {
                wire.flush().await?;
                wire.wait().await.context("no DTLS session")?;
            }
            if let Some(session) = &wire.session {
                given.check(session, &url.host, server)?;
            }
        }
        Ok(wire)
    }

    /// Makes a request.
    pub(super) fn call(&mut self, call: Call) -> CallId {
        self.client.call(Instant::now(), call)
    }

    /// Ends an observation.
    pub(super) async fn cancel(&mut self, id: CallId) {
        self.client.cancel(id);
        // Without it, the server learns of it at the next notification.
        let _ = self.flush().await;
    }

    /// Returns the next event. Cancelling it loses nothing.
    pub(super) async fn event(&mut self) -> anyhow::Result<ClientEvent> {
        loop {
            self.flush().await?;
            if let Some(event) = self.client.poll_event() {
                return Ok(event);
            }
            self.wait().await?;
        }
    }

    /// Waits for a datagram or a deadline, and handles it.
    async fn wait(&mut self) -> anyhow::Result<()> {
        let session = self.session.as_ref().and_then(DtlsSession::deadline);
        let deadline = session.into_iter().chain(self.client.deadline()).min();
        let due = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            received = self.socket.recv(&mut self.room) => match received {
                Ok(len) => self.receive_datagram(len)?,
                // Nobody listens there; the person at the keyboard wants to know at once.
                Err(error) => return Err(error).context("the server cannot be reached"),
            },
            () = due => {
                let now = Instant::now();
                self.client.on_deadline(now);
                if let Some(session) = &mut self.session {
                    session.on_deadline(now)?;
                }
            }
        }
        Ok(())
    }

    fn receive_datagram(&mut self, len: usize) -> anyhow::Result<()> {
        let (now, datagram) = (Instant::now(), &self.room[..len]);
        let Some(session) = &mut self.session else {
            self.client.receive(now, datagram);
            return Ok(());
        };
        session.receive(now, datagram)?;
        while let Some(message) = session.poll_received() {
            self.client.receive(now, &message);
        }
        anyhow::ensure!(!session.is_closed(), "the server ended the DTLS session");
        Ok(())
    }

    /// Makes a request and waits for its response.
    pub(super) async fn request(&mut self, call: Call) -> anyhow::Result<Response> {
        let asked = self.call(call);
        loop {
            match self.event().await? {
                ClientEvent::Response { id, response, .. } if id == asked => return Ok(response),
                ClientEvent::Failed { id, failure } if id == asked => return Err(failure.into()),
                _ => {}
            }
        }
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        while let Some(message) = self.client.poll_transmit() {
            match &mut self.session {
                Some(session) => session.send(&message)?,
                None => self.send_datagram(&message).await?,
            }
        }
        while let Some(datagram) = self.session.as_mut().and_then(DtlsSession::poll_transmit) {
            self.send_datagram(&datagram).await?;
        }
        Ok(())
    }

    async fn send_datagram(&self, datagram: &[u8]) -> anyhow::Result<()> {
        self.socket.send(datagram).await.map(drop).context("the server cannot be reached")
    }

    /// Ends the session, so that the server need not remember it.
    pub(super) async fn close(mut self) {
        if let Some(session) = &mut self.session {
            session.close();
        }
        // The server forgets it some day otherwise.
        let _ = self.flush().await;
    }
}

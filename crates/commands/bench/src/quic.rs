//! Drives the load over QUIC: all connections share one UDP socket and one epoll instance.
//!
//! It sits on quinn's protocol core without an async runtime, which would cost more than the load.
//! Each stream of a connection is a lane; the first, opened at once, is MQTT's control stream.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, IoSliceMut};
use std::mem;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use mio::unix::SourceFd;
use mio::{Events, Interest, Token};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    Event, ReadError, StreamEvent, StreamId, Transmit, TransportConfig, VarInt, WriteError,
};
use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSocketState};
use rustix::io::Errno;

use super::load::Load;
use super::run::Driver;
use super::wait::Waiter;

/// Room for the largest batch of datagrams the kernel joins (GRO).
const DATAGRAM_BYTES: usize = 65_535;

/// Asked of the kernel for the one socket all connections share; as root it is granted in full.
const SOCKET_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// Datagrams a system call sends at most: together below the 64 KiB of one UDP send.
const MAX_SEGMENTS: usize = 32;

/// Batches of datagrams read before answering.
const MAX_BATCHES: usize = 8;

/// A run's idle connections must outlive the broker's idle timeout, commonly 30 s.
const KEEP_ALIVE: Duration = Duration::from_secs(12);

/// Datagrams that could not be sent yet.
struct Unsent {
    transmit: Transmit,
    bytes: Vec<u8>,
}

struct ClientConnection {
    handle: ConnectionHandle,
    inner: Connection,
    /// By lane within the connection; opened when it first has something to say.
    streams: Vec<Option<StreamId>>,
    connected: bool,
    dirty: bool,
    /// The earliest entry of this connection in the timer heap.
    timer: Option<Instant>,
}

pub(super) struct Quic {
    broker: SocketAddr,
    server_name: String,
    config: ClientConfig,
    endpoint: Endpoint,
    socket: UdpSocket,
    udp: UdpSocketState,
    waiter: Waiter,
    events: Events,
    conns: Vec<ClientConnection>,
    /// Connection handle to connection.
    by_handle: Vec<usize>,
    dirty: Vec<usize>,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    unsent: Option<Unsent>,
    out: Vec<u8>,
    inbox: Box<[u8]>,
}

impl Quic {
    pub(super) fn new(
        broker: SocketAddr,
        server_name: String,
        tls: rustls::ClientConfig,
    ) -> anyhow::Result<Quic> {
        let mut transport = TransportConfig::default();
        transport.keep_alive_interval(Some(KEEP_ALIVE)).datagram_receive_buffer_size(None);
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        config.transport_config(Arc::new(transport));
        let any: SocketAddr =
            if broker.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0; 16], 0).into() };
        let socket = UdpSocket::bind(any)?;
        let udp = UdpSocketState::new((&socket).into())?;
        enlarge_buffers(&socket, &udp)?;
        let waiter = Waiter::new()?;
        let fd = socket.as_raw_fd();
        let interest = Interest::READABLE | Interest::WRITABLE;
        waiter.registry().register(&mut SourceFd(&fd), Token(0), interest)?;
        let endpoint =
            Endpoint::new(Arc::new(EndpointConfig::default()), None, !udp.may_fragment(), None);
        Ok(Quic {
            broker,
            server_name,
            config,
            endpoint,
            socket,
            udp,
            waiter,
            events: Events::with_capacity(16),
            conns: Vec::new(),
            by_handle: Vec::new(),
            dirty: Vec::new(),
            timers: BinaryHeap::new(),
            unsent: None,
            out: Vec::new(),
            inbox: vec![0; DATAGRAM_BYTES * BATCH_SIZE].into_boxed_slice(),
        })
    }

    fn mark(&mut self, conn: usize) {
        if !mem::replace(&mut self.conns[conn].dirty, true) {
            self.dirty.push(conn);
        }
    }

    /// Reads received datagrams, up to a number of batches.
    fn receive(&mut self, now: Instant) -> anyhow::Result<()> {
        let mut inbox = mem::take(&mut self.inbox);
        for _ in 0..MAX_BATCHES {
            let mut metas = [RecvMeta::default(); BATCH_SIZE];
            let received = {
                let mut parts = inbox.chunks_mut(DATAGRAM_BYTES).map(IoSliceMut::new);
                let mut slices: [IoSliceMut<'_>; BATCH_SIZE] = std::array::from_fn(|_| {
                    parts.next().unwrap_or_else(|| IoSliceMut::new(&mut []))
                });
                self.udp.recv((&self.socket).into(), &mut slices, &mut metas)
            };
            let count = match received {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("cannot read the UDP socket"),
            };
            for (meta, bytes) in metas[..count].iter().zip(inbox.chunks(DATAGRAM_BYTES)) {
                for datagram in bytes[..meta.len].chunks(meta.stride.max(1)) {
                    self.datagram(now, meta, datagram)?;
                }
            }
        }
        self.inbox = inbox;
        Ok(())
    }

    fn datagram(&mut self, now: Instant, meta: &RecvMeta, bytes: &[u8]) -> anyhow::Result<()> {
        let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
        let data = BytesMut::from(bytes);
        self.out.clear();
        match self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, data, &mut self.out) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let conn = self.by_handle[handle.0];
                self.conns[conn].inner.handle_event(event);
                self.mark(conn);
            }
            Some(DatagramEvent::Response(transmit)) => {
                let bytes = mem::take(&mut self.out);
                self.send(Unsent { transmit, bytes })?;
            }
            // A client accepts nothing.
            Some(DatagramEvent::NewConnection(_)) | None => {}
        }
        Ok(())
    }

    /// Sends, or keeps what the socket does not take now.
    fn send(&mut self, mut unsent: Unsent) -> anyhow::Result<()> {
        let transmit = &unsent.transmit;
        let datagrams = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &unsent.bytes[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        match self.udp.try_send((&self.socket).into(), &datagrams) {
            Ok(()) => {
                unsent.bytes.clear();
                self.out = unsent.bytes;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.unsent = Some(unsent),
            // A probe for a larger path MTU than there is; lost, as if on the way.
            Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {}
            Err(error) => {
                let broker = self.broker;
                return Err(error).with_context(|| format!("cannot send to {broker}"));
            }
        }
        Ok(())
    }

    /// Answers, events and timers of every connection that was touched.
    fn service(&mut self, load: &mut Load, now: Instant) -> anyhow::Result<()> {
        while let Some(conn) = self.dirty.pop() {
            self.conns[conn].dirty = false;
            self.endpoint_events(conn);
            self.application_events(load, conn)?;
            self.transmit(conn, now)?;
            self.set_timer(conn);
            if self.unsent.is_some() {
                // The socket is full: this one and the rest wait until it is writable.
                self.mark(conn);
                break;
            }
        }
        Ok(())
    }

    fn endpoint_events(&mut self, conn: usize) {
        let ClientConnection { handle, inner, .. } = &mut self.conns[conn];
        while let Some(event) = inner.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                inner.handle_event(answer);
            }
        }
    }

    fn application_events(&mut self, load: &mut Load, index: usize) -> anyhow::Result<()> {
        let first_lane = index * load.plan().streams;
        while let Some(event) = self.conns[index].inner.poll() {
            let conn = &mut self.conns[index];
            match event {
                Event::Connected => {
                    conn.connected = true;
                    load.mark(first_lane);
                }
                Event::ConnectionLost { reason } => {
                    return Err(reason).with_context(|| format!("connection {}", index + 1));
                }
                Event::Stream(StreamEvent::Readable { id }) => {
                    if let Some(lane) = conn.lane(id) {
                        conn.read(load, first_lane + lane, id)?;
                    }
                }
                Event::Stream(StreamEvent::Writable { id }) => {
                    if let Some(lane) = conn.lane(id) {
                        load.mark(first_lane + lane);
                    }
                }
                Event::Stream(StreamEvent::Available { dir: Dir::Bi }) => {
                    (0..conn.streams.len()).for_each(|lane| load.mark(first_lane + lane));
                }
                Event::Stream(StreamEvent::Stopped { error_code, .. }) => {
                    bail!("the broker stopped a stream of connection {}: {error_code}", index + 1);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn transmit(&mut self, conn: usize, now: Instant) -> anyhow::Result<()> {
        while self.unsent.is_none() {
            let mut bytes = mem::take(&mut self.out);
            bytes.clear();
            let segments = self.udp.max_gso_segments().min(MAX_SEGMENTS);
            match self.conns[conn].inner.poll_transmit(now, segments, &mut bytes) {
                Some(transmit) => self.send(Unsent { transmit, bytes })?,
                None => {
                    self.out = bytes;
                    break;
                }
            }
        }
        Ok(())
    }

    /// A later deadline is found when the earlier entry expires: most deadlines move with every
    /// packet, and the heap would fill with stale ones.
    fn set_timer(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        let Some(deadline) = conn.inner.poll_timeout() else { return };
        if conn.timer.is_none_or(|timer| deadline < timer) {
            conn.timer = Some(deadline);
            self.timers.push(Reverse((deadline, index)));
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some(Reverse((at, index))) = self.timers.peek().copied().filter(|t| t.0.0 <= now)
        {
            self.timers.pop();
            let conn = &mut self.conns[index];
            // Otherwise an earlier entry has replaced this one.
            if conn.timer == Some(at) {
                conn.timer = None;
                conn.inner.handle_timeout(now);
                self.mark(index);
            }
        }
    }
}

fn enlarge_buffers(socket: &UdpSocket, udp: &UdpSocketState) -> anyhow::Result<()> {
    use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size};
    if set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
        udp.set_recv_buffer_size(socket.into(), SOCKET_BUFFER_BYTES)?;
    }
    set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES)?;
    Ok(())
}

impl ClientConnection {
    fn lane(&self, id: StreamId) -> Option<usize> {
        self.streams.iter().position(|stream| *stream == Some(id))
    }

    fn read(&mut self, load: &mut Load, lane: usize, id: StreamId) -> anyhow::Result<()> {
        let mut stream = self.inner.recv_stream(id);
        let mut chunks = stream.read(true)?;
        let result = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => load.receive(lane, &chunk.bytes)?,
                Ok(None) => break Err(anyhow::anyhow!("the broker finished a stream")),
                Err(ReadError::Blocked) => break Ok(()),
                Err(error) => break Err(error.into()),
            }
        };
        // The caller transmits in any case.
        let _ = chunks.finalize();
        result
    }

    /// The lane's stream, opened if the broker allows one more.
    fn stream(&mut self, lane: usize) -> Option<StreamId> {
        if self.streams[lane].is_none() {
            self.streams[lane] = self.inner.streams().open(Dir::Bi);
        }
        self.streams[lane]
    }
}

impl Driver for Quic {
    fn open(&mut self, load: &mut Load) -> anyhow::Result<()> {
        let now = Instant::now();
        let connected =
            self.endpoint.connect(now, self.config.clone(), self.broker, &self.server_name);
        let (handle, inner) = connected.context("cannot connect")?;
        let index = self.conns.len();
        if self.by_handle.len() <= handle.0 {
            self.by_handle.resize(handle.0 + 1, usize::MAX);
        }
        self.by_handle[handle.0] = index;
        let streams = vec![None; load.plan().streams];
        let (connected, dirty, timer) = (false, false, None);
        self.conns.push(ClientConnection { handle, inner, streams, connected, dirty, timer });
        self.mark(index);
        load.begin(index);
        Ok(())
    }

    fn flush(&mut self, load: &mut Load, lane: usize) -> anyhow::Result<()> {
        let streams = load.plan().streams;
        let index = lane / streams;
        let conn = &mut self.conns[index];
        // When the handshake is done the lane is marked again.
        if !conn.connected {
            return Ok(());
        }
        loop {
            let out = load.outgoing(lane);
            if out.is_empty() {
                break;
            }
            let Some(id) = conn.stream(lane % streams) else { return Ok(()) };
            match conn.inner.send_stream(id).write(out) {
                Ok(written) => drop(out.drain(..written)),
                Err(WriteError::Blocked) => break,
                Err(error) => {
                    return Err(error).with_context(|| format!("connection {}", index + 1));
                }
            }
        }
        self.mark(index);
        Ok(())
    }

    fn turn(&mut self, load: &mut Load, until: Instant) -> anyhow::Result<()> {
        self.service(load, Instant::now())?;
        let timer = self.timers.peek().map_or(until, |entry| entry.0.0.min(until));
        let mut events = mem::replace(&mut self.events, Events::with_capacity(0));
        self.waiter.wait(&mut events, timer)?;
        self.events = events;
        let now = Instant::now();
        if let Some(unsent) = self.unsent.take() {
            self.send(unsent)?;
        }
        self.receive(now)?;
        self.expire(now);
        self.service(load, now)
    }

    /// Few enough that the handshakes of one round fit the broker's socket buffer.
    fn parallel(&self) -> usize {
        32
    }

    /// Without it the broker would keep every connection until its idle timeout.
    fn close(&mut self, load: &mut Load) -> anyhow::Result<()> {
        let now = Instant::now();
        self.service(load, now)?;
        for conn in 0..self.conns.len() {
            self.conns[conn].inner.close(now, VarInt::from_u32(0), Bytes::new());
            self.transmit(conn, now)?;
        }
        Ok(())
    }
}

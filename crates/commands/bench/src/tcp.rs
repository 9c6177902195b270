//! Drives the load over plain TCP: nonblocking sockets, one epoll instance, one buffer for reading.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use anyhow::{Context, bail};
use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Interest, Token};
use socket2::{Domain, Protocol, Socket, Type};

use super::load::Load;
use super::run::Driver;
use super::wait::Waiter;

const READ_BUFFER_BYTES: usize = 256 * 1024;

/// Linux offers 28,232 ephemeral ports per source address; past this many connections to a loopback
/// broker the next address of 127.0.0.0/8 is used.
const CONNECTIONS_PER_ADDRESS: usize = 25_000;

pub(super) struct Tcp {
    broker: SocketAddr,
    waiter: Waiter,
    events: Events,
    streams: Vec<TcpStream>,
    buffer: Box<[u8]>,
}

impl Tcp {
    pub(super) fn new(broker: SocketAddr) -> anyhow::Result<Tcp> {
        Ok(Tcp {
            broker,
            waiter: Waiter::new()?,
            events: Events::with_capacity(1_024),
            streams: Vec::new(),
            buffer: vec![0; READ_BUFFER_BYTES].into_boxed_slice(),
        })
    }

    fn connect(&self, connection: usize) -> io::Result<TcpStream> {
        let socket =
            Socket::new(Domain::for_address(self.broker), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        let offset = connection / CONNECTIONS_PER_ADDRESS;
        if offset > 0 && self.broker.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST) {
            let address = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + offset as u32);
            socket.bind(&SocketAddr::from((address, 0)).into())?;
        }
        match socket.connect(&self.broker.into()) {
            Err(error) if !in_progress(&error) => Err(error),
            _ => Ok(TcpStream::from_std(socket.into())),
        }
    }

    fn read(&mut self, load: &mut Load, connection: usize) -> anyhow::Result<()> {
        loop {
            match self.streams[connection].read(&mut self.buffer) {
                Ok(0) => bail!("the broker closed connection {}", connection + 1),
                Ok(n) => {
                    load.receive(connection, &self.buffer[..n])?;
                    // A short read has emptied the socket; the next arrival is a new edge.
                    if n < self.buffer.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(connection, error)),
            }
        }
    }

    fn failed(&self, connection: usize, error: io::Error) -> anyhow::Error {
        let context = format!("connection {} to {}", connection + 1, self.broker);
        anyhow::Error::new(error).context(context)
    }

    fn handle(&mut self, load: &mut Load, event: &Event) -> anyhow::Result<()> {
        let connection = event.token().0;
        if connection >= self.streams.len() {
            return Ok(());
        }
        if event.is_writable() {
            load.mark(connection);
        }
        if event.is_readable() || event.is_error() {
            self.read(load, connection)?;
        }
        Ok(())
    }
}

fn in_progress(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
        || error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error())
}

impl Driver for Tcp {
    fn open(&mut self, load: &mut Load) -> anyhow::Result<()> {
        let connection = self.streams.len();
        let mut stream = self
            .connect(connection)
            .with_context(|| format!("cannot connect to {}", self.broker))?;
        self.waiter.registry().register(
            &mut stream,
            Token(connection),
            Interest::READABLE | Interest::WRITABLE,
        )?;
        self.streams.push(stream);
        load.begin(connection);
        Ok(())
    }

    fn flush(&mut self, load: &mut Load, lane: usize) -> anyhow::Result<()> {
        loop {
            let out = load.outgoing(lane);
            if out.is_empty() {
                return Ok(());
            }
            match self.streams[lane].write(out) {
                Ok(n) if n == out.len() => out.clear(),
                Ok(n) => drop(out.drain(..n)),
                // Not connected yet: a writable event follows.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) =>
                {
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(lane, error)),
            }
        }
    }

    fn turn(&mut self, load: &mut Load, until: Instant) -> anyhow::Result<()> {
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        self.waiter.wait(&mut events, until)?;
        for event in &events {
            self.handle(load, event)?;
        }
        self.events = events;
        Ok(())
    }

    /// Below common listen backlogs (100 and up), or a SYN is dropped and costs a second.
    fn parallel(&self) -> usize {
        64
    }

    fn close(&mut self, _load: &mut Load) -> anyhow::Result<()> {
        self.streams.clear();
        Ok(())
    }
}

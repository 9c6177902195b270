//! The socket of a byte-stream connection: TCP's, or one end of a local pair whose other end a part of
//! this program holds that speaks HTTP (see `handoff`).
//!
//! Only what a worker needs of either; what flows through them it does not know.

use std::io::{self, Read, Write};
use std::net::Shutdown;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

/// See the module's words.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Local(UnixStream),
}

impl Socket {
    /// Ends the sending side.
    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Socket::Local(socket) => socket.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(buffer),
            Socket::Local(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Local(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        // Neither has a buffer of its own.
        Ok(())
    }
}

impl Source for Socket {
    fn register(&mut self, to: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.register(to, token, interests),
            Socket::Local(socket) => socket.register(to, token, interests),
        }
    }

    fn reregister(&mut self, to: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.reregister(to, token, interests),
            Socket::Local(socket) => socket.reregister(to, token, interests),
        }
    }

    fn deregister(&mut self, from: &Registry) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.deregister(from),
            Socket::Local(socket) => socket.deregister(from),
        }
    }
}

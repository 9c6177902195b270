//! The application's side of a connection's streams: what is written, read and taken, and the flow control
//! that follows from it (RFC 9000, section 4). What streams do on the wire is in `stream`, `transmit` and
//! `receive`.

use super::stream::{Inbound, Outbound};
use super::{Connection, control};
use crate::limits::{STREAM_RECEIVE_BYTES, STREAM_SEND_BYTES};

/// A stream that we opened.
// In this order for the sake of flash: what is near the beginning is reached by shorter instructions.
#[repr(C)]
pub(super) struct Stream {
    /// Up to which offset the server lets us send.
    pub(super) send_limit: u32,
    /// Up to which offset it may send.
    pub(super) receive_limit: u32,
    /// The server reads no more, or has reset its side.
    pub(super) stopped: bool,
    pub(super) used: bool,
    pub(super) inbound: Inbound,
    pub(super) out: Outbound,
    pub(super) written: [u8; STREAM_SEND_BYTES],
}

impl Stream {
    pub(super) const fn new() -> Self {
        Self {
            out: Outbound::new(),
            written: [0; STREAM_SEND_BYTES],
            inbound: Inbound::new(),
            send_limit: 0,
            receive_limit: 0,
            stopped: false,
            used: false,
        }
    }

    pub(super) fn start(&mut self) {
        self.out = Outbound::new();
        self.inbound = Inbound::new();
        self.send_limit = 0;
        self.receive_limit = STREAM_RECEIVE_BYTES as u32;
        self.stopped = false;
        self.used = false;
    }
}

impl Connection {
    /// Number of bytes that can be written on a stream now; 0 if it cannot be used.
    fn writable(&self, stream: usize) -> usize {
        match self.streams.get(stream) {
            Some(stream) if self.is_open() && !stream.stopped => {
                STREAM_SEND_BYTES - (stream.out.end() - stream.out.base()) as usize
            }
            _ => 0,
        }
    }

    /// Whether a stream can be used at all.
    pub(crate) fn is_usable(&self, stream: usize) -> bool {
        self.is_open()
            && self.streams.get(stream).is_some_and(|stream| !stream.stopped)
            && (stream == 0 || stream < self.stream_limit as usize)
    }

    /// The memory that what is written next on a stream goes to; [`written`](Self::written) tells how much.
    pub(crate) fn free(&mut self, stream: usize) -> &mut [u8] {
        let room = self.writable(stream);
        self.streams.get_mut(stream).map_or(&mut [], |stream| {
            stream.written.get_mut(STREAM_SEND_BYTES - room..).unwrap_or_default()
        })
    }

    /// The first `count` bytes of [`free`](Self::free) are to be sent.
    pub(crate) fn written(&mut self, stream: usize, count: usize) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.out.extend(count);
            stream.used = true;
        }
    }

    /// Returns the bytes that can be read on a stream.
    pub(crate) fn readable(&self, stream: usize) -> &[u8] {
        let inbound = self.streams.get(stream).filter(|_| self.one_rtt);
        let ready = inbound.map_or(0, |stream| stream.inbound.ready());
        let start = stream * STREAM_RECEIVE_BYTES;
        self.memory.get(start..start + ready).unwrap_or_default()
    }

    /// Takes `count` bytes away from what [`readable`](Self::readable) gave, and lets the server send more.
    pub(crate) fn consume(&mut self, stream: usize, count: usize) {
        let start = stream * STREAM_RECEIVE_BYTES;
        let memory = self.memory.get_mut(start..start + STREAM_RECEIVE_BYTES);
        let (Some(memory), Some(state)) = (memory, self.streams.get_mut(stream)) else { return };
        state.inbound.consume(memory, count);
        let limit = state.inbound.base() + STREAM_RECEIVE_BYTES as u32;
        // Not for every byte: a frame costs a packet, and that costs energy.
        if limit - state.receive_limit >= STREAM_RECEIVE_BYTES as u32 / 2 {
            self.receive_limit += limit - state.receive_limit;
            state.receive_limit = limit;
            self.control |= control::MAX_DATA | control::MAX_STREAM_DATA << stream;
        }
    }

    /// Whether the server has ended its side of a stream, and all before has been consumed.
    pub(crate) fn is_finished(&self, stream: usize) -> bool {
        self.streams
            .get(stream)
            .is_some_and(|stream| stream.stopped || stream.inbound.is_finished())
    }

    /// Whether all that was written is acknowledged.
    pub(crate) fn is_flushed(&self) -> bool {
        self.streams.iter().all(|stream| stream.stopped || stream.out.is_acked())
    }
}

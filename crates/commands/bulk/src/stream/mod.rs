//! `fulmar send -` and `fulmar receive --stdout`: a NORM stream from standard input to standard output elsewhere.
//!
//! Standard input and output block, so each has a thread, and a short queue between the thread and the socket's loop:
//! when the queue is full, the writer waits.

mod receive;
mod send;

pub(super) use receive::{Receiving, receive};
pub(super) use send::{Sending, send};

/// Bytes read from standard input at once: the capacity of a pipe.
const PIECE: usize = 1 << 16;
/// The most pieces queued between a thread and the loop.
const QUEUED: usize = 2;
/// More for output, because its pieces are shorter.
const QUEUED_OUT: usize = 64;

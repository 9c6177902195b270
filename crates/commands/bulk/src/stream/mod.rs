//! `fulmar send -` and `fulmar receive --stdout`: what comes on standard input goes out on standard output elsewhere, as
//! it comes, by a stream of NORM.
//!
//! Standard input and output block, so each has a thread, and a short queue between the thread and the socket's loop:
//! when the queue is full, the writer waits.

mod receive;
mod send;

pub(super) use receive::{Receiving, receive};
pub(super) use send::{Sending, send};

/// Bytes read from standard input at once: the capacity of a pipe.
const PIECE: usize = 1 << 16;
/// Pieces that wait between a thread and the loop.
const QUEUED: usize = 2;
/// Shorter pieces go out, so there may be more.
const QUEUED_OUT: usize = 64;

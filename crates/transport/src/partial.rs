//! What a worker's connections hold for packets that have not come whole, in bytes.
//!
//! One account for all of them, TCP's and QUIC's: a packet that never ends costs the same whatever
//! carries it. It only counts; who is over a bound is closed by the connection itself.

/// A worker's account.
#[derive(Debug)]
pub(crate) struct PartialBytes {
    held: usize,
    max: usize,
}

impl PartialBytes {
    /// An account of which `max` may be held.
    pub(crate) fn new(max: usize) -> PartialBytes {
        PartialBytes { held: 0, max }
    }

    /// A connection that held `before` holds `after` now.
    pub(crate) fn change(&mut self, before: usize, after: usize) {
        self.held = (self.held + after).saturating_sub(before);
    }

    /// Held by all connections together.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Whether it is more than may be.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.held > self.max
    }
}

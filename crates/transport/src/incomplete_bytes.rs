//! How many bytes of incomplete packets all connections of a worker hold.
//!
//! TCP and QUIC share one account, because a packet that never ends costs the same on either. It only
//! counts; a connection that exceeds a bound closes itself.

/// A worker's account.
#[derive(Debug)]
pub(crate) struct IncompleteBytes {
    held: usize,
    max: usize,
}

impl IncompleteBytes {
    /// An account that is exceeded above `max` bytes.
    pub(crate) fn new(max: usize) -> IncompleteBytes {
        IncompleteBytes { held: 0, max }
    }

    /// A connection that held `before` bytes now holds `after`.
    pub(crate) fn change(&mut self, before: usize, after: usize) {
        self.held = (self.held + after).saturating_sub(before);
    }

    /// Bytes that all connections together hold.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Whether all connections together hold more than the bound.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.held > self.max
    }
}

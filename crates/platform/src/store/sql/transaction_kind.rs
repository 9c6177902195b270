//! What a transaction is begun for.

/// A transaction's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Begin {
    /// Looks at one state of the database, whatever is committed meanwhile.
    Read,
    /// Nobody else writes until it ends.
    Write,
}

//! Mistakes that the simulation must find.

/// A known mistake of the design, made by every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Two appends in flight. Behind a claim, the second one finds the end of the log that it expects.
    TwoInFlight,
    /// A node acknowledges although its lease has ended.
    NoLease,
    /// A reader does not check numbers and checksums.
    NoChain,
    /// The lease is measured by the wall clock.
    WallLease,
    /// Whatever does not continue the log ends a node, also what strangers have published.
    EndsAtStrangers,
    /// Whatever does not continue the log is passed over, also a node's record that was damaged.
    PassesDamage,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Mistake; 6] = [
        Mistake::TwoInFlight,
        Mistake::NoLease,
        Mistake::NoChain,
        Mistake::WallLease,
        Mistake::EndsAtStrangers,
        Mistake::PassesDamage,
    ];
}

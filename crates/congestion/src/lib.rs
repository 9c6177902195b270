//! Congestion control for QUIC on bad links.
//!
//! CUBIC takes each loss for a full queue, and so has next to nothing left where one packet in twenty is lost by
//! chance. What tells a full link is delay. So the window follows the queue that it makes ([`Roadwise`]), and losses
//! count only as far as they exceed what is usual on the path; where that is unclear, a trial with half the window shows
//! it. Where somebody else keeps a queue, the window is CUBIC's. `fulmar-bulk` has the same rules for NORM's rate.
//!
//! No I/O and no clock: events and times in, a window out. [`Congestion`] is what a user chooses from; it and the
//! modules `quic` and `patient` are what knows quinn.

mod choice;
mod cubic;
mod loss;
mod path;
mod patient;
mod quic;
mod roadwise;

pub use choice::Congestion;
pub use roadwise::Roadwise;

//! For tests only: three nodes of a cluster with their log, control record, clocks, network and clients in one simulated
//! world. The schedule and every fault are drawn from a seed.
//!
//! Real are the broker, the records and their chain (`fulmar_store::journal`), the rules of the lease
//! (`fulmar_cluster`) and the clients (the client library's session machine). `engine` stands for NATS JetStream: it
//! appends by compare-and-swap, and answers late, never, or after an election. `node` repeats step by step what a node
//! does on threads: it follows the log, takes the lease, claims, serves, appends, renews and gives way; `reader` is its
//! database behind the log, as tables. `client` and `ledger` have the clients and what they were promised. `schedule`
//! draws the steps, `play` takes them: a node dies, stops and continues, is cut off, its clock runs fast or slow, its
//! disk is behind; the engine loses requests and answers, elects a leader, mixes up records; strangers publish to the log.
//!
//! Afterwards all faults end, and all comes to rest. Every message that a publisher saw acknowledged has then arrived at
//! every subscriber that saw its subscription acknowledged before, those at QoS 2 once, those of a publisher in order;
//! what any node saw appended is in the one chain of the log. A node that finds the chain broken serves no more.
//!
//! [`Mistake`] puts known mistakes into the nodes; each makes schedules fail.
#![forbid(unsafe_code)]

mod client;
mod engine;
mod ledger;
mod mistake;
mod node;
mod play;
mod reader;
mod schedule;
mod storage;
mod writer;

pub use mistake::Mistake;
pub use play::play;
pub use schedule::{Schedule, Step};

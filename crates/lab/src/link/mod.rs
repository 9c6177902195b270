//! The link model: what happens to a packet between two hosts, and when. [`Link`] (`duplex_link`) has two directions
//! (`simplex_link`); a [`Topology`] joins hosts by links.
//!
//! Sans-IO: packets and virtual time (nanoseconds since the start) go in, packets with the exact
//! time at which they are due come out. There is no socket, clock or thread inside, so that every
//! impairment is tested in simulated time; a thin router around it moves the bytes.
//!
//! A packet offered to one direction of a [`Link`] passes
//!
//! 1. the NAT, if the link has one (`nat`): addresses rewritten, or no mapping: dropped (upward,
//!    after step 4);
//! 2. the MTU: too big is answered by ICMP and dropped;
//! 3. outages (`schedule`): down is dropped;
//! 4. `flow`: which flow it belongs to and its number in that flow, which alone determine its
//!    random impairments (`impairment_sampler`; logged in [`DecisionLog`]);
//! 5. the bottleneck: a bounded queue (`queue`: drop-tail, CoDel, FQ-CoDel) before a transmitter
//!    of constant or recorded rate (`transmitter`);
//! 6. loss (`simplex_link`), after the bottleneck, because a packet lost on the air has used its air time;
//! 7. delay, jitter, reordering, corruption, duplication (`simplex_link`).
//!
//! # Determinism
//! A decision is a hash of (seed, flow, direction, index of the packet in its flow, purpose). A
//! flow is named by its protocol, the port its first packet was sent to and an ordinal, never by
//! an ephemeral port or a time. So two runs with the same seed decide alike for every packet of
//! every flow, however their timing differs. What the *queue* drops depends on timing and is
//! therefore not a decision of the log.

mod config;
mod config_error;
mod decision_log;
mod direction;
mod drop_reason;
mod duplex_link;
mod flow;
mod impairment_sampler;
mod nat;
mod queue;
mod schedule;
mod settings;
mod simplex_link;
mod splitmix;
mod topology;
mod trace;
mod transmitter;

pub use config::{Bursts, Impairments, JitterShape, LinkConfig, QueueKind, QueueLimit, Rate};
pub use config_error::ConfigError;
pub use decision_log::{DecisionLog, Difference, LogEntry};
pub use direction::Direction;
pub use drop_reason::DropReason;
pub use duplex_link::{Link, Output};
pub use flow::FlowKey;
pub use impairment_sampler::Decision;
pub use nat::{NatChange, NatConfig};
pub use schedule::{Outage, Schedule};
pub use settings::SETTINGS;
pub use simplex_link::DirectionStats;
pub use topology::{Ends, Event, HostId, MAX_HOSTS, Topology};
pub use trace::{Trace, TraceError};

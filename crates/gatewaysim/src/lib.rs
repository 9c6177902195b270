//! For tests only: a reading's path from a device to the platform in one simulated world. The schedule and every fault
//! are drawn from a seed.
//!
//! There are two processes. `gateway` is a broker (the simulator's world), the real outbox with SQLite on a disk in
//! memory, the session between the two, and the connection upstream with the client library's own session machine.
//! `server` is a broker and the real platform with its SQLite on another such disk. Devices are the client library's
//! session machine as well (`fulmar_simulator::Session`). `schedule` draws the steps, `play` takes them, `ledger` has the readings and
//! checks them: each that a device saw acknowledged is in the platform exactly once (at least once if the gateway speaks
//! MQTT 3.1.1 upstream), those of a topic arrive in the order in which they were sent, and nothing else is there.
//!
//! What `fulmar serve` does between these parts on threads and sockets (`crates/forwarder`,
//! `platform_client.rs`) is repeated here step by step, in the order in which it is done there; each step may be the
//! last before a crash. Not simulated: the QUIC streams of the connection upstream, messages from upstream, refusals
//! other than those of stalled storage, dead letters and back pressure.
#![forbid(unsafe_code)]

mod folder;
mod gateway;
mod ledger;
mod play;
mod schedule;
mod server;
mod stored;
mod subscriber;
mod uplink;

pub use play::{Scenery, play};
pub use schedule::Schedule;

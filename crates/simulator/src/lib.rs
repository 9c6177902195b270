//! For tests only: worlds whose schedule and faults are drawn from a seed, and a seed always gives the same run (like
//! TigerBeetle's `vopr`).
//!
//! Shared by all worlds: `script` draws and plays schedules, `campaign` plays one seed after another, and `shrink`
//! removes steps of a failing schedule until only those remain without which nothing fails. `world` has a broker whose
//! workers run one step at a time (`work`), `network` what is under way to it, `clock` the machine's clocks, `overdue`
//! when the broker may refuse, `volume` storage that commits at given steps, `tables` what a storage operation means,
//! `packets` the packets of clients; `session` has clients with the client library's session machine.
//!
//! - [`broker`]: a broker with its storage, and honest clients or liars.
//! - [`bad_disk`]: the real store on a disk in memory that fails, fills up, stalls and loses power; the same schedules
//!   are played over it.
//! - [`gateway`]: devices, a gateway, the server upstream and its platform, with their databases on such disks.
//! - [`cluster`]: three nodes of a cluster with their log and clocks.
//!
//! One call of the core is one step here, although other workers may run during it; only within a publication,
//! between finding its receivers and delivering to each, do they (`work::Amid`).

#[cfg(feature = "disk")]
pub mod bad_disk;
pub mod broker;
mod campaign;
mod clock;
#[cfg(feature = "worlds")]
pub mod cluster;
#[cfg(feature = "worlds")]
pub mod gateway;
mod network;
mod overdue;
mod packets;
mod script;
#[cfg(feature = "worlds")]
mod session;
mod settings;
mod shrink;
mod tables;
mod volume;
mod work;
mod world;

pub use campaign::campaign;
pub use script::{Failure, Played, Script, Setting};
pub use tables::Tables;
pub use volume::Volume;

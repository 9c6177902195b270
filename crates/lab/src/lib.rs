//! The lab: bad links on one machine, experiments over them, and reports of what was measured.
//!
//! [`link`] decides what happens to each packet: a pure model in virtual time, without sockets,
//! clock or threads. [`profile`] names common links. [`wire`] reads IP packets and [`units`] reads
//! quantities as people write them.
//!
//! [`exec`] runs programs over one emulated link. [`emulator`] makes a topology real: network namespaces
//! ([`net`]) joined by a thread that moves packets through the model ([`router`]), and
//! [observers](observe) of the packets that pass.
//!
//! An experiment is one TOML file ([`experiment`]): hosts, links, roles (programs), conditions and
//! measures. [`run`] carries it out cell by cell and keeps every raw sample; [`report`] makes pages
//! and tables from the samples. A [`network::NetworkFactory`] makes the network between hosts: the runner works the
//! same with emulated links ([`emulated_network`]) and with this machine's loopback interface.
//!
//! [`arrival`] shows programs that measure a link when the kernel received a datagram. [`words`] describes mistakes
//! in a TOML file, the program's configuration included.
//!
//! Not here: MQTT. Roles are programs, ours or anybody's.

pub mod arrival;
pub mod clock;
pub mod emulated_network;
pub mod emulator;
mod error;
pub mod exec;
pub mod experiment;
pub mod link;
pub mod net;
pub mod network;
pub mod observe;
pub mod profile;
mod relay;
pub mod report;
pub mod router;
pub mod run;
pub mod stats;
pub mod summary;
#[cfg(test)]
#[path = "tests/testing.rs"]
mod testing;
pub mod wire;

pub use error::Error;
pub use fulmar_text::{units, words};

//! One simulated world for the broker and its storage: the schedule and every fault are drawn from a seed, and a seed
//! always gives the same run (like TigerBeetle's `vopr`).
//!
//! `schedule` draws the steps and `troubles` those that make storage stall or an internal session fall behind, `world`
//! has the broker, whose workers run one step at a time, `network` what is under way to it, `client` the clients,
//! `ledger` what the broker has promised them, `wills` their wills. `play` combines these, `stalls` and `pressure` check
//! what must hold while clients are refused or wait, `clock` has the machine's clocks and
//! `clock_steps` sets them, `rest` the state at the end, `overdue` when the broker may refuse,
//! and `shrink` removes steps until only those remain without which nothing fails. In other schedules, clients lie and
//! rights change: `liars`. `tables` defines what a
//! storage operation means, for everything that simulates storage; `disk` commits at given steps. Schedules of other
//! worlds are drawn, played and shrunk in the same way (`script`, `campaign`); `session` has clients for them.
//!
//! One call of the core is one step here, although other workers may run during it; only within a publication,
//! between finding its receivers and delivering to each, do they (`schedule::Amid`).
#![forbid(unsafe_code)]

mod amid;
mod campaign;
mod client;
mod clock;
mod clock_steps;
mod disk;
mod ledger;
mod liars;
mod network;
mod overdue;
mod play;
mod pressure;
mod rest;
mod schedule;
mod script;
#[cfg(feature = "sessions")]
mod session;
mod settings;
mod shrink;
mod stalls;
mod tables;
mod troubles;
mod wills;
mod words;
mod world;

pub use campaign::campaign;
pub use clock::{BEGIN, Moved, Wall};
pub use disk::{Disk, Volume};
pub use liars::Lie;
pub use network::Input;
pub use play::{play, play_on};
pub use schedule::Schedule;
pub use script::{Failure, Played, Script, Setting, Simulation, Story, rng_of, vary, weighted};
#[cfg(feature = "sessions")]
pub use session::{Session, session_options};
pub use shrink::shrink;
pub use tables::{Place, Rows, Tables};
pub use world::World;

#![doc = include_str!("../README.md")]
//!
//! [`Congestion`] is what a user chooses from; it and the modules `quic`, `patient` and `copies::watch` are what knows
//! quinn. `fulmar-bulk` has the rules of [`Roadwise`] for NORM's rate.

mod choice;
pub mod copies;
mod cubic;
mod loss;
mod path;
mod patient;
mod quic;
mod roadwise;

pub use choice::Congestion;
pub use roadwise::Roadwise;

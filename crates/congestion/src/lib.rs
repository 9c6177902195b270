#![doc = include_str!("../README.md")]
//!
//! [`Congestion`] lists the choices. It and the modules `quic`, `delay_aware_cubic` and `copies::watch` depend on
//! quinn-proto; [`DelayBased`] does not. `fulmar-bulk` applies the rules of [`DelayBased`] to NORM's sending rate.

mod baseline_loss;
mod choice;
pub mod copies;
mod cubic;
mod delay_aware_cubic;
mod delay_based;
mod loss_trial;
mod path;
mod quic;

pub use choice::Congestion;
pub use delay_based::DelayBased;

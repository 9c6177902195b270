//! A sensor: wakes, publishes a reading in its first datagram, takes the commands that have waited
//! for it, sleeps. It runs on whatever implements [`Board`] (ten functions); the protocols are the
//! crate `fulmar-tiny`'s.
//!
//! There is no hardware in here and no allocation, and so it is tested on a host. [`Sensor`] is the
//! type that matters; [`Settings`] is what each device is told about itself, [`StoredTicket`] what it keeps
//! when it loses its power.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod board;
mod kept;
mod sensor;
mod settings;

pub use board::{Board, Word};
pub use kept::StoredTicket;
pub use sensor::{Outcome, Sensor};
pub use settings::{Fixed, Settings, SettingsError};

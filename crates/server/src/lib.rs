#![doc = include_str!("../README.md")]
//!
//! [`Args`] and [`run`] are `fulmar serve`; [`passwd`] and `platform` are the commands that work on what a server reads:
//! its password file, and the platform's users and twins.

mod config;
pub mod passwd;
#[cfg(feature = "platform")]
pub mod platform;
mod serve;

pub use serve::{Args, run};

use fulmar_command::{exit, logging};

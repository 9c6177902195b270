#![doc = include_str!("../README.md")]
//!
//! [`Args`] and [`run`] are `fulmar serve`; [`passwd`] and `accounts` are the commands that work on what a server reads:
//! its password file, and the platform's users and twins.

#[cfg(feature = "platform")]
pub mod accounts;
mod config;
pub mod passwd;
mod serve;

pub use serve::{Args, has_web_app, run};

use fulmar_command::{exit, logging};

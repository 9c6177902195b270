//! What people write and read: quantities with their [units], [hex] digits, [percent]-encoded text, [words] for what
//! is wrong with a TOML file, CSV for [spreadsheet]s, [metrics], [network]s, and settings with
//! their defaults.
//!
//! No I/O, and nothing of what the quantities are for.

mod defaults;
pub mod hex;
pub mod metrics;
mod names;
pub mod network;
pub mod percent;
pub mod spreadsheet;
pub mod units;
mod usage;
pub mod words;

pub use usage::Usage;

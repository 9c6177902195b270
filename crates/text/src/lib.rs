//! What people write and read: quantities with their [units], [hex] digits, and [words] for what is wrong with a TOML
//! file.
//!
//! No I/O, and nothing of what the quantities are for.

pub mod hex;
pub mod units;
pub mod words;

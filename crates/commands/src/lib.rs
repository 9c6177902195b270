//! What the commands of the program share: how they end, how they log, what they run on.
//!
//! Each command is a crate of its own beside this one, with its options as a clap `Args` and a function that
//! does the work, so that they compile side by side and a change in one leaves the others alone.

pub mod exit;
mod field_limit;
mod flood;
pub mod key_log;
mod log_queue;
pub mod logging;
pub mod password;
pub mod runtime;
pub mod terminal;

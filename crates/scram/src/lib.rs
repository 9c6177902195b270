//! SCRAM-SHA-256 (RFC 5802 and RFC 7677): a client shows that it knows a password without sending it, and the server
//! shows that it has the user's verifier.
//!
//! No I/O and no clock: messages in, messages out. [`ServerExchange`] is the server's side and [`ClientExchange`] the
//! client's. The server keeps a [`Verifier`], which does not suffice to log in, but is weaker against guessing than an
//! argon2 hash: PBKDF2 needs no memory. Channel binding (SCRAM-SHA-256-PLUS) is not supported.
#![forbid(unsafe_code)]

mod client;
mod crypto;
mod error;
mod message;
mod server;
mod verifier;

pub use client::{ClientExchange, ClientKeys, ServerProof};
pub use error::ScramError;
pub use server::{ClientFirst, ServerExchange};
pub use verifier::{DecoyKey, Verifier, VerifierShape};

/// The name of the mechanism.
pub const MECHANISM: &str = "SCRAM-SHA-256";

/// The least number of iterations (RFC 7677, section 4).
pub const MIN_ITERATIONS: u32 = 4096;

/// The highest number of iterations that a client computes, a second or two of a processor: the server chooses it before
/// it has shown who it is.
pub const MAX_ITERATIONS: u32 = 5_000_000;

/// The longest message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4096;

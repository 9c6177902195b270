//! UDP over IPv4 over Ethernet, for a device that talks to one peer: ARP (RFC 826) for its next
//! hop, IPv4 (RFC 791) without options and fragments, UDP (RFC 768), and DHCP (RFC 2131) where the
//! feature `dhcp` is on. Frames go in and come out; there is no driver, no clock and no allocation.
//!
//! It exists because it is small: a general stack (smoltcp, 11.8 KB of flash) costs more than TLS's
//! key exchange, and a device behind one gateway needs little of it. It is not a router, answers no
//! ping, and knows one port at a time. Integrity beyond UDP's checksum is the business of QUIC above.
//!
//! [`Host`] is the type that matters; [`HEADERS`] bytes are to be left free before a payload.
#![cfg_attr(not(test), no_std)]
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod checksum;
#[cfg(feature = "dhcp")]
pub mod dhcp;
mod host;

pub use host::{Address, Host, Mac, Network, Received};

/// Bytes of Ethernet, IPv4 and UDP headers before a payload.
pub const HEADERS: usize = 14 + 20 + 8;

/// Longest frame without its check sequence, in bytes.
pub const MAX_FRAME: usize = 1514;

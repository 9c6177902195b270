//! IP packets as the lab looks at them: a checked view, checksums, and the ICMP answer to a packet
//! that is too big.
//!
//! It reads only what the lab needs (addresses, ports, TCP flags); it follows no IPv6 extension
//! headers beyond fragments. RFC 791, 8200, 768, 9293, 1624 (checksum update).

pub(crate) mod checksum;
mod too_big;
mod view;

pub(crate) use too_big::too_big;
pub use view::{PacketView, Protocol, TcpHeader};

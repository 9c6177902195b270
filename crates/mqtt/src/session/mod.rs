//! Delivery state of one direction of one flow (section 4.3), the same for clients and servers.
//!
//! [`Outbound`] is the sender: packet identifiers, the send window, messages in flight and their state. [`Inbound`]
//! is the receiver of QoS 2: identifiers received and not yet released. [`TopicAliases`] is a receiver's alias table.

mod aliases;
mod inbound;
mod outbound;
mod spare;

pub use aliases::TopicAliases;
pub use inbound::{Inbound, InboundQos2};
pub use outbound::{AckError, Outbound, Replay};
pub use spare::give_back;

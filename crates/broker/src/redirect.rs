//! A server that accepts no client, and names another one (MQTT 5.0 section 4.11): a node of a cluster that stands by.

use crate::peer::TransportKind;

/// Knows the server to use instead. Called on the workers, so it must neither block nor be slow.
pub trait Redirect: Send + Sync {
    /// The Server Reference for clients that came by this transport; `None` if there is no such server now.
    fn reference(&self, transport: TransportKind) -> Option<Box<str>>;
}

//! `fulmar user`, `fulmar twin` and `fulmar passwd`: users of the platform, of the broker's own store, and in password
//! files. They work on a data folder, or ask the server of a cluster's node through its administration socket.

#[cfg(feature = "platform")]
pub mod accounts;
#[cfg(feature = "platform")]
mod broker_users;
#[cfg(all(feature = "platform", feature = "admin"))]
mod node_users;
pub mod passwd;

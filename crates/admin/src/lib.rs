//! The administration API of a broker: who is connected and how well, disconnecting, and who may do that.
//!
//! JSON over HTTP from one axum `Router`, below `/api/admin/v1`. No sockets, no TLS and no users of its own: the server
//! mounts the router, and says through [`Administrators`] to whom credentials belong. A request that came through the
//! socket in the data folder ([`LocalCaller`]) is an administrator's, because only the server's own user can open it.
//!
//! Read in this order: `routes` (the paths), `caller` (who asks), `app` (what handlers share), then a file per subject.
#![forbid(unsafe_code)]

mod admin;
mod administrators;
mod app;
mod archive;
mod audit;
mod backup;
mod bans;
mod caller;
mod clients;
mod explain;
mod explain_role;
mod extract;
mod groups;
mod health;
mod history;
mod identities;
mod local;
mod log;
mod openapi;
mod overview;
mod page;
mod pass;
mod prelude;
mod problem;
mod retained;
mod roles;
mod routes;
mod server;
mod sessions;
mod store;
mod tap;
#[cfg(test)]
mod tests;
mod topic_cursor;
mod topics;
mod users;
mod web_session;
mod web_sessions;

pub use admin::Admin;
pub use administrators::{
    Administrators, Answer, Credentials, Holds, Login, Principal, Refused, Role,
};
pub use app::Settings;
pub use archive::{Manifest, RestoreError, restore};
pub use bans::apply as apply_bans;
pub use local::{LocalCaller, SOCKET_FILE, SocketPath};
pub use openapi::{PLATFORM_COMMANDS, PREFIX};
pub use server::{
    Certificate, Cluster, ClusterNode, DiskAccount, Later, Listener, Server, ServerState, TapRoom,
    Tapped, Upstream,
};
pub use store::{
    AuditEntry, AuditQuery, DATABASE_FILE, Store, StoreError, logged_locally, read_audit,
    replace_rows, shared_rows,
};

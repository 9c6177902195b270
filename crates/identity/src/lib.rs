//! Identities: people and devices. Clients that may connect to a broker, with groups and roles, administrators and API
//! tokens; and the platform's accounts, with their memberships, device tokens and sessions.
//!
//! The model ([`State`]) has no I/O and no clock. Every change is a [`Command`], which is checked before it takes effect:
//! [`State::apply`]. The clients, groups and roles are those of mosquitto's dynamic security plugin, so that its tools
//! work with them; what a role allows is in [`Acl`].
//!
//! [`control`] has these commands as JSON, and [`Compiler`] fills the broker's table of clients and their rules.
//!
//! [`Store`] keeps the state in SQLite, in one transaction per batch of commands: what is reported as applied survives
//! kill -9 and loss of power, and a batch that was interrupted has no effect. [`Identities`] has a thread with a store,
//! and everybody else's view of the state. Another process, such as `fulmar user`, may change the same file meanwhile:
//! the thread checks every half second, and before every change.
#![forbid(unsafe_code)]

mod account;
mod acl;
mod administrator;
mod affected;
mod change_log;
mod checks;
mod command;
mod compiled;
pub mod control;
mod device_token;
mod entities;
mod limits;
mod passwords;
mod rows;
mod service;
mod state;
mod store;
mod tokens;

pub use account::{Account, AccountChange, DeviceToken, Membership, Session};
pub use acl::{AccessKind, Acl, AclKind, DefaultAccess, Ranked};
pub use administrator::administrator_role;
pub use affected::Affected;
pub use change_log::{ChangeLog, NewEntry};
pub use command::{ClientChanges, Command, GroupChanges, Refused, RoleChanges};
pub use compiled::Compiler;
pub use control::Asker;
pub use device_token::{NewDeviceToken, TOKEN_PREFIX, parse_device_token};
pub use entities::{
    AdministrationRole, ApiToken, Client, Group, PasswordHash, Role, ScramVerifier, Texts,
};
pub use limits::{
    MAX_ACCOUNTS, MAX_ACLS_PER_ROLE, MAX_CLIENTS, MAX_GROUPS, MAX_NAME_BYTES, MAX_RANKED,
    MAX_ROLES, MAX_TEXT_BYTES, MAX_TOKENS, MAX_TOPIC_BYTES,
};
pub use passwords::{PasswordHasher, StoredPassword};
pub use rows::{Removal, Row};
pub use service::{ApplyError, Desk, Identities, Job, Subscriber, Watch};
pub use state::{Change, Principal, State};
pub use store::{FILE, Store, StoreError};
pub use tokens::{API_TOKEN_PREFIX, NewToken};

//! Bounds, so that nobody can fill memory or disk with identities.

/// Clients.
pub const MAX_CLIENTS: usize = 200_000;
/// Accounts.
pub const MAX_ACCOUNTS: usize = 200_000;
/// Device tokens of an account.
pub(crate) const MAX_DEVICE_TOKENS: usize = 16;
/// Sessions of an account; of more, the oldest ends.
pub(crate) const MAX_SESSIONS: usize = 32;
/// Names of clients that were removed; of more, the oldest is forgotten.
pub(crate) const MAX_REMOVED: usize = 200_000;
/// Groups.
pub const MAX_GROUPS: usize = 10_000;
/// Roles.
pub const MAX_ROLES: usize = 10_000;
/// API tokens.
pub const MAX_TOKENS: usize = 1_000;
/// Rules of one role.
pub const MAX_ACLS_PER_ROLE: usize = 1_000;
/// Roles of one client or group, and groups of one client.
pub const MAX_RANKED: usize = 100;
/// Size of a name or client identifier, in bytes.
pub const MAX_NAME_BYTES: usize = 512;
/// Size of a text name or description, in bytes.
pub const MAX_TEXT_BYTES: usize = 2_048;
/// Size of a rule's topic, in bytes.
pub const MAX_TOPIC_BYTES: usize = 4_096;

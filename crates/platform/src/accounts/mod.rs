//! Authentication and roles: accounts, their passwords and tokens, their roles in twins.
//!
//! Every request is checked against `account_cache`, in memory, which is loaded from the database.

pub(crate) mod account_cache;
pub(crate) mod caller;
pub(crate) mod credentials;
pub(crate) mod membership;
pub(crate) mod password;
pub(crate) mod sessions;
pub(crate) mod token;
pub(crate) mod users;

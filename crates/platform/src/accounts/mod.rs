//! Authentication and roles: accounts, their passwords and tokens, their roles in twins.
//!
//! Accounts are in the store of identities (`fulmar_identity::Account`), to which twins and roles are only names: what a
//! role may do, and whose the names of devices are, is known here.

pub(crate) mod account_cache;
pub(crate) mod caller;
pub(crate) mod changes;
pub(crate) mod import;
pub(crate) mod membership;
pub(crate) mod refusal;
pub(crate) mod sessions;
pub(crate) mod token;
pub(crate) mod users;

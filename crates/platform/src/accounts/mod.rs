//! Who may come in, and as what: accounts, their passwords and tokens, their roles in twins.
//!
//! `roster` is what every request is checked against, in memory; the database is where it comes from.

pub(crate) mod caller;
pub(crate) mod credentials;
pub(crate) mod hashing;
pub(crate) mod known;
pub(crate) mod password;
pub(crate) mod rate;
pub(crate) mod roster;
pub(crate) mod sessions;
pub(crate) mod token;
pub(crate) mod users;

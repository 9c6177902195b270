//! What a command changes: rows of the store, each with one entity.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::account::Account;
use crate::acl::DefaultAccess;
use crate::entities::{ApiToken, Client, Group, Role};

/// One entity as it is after a change; `None` if it is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// A client by its user name.
    Client(Box<str>, Option<Arc<Client>>),
    /// A group by its name.
    Group(Box<str>, Option<Arc<Group>>),
    /// A role by its name.
    Role(Box<str>, Option<Arc<Role>>),
    /// An API token by its name.
    Token(Box<str>, Option<Arc<ApiToken>>),
    /// An account by its name.
    Account(Box<str>, Option<Arc<Account>>),
    /// The name of a client that was removed and not created again.
    Removed(Box<str>, Option<Arc<Removal>>),
    /// The settings, of which there is one set.
    Settings(Arc<Settings>),
}

/// That a client was removed: it is refused, with any credentials, instead of becoming one that the store does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Rises with each removal.
    pub number: u64,
    /// Whether it could only administer ([`crate::Client::only_administers`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_administered: bool,
}

/// Settings, of which a state has one set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Where no rule matches.
    pub default_access: DefaultAccess,
    /// The group whose roles clients without a user name have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anonymous_group: Option<Box<str>>,
    /// Name by which a database recognizes the store that has its users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identifier: Option<Box<str>>,
}

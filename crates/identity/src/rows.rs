//! What a command changes: rows of the store, each with one entity.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

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
    /// What there is once.
    Settings(Arc<Settings>),
}

/// What there is once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Where no rule matches.
    pub default_access: DefaultAccess,
    /// The group whose roles clients without a user name have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anonymous_group: Option<Box<str>>,
}

//! Clients, groups, roles and API tokens, each of which is a row of the store.

use serde::{Deserialize, Serialize};

use crate::acl::{Acl, Ranked};

/// A password's hash in a form that a password file may have: argon2, or one of mosquitto's.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PasswordHash(pub(crate) Box<str>);

impl PasswordHash {
    /// A hash in one of the known forms.
    ///
    /// # Errors
    /// It has another form.
    pub fn parse(text: &str) -> Result<PasswordHash, fulmar_broker::auth::HashError> {
        fulmar_broker::auth::check_hash(text).map(|()| PasswordHash(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fulmar_text::opaque_debug!(PasswordHash);

/// Values that SCRAM needs of a password, as text; see [`fulmar_scram::Verifier`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ScramVerifier(pub(crate) Box<str>);

fulmar_text::opaque_debug!(ScramVerifier);

/// Rights of an administrative user; each role includes those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Role))]
#[serde(rename_all = "lowercase")]
pub enum AdministrationRole {
    /// Sees clients, sessions, topics and rules.
    Viewer,
    /// Also disconnects, bans, deletes sessions and retained messages, and reads messages.
    Operator,
    /// Also users and rules, backups, and the log of changes.
    Administrator,
}

fulmar_text::names!(
    AdministrationRole:
    Viewer = "viewer",
    Operator = "operator",
    Administrator = "administrator",
);

impl AdministrationRole {
    /// The role with this name.
    pub fn from_name(name: &str) -> Option<AdministrationRole> {
        AdministrationRole::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Texts for people about a client, group or role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Texts {
    /// Text name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Box<str>>,
    /// Text description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<Box<str>>,
}

/// A client: a user name with a password, perhaps of one client identifier only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// User name.
    pub username: Box<str>,
    /// The only client identifier with which it may connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<Box<str>>,
    /// Without one, it cannot connect with a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<PasswordHash>,
    /// SHA-256 of the password's first hash, of mosquitto, which `password` has replaced since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Box<str>>,
    /// The same password's verifier for SCRAM, if one was wanted when it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scram: Option<ScramVerifier>,
    /// For people.
    #[serde(default)]
    pub texts: Texts,
    /// Whether it may not connect.
    #[serde(default)]
    pub disabled: bool,
    /// Roles of the client, by rank.
    #[serde(default)]
    pub roles: Vec<Ranked>,
    /// Groups of the client, by rank.
    #[serde(default)]
    pub groups: Vec<Ranked>,
    /// Role in the administration API, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub administration: Option<AdministrationRole>,
}

impl Client {
    /// Whether it has no purpose but administration: no roles of its own or of groups.
    pub fn only_administers(&self) -> bool {
        self.administration.is_some() && self.roles.is_empty() && self.groups.is_empty()
    }
}

/// A group of clients, which have its roles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Name.
    pub name: Box<str>,
    /// For people.
    #[serde(default)]
    pub texts: Texts,
    /// Roles of the group, by rank.
    #[serde(default)]
    pub roles: Vec<Ranked>,
}

/// A role: rules for topics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// Name.
    pub name: Box<str>,
    /// For people.
    #[serde(default)]
    pub texts: Texts,
    /// Rules of the role: by kind, and then by falling priority.
    #[serde(default)]
    pub acls: Vec<Acl>,
}

/// A token for the administration API. The token itself is nowhere: only its digest is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiToken {
    /// Name.
    pub name: Box<str>,
    /// SHA-256 of the token, in hexadecimal digits.
    pub digest: Box<str>,
    /// Role, which decides what the token may do.
    pub role: AdministrationRole,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When it expires, in milliseconds since the Unix epoch; never without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

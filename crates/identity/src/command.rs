//! Commands, and why one is refused.

use crate::account::{Account, AccountChange};
use crate::acl::{AccessKind, Acl, AclKind, Ranked};
use crate::entities::{AdministrationRole, ApiToken, Client, Group, PasswordHash, Role};
use crate::passwords::StoredPassword;

/// A change of the state. Names that do not exist, or exist already, are refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Sets what holds where no rule matches.
    SetDefaultAccess(Vec<(AccessKind, bool)>),
    /// Adds a client.
    CreateClient(Client),
    /// Removes a client, whose name is refused from then on.
    DeleteClient(Box<str>),
    /// Removes a client, or one that was removed, so that its name is any other one.
    ForgetClient(Box<str>),
    /// Changes a client.
    ModifyClient(Box<str>, ClientChanges),
    /// Replaces a client's hash by another one of the same password. Without effect if it has changed.
    ReplaceHash {
        /// The client.
        username: Box<str>,
        /// The hash so far.
        outdated: PasswordHash,
        /// The new one.
        hash: PasswordHash,
    },
    /// Gives a client a role.
    AddClientRole(Box<str>, Ranked),
    /// Takes a role from a client.
    RemoveClientRole(Box<str>, Box<str>),
    /// Adds a group.
    CreateGroup(Group),
    /// Removes a group.
    DeleteGroup(Box<str>),
    /// Changes a group.
    ModifyGroup(Box<str>, GroupChanges),
    /// Adds a client to a group.
    AddGroupClient {
        /// The group.
        group: Box<str>,
        /// The client.
        username: Box<str>,
        /// The group's rank among the client's groups.
        priority: i32,
    },
    /// Removes a client from a group.
    RemoveGroupClient {
        /// The group.
        group: Box<str>,
        /// The client.
        username: Box<str>,
    },
    /// Gives a group a role.
    AddGroupRole(Box<str>, Ranked),
    /// Takes a role from a group.
    RemoveGroupRole(Box<str>, Box<str>),
    /// Selects the group whose roles clients without a user name have.
    SetAnonymousGroup(Option<Box<str>>),
    /// Adds a role.
    CreateRole(Role),
    /// Removes a role.
    DeleteRole(Box<str>),
    /// Changes a role.
    ModifyRole(Box<str>, RoleChanges),
    /// Adds a rule to a role.
    AddRoleAcl(Box<str>, Acl),
    /// Removes a rule from a role.
    RemoveRoleAcl(Box<str>, AclKind, Box<str>),
    /// Adds an API token.
    CreateToken(ApiToken),
    /// Removes an API token.
    DeleteToken(Box<str>),
    /// Adds an account.
    CreateAccount(Account),
    /// Changes an account.
    ModifyAccount(Box<str>, AccountChange),
    /// Removes an account.
    DeleteAccount(Box<str>),
    /// Gives the store an identifier, if it has none.
    SetIdentifier(Box<str>),
    /// Adds accounts of an earlier version's database, except those whose names exist.
    ImportAccounts(Vec<Account>),
}

/// Changes of a client; `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientChanges {
    /// The client identifier; `Some(None)` allows any.
    pub client_id: Option<Option<Box<str>>>,
    /// The password.
    pub password: Option<StoredPassword>,
    /// Text name.
    pub text_name: Option<Box<str>>,
    /// Text description.
    pub text_description: Option<Box<str>>,
    /// Whether it may not connect.
    pub disabled: Option<bool>,
    /// All its roles.
    pub roles: Option<Vec<Ranked>>,
    /// All its groups.
    pub groups: Option<Vec<Ranked>>,
    /// Role in the administration API; `Some(None)` for none.
    pub administration: Option<Option<AdministrationRole>>,
}

/// Changes of a group; `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupChanges {
    /// Text name.
    pub text_name: Option<Box<str>>,
    /// Text description.
    pub text_description: Option<Box<str>>,
    /// All its roles.
    pub roles: Option<Vec<Ranked>>,
    /// All its clients, by user name, each with the group's rank among its groups.
    pub clients: Option<Vec<Ranked>>,
}

/// Changes of a role; `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoleChanges {
    /// Text name.
    pub text_name: Option<Box<str>>,
    /// Text description.
    pub text_description: Option<Box<str>>,
    /// All its rules.
    pub acls: Option<Vec<Acl>>,
}

/// Why a command is refused. Nothing has changed then. The words of those that mosquitto's plugin has, too, are its own,
/// because tools read them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such client.
    #[error("Client not found")]
    ClientNotFound,
    /// There is one of this name.
    #[error("Client already exists")]
    ClientExists,
    /// An account has the name.
    #[error(
        "The platform has a user of this name: choose another name, or remove that user first (fulmar user remove)"
    )]
    NameOfAccount,
    /// A client has the name.
    #[error(
        "the broker has a client of this name: choose another name, or remove that client first (fulmar ctl users remove)"
    )]
    NameOfClient,
    /// There is no such group.
    #[error("Group not found")]
    GroupNotFound,
    /// There is one of this name.
    #[error("Group already exists")]
    GroupExists,
    /// Nothing to be added.
    #[error("Client is already in this group")]
    AlreadyInGroup,
    /// It would leave clients without a user name without a group.
    #[error("Deleting the anonymous group is forbidden")]
    AnonymousGroup,
    /// There is no such role.
    #[error("Role not found")]
    RoleNotFound,
    /// There is one of this name.
    #[error("Role already exists")]
    RoleExists,
    /// The group has it.
    #[error("Group is already in this role")]
    AlreadyHasRole,
    /// There is one for this topic and of this kind.
    #[error("ACL with this topic already exists")]
    AclExists,
    /// There is none for this topic and of this kind.
    #[error("ACL not found")]
    AclNotFound,
    /// It is not a topic filter.
    #[error("Invalid ACL topic")]
    AclTopic,
    /// There is no such token.
    #[error("API token not found")]
    TokenNotFound,
    /// There is one of this name.
    #[error("API token already exists")]
    TokenExists,
    /// A name that cannot be one.
    #[error("{what} is not valid: 1 to {max} bytes without control characters are accepted")]
    Name {
        /// Thing that it would name.
        what: &'static str,
        /// Bytes.
        max: usize,
    },
    /// A user name that cannot be one.
    #[error(
        "Username is not valid: names that begin with `platform:` are those of the platform's accounts"
    )]
    ReservedName,
    /// Too long.
    #[error("{what} has more than {max} bytes")]
    TooLong {
        /// Text that is too long.
        what: &'static str,
        /// Bytes.
        max: usize,
    },
    /// Too many.
    #[error(
        "there are {max} {what} already, which is the maximum; delete some that are not needed"
    )]
    TooMany {
        /// Things of which there are too many.
        what: &'static str,
        /// Maximum number of them.
        max: usize,
    },
    /// There is no such account.
    #[error("there is no such user")]
    AccountNotFound,
    /// There is one of this name.
    #[error("a user with this name exists, or one that differs only in case")]
    AccountExists,
    /// There is no such device token of the account.
    #[error("there is no such token of this user")]
    DeviceTokenNotFound,
    /// It has as many device tokens as it may.
    #[error(
        "the user has {0} tokens, the maximum: revoke one first, or expire them with --rotate 0"
    )]
    TooManyDeviceTokens(usize),
    /// Nobody in the twin would have a role that somebody must have.
    #[error("this would leave the twin without an administrator; make another one first")]
    LastMember,
    /// Nobody could manage the server.
    #[error(
        "{0} is the only admin of the server: create another one first, with `fulmar user add NAME --admin`"
    )]
    LastServerAdmin(Box<str>),
    /// It would be in nobody's power to undo this.
    #[error(
        "this would leave no enabled administrator with a password; first make another client administrator: \
         fulmar ctl users add NAME --role administrator"
    )]
    LastAdministrator,
    /// It would be in nobody's power to undo this with `mosquitto_ctrl`.
    #[error(
        "this would leave no enabled client with a password that may publish to \
         $CONTROL/dynamic-security/v1; first give another client a role with a publishClientSend rule for it"
    )]
    LastController,
}

//! Accounts and twins from the command line, on the data folder: with the server running or not.
//!
//! A running server detects the changes within half a second. At a node of a cluster, the server itself makes them
//! ([`AdminCommand`]).

use std::path::Path;
use std::sync::Arc;

use fulmar_identity::{
    Account, AccountChange, Command, DeviceToken, Identities, Membership, NewDeviceToken,
    PasswordHash,
};
use serde_json::{Value, json};

use crate::accounts::changes::{PASSWORD_CHARACTERS, hash as hash_password, open_identities};
use crate::accounts::import::user_store;
use crate::accounts::refusal::refused;
use crate::app::App;
use crate::error::Error;
use crate::role::Role;
use crate::store::sql::{Database, Purpose};
use crate::store::user_store::UserStore;
use crate::store::{Db, Store, device_names, earlier_accounts, twins};
use crate::twins::types::{TwinKind, check_name};
use crate::values::*;

const EARLIER: &str = "the users of this database are an earlier version's: start the server of this version once, or \
    restart it, which moves them to its data folder, and then try again";

const ELSEWHERE: &str = "the users of this database are in another data folder: run the command with that folder (--data)";

/// The platform's accounts and twins, for any process that may open the data folder.
#[derive(Debug)]
pub struct Admin {
    database: AccountSource,
}

/// Where the accounts are.
#[derive(Debug)]
enum AccountSource {
    /// In databases that this process has opened for it.
    Beside(Store, Arc<Identities>),
    /// In the platform of this process.
    Within(App),
}

/// An account, as the command line shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserSummary {
    /// Name for the login.
    pub name: String,
    /// Name that people see.
    pub display_name: String,
    /// Whether it is an admin of the server.
    pub server_admin: bool,
    /// Twins and its roles there.
    pub roles: Vec<(String, Role)>,
}

/// A token that lasts, as the command line shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialSummary {
    /// By which it is revoked; it is in the token, too.
    pub id: String,
    /// When it was made (RFC 3339).
    pub created_at: String,
    /// When it ends; `None` for one that lasts until it is revoked.
    pub expires_at: Option<String>,
}

/// A command line, to be sent to the process that does it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminCommand {
    /// [`Admin::add_user`]; without a password, [`Admin::add_device`].
    AddUser {
        /// Name for the login.
        name: String,
        /// Name that people see.
        display_name: Option<String>,
        /// Whether it is an admin of the server.
        server_admin: bool,
        /// A twin and the role there.
        role: Option<(String, Role)>,
        /// Password.
        password: Option<String>,
    },
    /// [`Admin::set_role`].
    SetRole {
        /// The account.
        user: String,
        /// The twin.
        twin: String,
        /// The role there.
        role: Role,
    },
    /// [`Admin::set_password`].
    SetPassword {
        /// The account.
        user: String,
        /// The new one.
        password: String,
    },
    /// [`Admin::remove_user`].
    RemoveUser {
        /// The account.
        user: String,
    },
    /// [`Admin::users`].
    Users,
    /// [`Admin::add_token`].
    AddToken {
        /// The account.
        user: String,
        /// When its others expire.
        others_end_in_ms: Option<u64>,
    },
    /// [`Admin::tokens`].
    Tokens {
        /// The account.
        user: String,
    },
    /// [`Admin::revoke_tokens`].
    RevokeTokens {
        /// The account.
        user: String,
        /// Name of the account; all, if there is none.
        id: Option<String>,
    },
    /// [`Admin::add_twin`].
    AddTwin {
        /// Name in addresses.
        id: String,
        /// Name that people see.
        name: Option<String>,
        /// Whether it is one of homes.
        homes: bool,
    },
    /// [`Admin::twins`].
    Twins,
}

impl AdminCommand {
    /// Entry in the log of changes: action, object, and details without secrets. `None` if it changes nothing.
    pub fn change(&self) -> Option<(&'static str, &str, Value)> {
        Some(match self {
            AdminCommand::AddUser { name, server_admin, role, .. } => {
                ("user.add", name, json!({ "server_admin": server_admin, "role": role }))
            }
            AdminCommand::SetRole { user, twin, role } => {
                ("user.change", user, json!({ "twin": twin, "role": role }))
            }
            AdminCommand::SetPassword { user, .. } => {
                ("user.change", user, json!({ "password": true }))
            }
            AdminCommand::RemoveUser { user } => ("user.remove", user, Value::Null),
            AdminCommand::AddToken { user, others_end_in_ms } => {
                ("token.add", user, json!({ "others_end_in_ms": others_end_in_ms }))
            }
            AdminCommand::RevokeTokens { user, id } => ("token.remove", user, json!({ "id": id })),
            AdminCommand::AddTwin { id, homes, .. } => ("twin.add", id, json!({ "homes": homes })),
            AdminCommand::Users | AdminCommand::Tokens { .. } | AdminCommand::Twins => return None,
        })
    }
}

// Some have a password.
fulmar_text::opaque_debug!(AdminCommand);

/// Result of a command.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminAnswer {
    /// It is done.
    Done,
    /// All accounts.
    Users(Vec<UserSummary>),
    /// A new token.
    Token(String),
    /// An account's tokens.
    Tokens(Vec<CredentialSummary>),
    /// Number of tokens that were revoked.
    Revoked(usize),
    /// Identifiers and names of all twins.
    Twins(Vec<(String, String)>),
}

// One has a token.
fulmar_text::opaque_debug!(AdminAnswer);

/// An account to be made.
#[derive(Clone, Debug)]
pub struct UserToAdd<'a> {
    /// Name for the login.
    pub name: &'a str,
    /// Name that people see; the other one, if there is none.
    pub display_name: Option<&'a str>,
    /// Whether it is an admin of the server.
    pub server_admin: bool,
    /// A twin and the role there.
    pub role: Option<(&'a str, Role)>,
}

impl Admin {
    /// Opens the platform of this data folder and database, making it at first use.
    ///
    /// # Errors
    /// The database cannot be opened; an earlier version has stored its users there, or they are in another folder.
    pub fn open(data: &Path, database: &Database) -> Result<Admin, Error> {
        let store = Store::open(data, database, Purpose::Command)?;
        // Before the folder's store gets this version's tables.
        if store.write_now(|db| Ok(earlier_accounts::exist(db)?))? {
            return Err(Error::Refused(EARLIER.to_owned()));
        }
        let identities = open_identities(data)?;
        if user_store(&store, &identities)? == UserStore::Foreign {
            return Err(Error::Refused(ELSEWHERE.to_owned()));
        }
        Ok(Admin { database: AccountSource::Beside(store, identities) })
    }

    /// The same for a server that is about to serve them, if nobody could log in: otherwise `None`.
    ///
    /// # Errors
    /// The database cannot be opened.
    pub fn without_users(
        data: &Path,
        database: &Database,
        identities: Arc<Identities>,
    ) -> Result<Option<Admin>, Error> {
        let store = Store::open(data, database, Purpose::Command)?;
        let has_users = identities.read(|state| !state.accounts().is_empty())
            || store.write_now(|db| Ok(earlier_accounts::exist(db)?))?
            || user_store(&store, &identities)? == UserStore::Foreign;
        let admin = || Admin { database: AccountSource::Beside(store, identities) };
        Ok((!has_users).then(admin))
    }

    /// Whether there are users of this data folder's platform, of this version or an earlier one.
    ///
    /// # Errors
    /// The database cannot be opened.
    pub fn has_users(data: &Path) -> Result<bool, Error> {
        Ok(Admin::without_users(data, &Database::File, open_identities(data)?)?.is_none())
    }

    /// Those of a platform that runs in this process.
    pub(crate) fn within(app: App) -> Admin {
        Admin { database: AccountSource::Within(app) }
    }

    /// Does what a command line says. Waits for the disk, and hashes passwords.
    ///
    /// # Errors
    /// As the function for it.
    pub fn run(&self, command: &AdminCommand) -> Result<AdminAnswer, Error> {
        let done = |()| AdminAnswer::Done;
        match command {
            AdminCommand::AddUser { name, display_name, server_admin, role, password } => {
                let role = role.as_ref().map(|(twin, role)| (&**twin, *role));
                let (display_name, server_admin) = (display_name.as_deref(), *server_admin);
                let user = UserToAdd { name, display_name, server_admin, role };
                match password {
                    Some(password) => self.add_user(&user, password).map(done),
                    None => self.add_device(&user).map(done),
                }
            }
            AdminCommand::SetRole { user, twin, role } => {
                self.set_role(user, twin, *role).map(done)
            }
            AdminCommand::SetPassword { user, password } => {
                self.set_password(user, password).map(done)
            }
            AdminCommand::RemoveUser { user } => self.remove_user(user).map(done),
            AdminCommand::Users => self.users().map(AdminAnswer::Users),
            AdminCommand::AddToken { user, others_end_in_ms } => {
                self.add_token(user, *others_end_in_ms).map(AdminAnswer::Token)
            }
            AdminCommand::Tokens { user } => self.tokens(user).map(AdminAnswer::Tokens),
            AdminCommand::RevokeTokens { user, id } => {
                self.revoke_tokens(user, id.as_deref()).map(AdminAnswer::Revoked)
            }
            AdminCommand::AddTwin { id, name, homes } => {
                self.add_twin(id, name.as_deref(), *homes).map(done)
            }
            AdminCommand::Twins => self.twins().map(AdminAnswer::Twins),
        }
    }

    fn change_twins<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Db) -> Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        Ok(match &self.database {
            AccountSource::Beside(store, _) => store.write_now(change)?,
            AccountSource::Within(app) => app.change_roster_now(change)?,
        })
    }

    fn identities(&self) -> &Arc<Identities> {
        match &self.database {
            AccountSource::Beside(_, identities) => identities,
            AccountSource::Within(app) => app.account_cache.identities(),
        }
    }

    fn account(&self, name: &str) -> Result<Arc<Account>, Error> {
        let found = self.identities().read(|state| state.accounts().get(name).map(Arc::clone));
        Ok(found.ok_or_else(|| Problem::missing("user"))?)
    }

    fn change_account(&self, user: &str, change: AccountChange) -> Result<(), Error> {
        self.apply(Command::ModifyAccount(user.into(), change))
    }

    fn apply(&self, command: Command) -> Result<(), Error> {
        let (store, identities) = match &self.database {
            AccountSource::Within(app) => return Ok(app.change_account_now(command)?),
            AccountSource::Beside(store, identities) => (store, identities),
        };
        let settle = || {
            let identities = Arc::clone(identities);
            store.write_now(move |db| {
                Ok(device_names::settle(db, &identities, |_| false).map(drop)?)
            })
        };
        // Before, too: an account that gets the name of a removed one must not get that one's devices.
        settle()?;
        identities.apply(vec![command]).map_err(refused)?;
        Ok(settle()?)
    }

    /// Makes an account.
    ///
    /// # Errors
    /// There is one of this name, there is no such twin, or the password is too short.
    pub fn add_user(&self, user: &UserToAdd<'_>, password: &str) -> Result<(), Error> {
        self.add_account(user, Some(hash(password)?))
    }

    /// Makes an account that nobody can log in to by password: of a device, which has a token
    /// ([`Admin::add_token`]).
    ///
    /// # Errors
    /// There is one of this name, or there is no such twin.
    pub fn add_device(&self, user: &UserToAdd<'_>) -> Result<(), Error> {
        self.add_account(user, None)
    }

    fn add_account(
        &self,
        user: &UserToAdd<'_>,
        password: Option<PasswordHash>,
    ) -> Result<(), Error> {
        let name = parse_name("user", user.name)?;
        let mut account = Account {
            name: (*name).into(),
            display_name: user.display_name.unwrap_or(user.name).into(),
            password,
            server_admin: user.server_admin,
            created_ms: Time::now().0,
            ..Account::default()
        };
        if let Some((twin, role)) = user.role {
            self.check_twin(twin)?;
            account.memberships.push(Membership { twin: twin.into(), role: role.name().into() });
        }
        self.apply(Command::CreateAccount(account))
    }

    fn check_twin(&self, twin: &str) -> Result<(), Error> {
        let twin = parse_name("twin", twin)?;
        let known = self.change_twins(move |db| Ok(twins::get(db.within(&twin))?.is_some()))?;
        let missing = || Problem::missing("twin: create it with `fulmar twin add`");
        Ok(known.then_some(()).ok_or_else(missing)?)
    }

    /// Gives an account a role in a twin.
    ///
    /// # Errors
    /// There is no such account or twin.
    pub fn set_role(&self, user: &str, twin: &str, role: Role) -> Result<(), Error> {
        self.account(user)?;
        self.check_twin(twin)?;
        let (twin, role) = (twin.into(), Some(role.name().into()));
        self.change_account(user, AccountChange::Membership { twin, role, keep: None })
    }

    /// Sets an account's password and ends what was logged in with the old one. Its tokens that last are
    /// revoked by themselves.
    ///
    /// # Errors
    /// There is no such account, or the password is too short.
    pub fn set_password(&self, user: &str, password: &str) -> Result<(), Error> {
        self.change_account(user, AccountChange::Password(hash(password)?))
    }

    /// Creates a token without expiry for an account. With `others_end_in_ms`, all its other tokens of this kind
    /// expire after this many milliseconds; until then, both are valid.
    ///
    /// # Errors
    /// There is no such account, or it has as many tokens as it may.
    pub fn add_token(&self, user: &str, others_end_in_ms: Option<u64>) -> Result<String, Error> {
        parse_name("user", user)?;
        let now = Time::now();
        let end = |ms| now.plus_ms(i64::try_from(ms).unwrap_or(i64::MAX).min(Time::NEVER.0 / 2)).0;
        let NewDeviceToken { row: token, secret } = self.new_token(now)?;
        let others_end_ms = others_end_in_ms.map(end);
        self.change_account(user, AccountChange::AddToken { token, others_end_ms })?;
        Ok(secret)
    }

    /// A token whose identifier, which is short, no other has.
    fn new_token(&self, now: Time) -> Result<NewDeviceToken, Error> {
        loop {
            let new = DeviceToken::generate(now.0)
                .ok_or_else(|| internal(&"the system random number generator failed"))?;
            if self.identities().read(|state| state.account_with(&new.row.id).is_none()) {
                return Ok(new);
            }
        }
    }

    /// An account's tokens that last, oldest first.
    ///
    /// # Errors
    /// There is no such account.
    pub fn tokens(&self, user: &str) -> Result<Vec<CredentialSummary>, Error> {
        let account = self.account(user)?;
        let good = account.tokens.iter().filter(|token| token.is_good(Time::now().0));
        Ok(good
            .map(|token| CredentialSummary {
                id: token.id.to_string(),
                created_at: Time(token.created_ms).to_string(),
                expires_at: token.expires_ms.map(|at| Time(at).to_string()),
            })
            .collect())
    }

    /// Revokes a token that lasts, or all the account's; says how many. A running server ends connections
    /// that were made with it.
    ///
    /// # Errors
    /// There is no such account or token.
    pub fn revoke_tokens(&self, user: &str, id: Option<&str>) -> Result<usize, Error> {
        let count = self.account(user)?.tokens.len();
        match id {
            Some(id) => self.change_account(user, AccountChange::RevokeToken(id.into()))?,
            None => self.change_account(user, AccountChange::RevokeTokens)?,
        }
        Ok(id.map_or(count, |_| 1))
    }

    /// Removes an account, which ends its sessions; what it sent stays.
    ///
    /// # Errors
    /// There is no such account, or it is the only admin of the server.
    pub fn remove_user(&self, user: &str) -> Result<(), Error> {
        self.apply(Command::DeleteAccount(user.into()))
    }

    /// All accounts, by name.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn users(&self) -> Result<Vec<UserSummary>, Error> {
        let role = |own: &Membership| Some((own.twin.to_string(), own.role.parse().ok()?));
        let summary = |account: &Arc<Account>| UserSummary {
            name: account.name.to_string(),
            display_name: account.display_name.to_string(),
            server_admin: account.server_admin,
            roles: account.memberships.iter().filter_map(role).collect(),
        };
        Ok(self.identities().read(|state| state.accounts().values().map(summary).collect()))
    }

    /// Makes a twin: of homes with sensors, or of meters.
    ///
    /// # Errors
    /// There is one of this name, or the server uses the name itself.
    pub fn add_twin(&self, id: &str, name: Option<&str>, homes: bool) -> Result<(), Error> {
        let kind = if homes { TwinKind::Homes } else { TwinKind::Meters };
        let (id, name) = (parse_name("twin", id)?, name.unwrap_or(id).to_owned());
        check_name(&id)?;
        self.change_twins(move |db| {
            if twins::add(db.within(&id), &name, kind, None, Time::now())? {
                Ok(())
            } else {
                Err(Problem::conflict("a twin with this name exists"))
            }
        })
    }

    /// All twins: identifier and name.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn twins(&self) -> Result<Vec<(String, String)>, Error> {
        self.change_twins(|db| {
            let names = twins::names(db)?.into_iter();
            Ok(names.map(|(id, name, _)| (id.to_string(), name)).collect())
        })
    }
}

fn parse_name(what: &str, text: &str) -> Result<Name, Error> {
    text.parse().map_err(|wrong| Error::Refused(format!("{what} {text:?}: {wrong}")))
}

fn hash(password: &str) -> Result<PasswordHash, Error> {
    if !PASSWORD_CHARACTERS.contains(&password.chars().count()) {
        return Err(Error::Refused("a password must have 8 to 200 characters".to_owned()));
    }
    Ok(hash_password(password)?)
}

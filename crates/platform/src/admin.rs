//! Accounts and twins from the command line, on the data folder: with the server running or not.
//!
//! A running server detects the changes within half a second. At a node of a cluster, the server itself makes them
//! ([`AdminCommand`]).

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::accounts::{credentials, password};
use crate::app::App;
use crate::error::Error;
use crate::problem::Problem;
use crate::role::Role;
use crate::store::accounts::{self, AccountRow};
use crate::store::sql::{Database, Purpose};
use crate::store::{Db, Store, TwinDb, twins};
use crate::text::Name;
use crate::time::Time;
use crate::twins::types::{TwinKind, check_name};

/// The platform's accounts and twins, for any process that may open the data folder.
#[derive(Debug)]
pub struct Admin {
    database: AccountSource,
}

/// Where the accounts are.
#[derive(Debug)]
enum AccountSource {
    /// In a database that this process has opened for it.
    Beside(Store),
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
    /// The database cannot be opened.
    pub fn open(data: &Path, database: &Database) -> Result<Admin, Error> {
        Ok(Admin {
            database: AccountSource::Beside(Store::open(data, database, Purpose::Command)?),
        })
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

    fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Db) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Error> {
        Ok(match &self.database {
            AccountSource::Beside(store) => store.write_now(change)?,
            AccountSource::Within(app) => app.change_roster_now(change)?,
        })
    }

    /// Makes an account.
    ///
    /// # Errors
    /// There is one of this name, there is no such twin, or the password is too short.
    pub fn add_user(&self, user: &UserToAdd<'_>, password: &str) -> Result<(), Error> {
        self.add_account(user, hash(password)?)
    }

    /// Makes an account that nobody can log in to by password: of a device, which has a token
    /// ([`Admin::add_token`]).
    ///
    /// # Errors
    /// There is one of this name, or there is no such twin.
    pub fn add_device(&self, user: &UserToAdd<'_>) -> Result<(), Error> {
        // With an unknown secret, so that refusing a login takes as long as for other users.
        let (secret, _) = credentials::new_token(parse_name("user", user.name)?, Time::now())?;
        self.add_account(user, password::hash(&secret)?)
    }

    fn add_account(&self, user: &UserToAdd<'_>, hash: String) -> Result<(), Error> {
        let name = parse_name("user", user.name)?;
        let display_name = user.display_name.unwrap_or(user.name).to_owned();
        let row = AccountRow { name, display_name, server_admin: user.server_admin };
        let role = user.role.map(|(twin, role)| Ok::<_, Error>((parse_name("twin", twin)?, role)));
        let role = role.transpose()?;
        self.change(move |db| {
            if !accounts::add(db, &row, &hash, Time::now())? {
                return Err(Problem::conflict(
                    "a user with this name exists, or one that differs only in case",
                ));
            }
            role.map_or(Ok(()), |(twin, role)| grant(db.within(&twin), &row.name, role))
        })
    }

    /// Gives an account a role in a twin.
    ///
    /// # Errors
    /// There is no such account or twin.
    pub fn set_role(&self, user: &str, twin: &str, role: Role) -> Result<(), Error> {
        let (user, twin) = (parse_name("user", user)?, parse_name("twin", twin)?);
        self.change(move |db| {
            if accounts::password(db, &user)?.is_none() {
                return Err(Problem::missing("user"));
            }
            grant(db.within(&twin), &user, role)
        })
    }

    /// Sets an account's password and ends what was logged in with the old one. Its tokens that last are
    /// revoked by themselves.
    ///
    /// # Errors
    /// There is no such account, or the password is too short.
    pub fn set_password(&self, user: &str, password: &str) -> Result<(), Error> {
        let (user, hash) = (user.to_owned(), hash(password)?);
        self.change(move |db| found(accounts::set_password(db, &user, &hash)?, "user"))
    }

    /// Creates a token without expiry for an account. With `others_end_in_ms`, all its other tokens of this kind
    /// expire after this many milliseconds; until then, both are valid.
    ///
    /// # Errors
    /// There is no such account, or it has as many tokens as it may.
    pub fn add_token(&self, user: &str, others_end_in_ms: Option<u64>) -> Result<String, Error> {
        let (name, now) = (parse_name("user", user)?, Time::now());
        let (token, row) = credentials::new_token(name, now)?;
        self.change(move |db| {
            if accounts::password(db, &row.account)?.is_none() {
                return Err(Problem::missing("user"));
            }
            accounts::forget_credentials(db, now)?;
            let theirs = accounts::credentials(db)?;
            let count = theirs.iter().filter(|other| other.account == row.account).count();
            if count >= credentials::MAX_CREDENTIALS {
                return Err(Problem::conflict(format!(
                    "the user has {count} tokens, the maximum: revoke one first"
                )));
            }
            accounts::add_credential(db, &row)?;
            if let Some(ms) = others_end_in_ms {
                let end = now.plus_ms(i64::try_from(ms).unwrap_or(i64::MAX).min(Time::NEVER.0 / 2));
                accounts::end_credentials(db, &row.account, &row.id, end)?;
            }
            Ok(token)
        })
    }

    /// An account's tokens that last, oldest first.
    ///
    /// # Errors
    /// There is no such account.
    pub fn tokens(&self, user: &str) -> Result<Vec<CredentialSummary>, Error> {
        let name = parse_name("user", user)?;
        self.change(move |db| {
            found(accounts::password(db, &name)?.is_some(), "user")?;
            let theirs = accounts::credentials(db)?.into_iter();
            let theirs = theirs.filter(|row| row.account == name);
            Ok(theirs
                .filter(|row| row.expires_at.is_none_or(|at| Time::now() < at))
                .map(|row| CredentialSummary {
                    id: row.id,
                    created_at: row.created_at.to_string(),
                    expires_at: row.expires_at.map(|at| at.to_string()),
                })
                .collect())
        })
    }

    /// Revokes a token that lasts, or all the account's; says how many. A running server ends connections
    /// that were made with it.
    ///
    /// # Errors
    /// There is no such account or token.
    pub fn revoke_tokens(&self, user: &str, id: Option<&str>) -> Result<usize, Error> {
        let (name, id) = (parse_name("user", user)?, id.map(str::to_owned));
        self.change(move |db| {
            found(accounts::password(db, &name)?.is_some(), "user")?;
            match id {
                Some(id) => {
                    found(accounts::remove_credential(db, &name, &id)?, "token of this user")?;
                    Ok(1)
                }
                None => Ok(accounts::remove_credentials(db, &name)?),
            }
        })
    }

    /// Removes an account, which ends its sessions; what it sent stays.
    ///
    /// # Errors
    /// There is no such account, or it is the only admin of the server.
    pub fn remove_user(&self, user: &str) -> Result<(), Error> {
        let user = user.to_owned();
        self.change(move |db| {
            if accounts::is_only_server_admin(db, &user)? {
                return Err(Problem::conflict(format!(
                    "{user} is the only admin of the server: create another one first, with \
                     `fulmar user add NAME --admin`"
                )));
            }
            found(accounts::remove(db, &user)?, "user")
        })
    }

    /// All accounts, by name.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn users(&self) -> Result<Vec<UserSummary>, Error> {
        self.change(|db| {
            let members = accounts::members(db)?;
            let mut users: Vec<UserSummary> = Vec::new();
            for account in accounts::read_all(db)? {
                let theirs = members.iter().filter(|(_, name, _)| *name == account.name);
                let roles = theirs.map(|(twin, _, role)| (twin.to_string(), *role)).collect();
                users.push(UserSummary {
                    name: account.name.to_string(),
                    display_name: account.display_name,
                    server_admin: account.server_admin,
                    roles,
                });
            }
            users.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(users)
        })
    }

    /// Makes a twin: of homes with sensors, or of meters.
    ///
    /// # Errors
    /// There is one of this name, or the server uses the name itself.
    pub fn add_twin(&self, id: &str, name: Option<&str>, homes: bool) -> Result<(), Error> {
        let kind = if homes { TwinKind::Homes } else { TwinKind::Meters };
        let (id, name) = (parse_name("twin", id)?, name.unwrap_or(id).to_owned());
        check_name(&id)?;
        self.change(move |db| {
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
        self.change(|db| {
            let names = twins::names(db)?.into_iter();
            Ok(names.map(|(id, name, _)| (id.to_string(), name)).collect())
        })
    }
}

fn parse_name(what: &str, text: &str) -> Result<Name, Error> {
    text.parse().map_err(|wrong| Error::Refused(format!("{what} {text:?}: {wrong}")))
}

fn hash(password: &str) -> Result<String, Error> {
    if !password::PASSWORD_CHARACTERS.contains(&password.chars().count()) {
        return Err(Error::Refused("a password must have 8 to 200 characters".to_owned()));
    }
    Ok(password::hash(password)?)
}

fn found(found: bool, what: &str) -> Result<(), Problem> {
    if found { Ok(()) } else { Err(Problem::missing(what)) }
}

fn grant(db: TwinDb<'_>, account: &Name, role: Role) -> Result<(), Problem> {
    if twins::get(db)?.is_none() {
        return Err(Problem::missing("twin: create it with `fulmar twin add`"));
    }
    Ok(accounts::set_role(db, account, role)?)
}

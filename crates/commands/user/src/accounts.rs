//! `fulmar user` and `fulmar twin`: the platform's users and twins; of a broker without the platform, the clients of its
//! identity store.
//!
//! They work on the data folder, with the server running or not. Passwords come from the terminal or
//! standard input, never from the command line.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use fulmar_certs::files;
use fulmar_command::password::ask_new;
use fulmar_platform::{
    Admin, AdminAnswer, AdminCommand, DATABASE_FILE, Database, Role, UserSummary,
};

use crate::broker_users::{BrokerUsers, logged, only_platform};
#[cfg(feature = "admin")]
use crate::node_users::NodeUsers;
use fulmar_command::exit::Usage;
use fulmar_config::Config;

const USER_EXAMPLES: &str = "\
Examples:
  fulmar user add ann --admin                            an admin of the server; asks for a password
  fulmar user add bob --twin hamburg --role reader       a reader of one twin
  fulmar user role bob --twin hamburg --role office      another role, or one in a further twin
  fulmar user passwd bob < secret                        the password is the first line of a file
  fulmar user list
  fulmar user remove bob                                 bob's tokens expire at once; his readings stay
  fulmar user token gw-1 --twin rural --role device --file gw-1.token
                                                         a gateway, and a token that does not expire
  fulmar user token gw-1 --rotate 24 --file gw-1.token   another; the older ones expire in 24 hours
  fulmar user token gw-1 --list
  fulmar user token gw-1 --revoke 5f0c19a2               it is no longer accepted

A running server sees changes within half a second.

Without the platform, users are the broker's own: `fulmar user add ann --admin` may do everything, and without
--admin nothing until `mosquitto_ctrl dynsec` gives ann roles.";

const TWIN_EXAMPLES: &str = "\
Examples:
  fulmar twin add hamburg --name 'Hamburg Wasser'
  fulmar twin list

A twin's identifier is part of its addresses: /api/v1/hamburg/meter.";

/// Where the platform's data are.
#[derive(clap::Args, Debug)]
struct Folder {
    /// Configuration file of the server, for its data folder and database
    #[arg(long, short, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Data folder of the server
    #[arg(long, value_name = "DIR", env = "FULMAR_DATA", global = true)]
    data: Option<PathBuf>,
}

/// Action for a data folder without a platform.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Missing {
    /// It makes both: it needs nothing that would be there.
    Create,
    /// It names the folder and changes nothing: a mistyped name would seem to be a platform without users.
    Refuse,
}

impl Folder {
    /// The users of a broker without the platform.
    fn broker_users(&self) -> anyhow::Result<Option<BrokerUsers>> {
        let config = Config::load(self.config.as_deref())?;
        let data = self.data.clone().unwrap_or_else(|| config.data_dir());
        Ok(BrokerUsers::in_folder(&config, &data, &data.join(DATABASE_FILE)))
    }

    /// The data folder.
    fn data(&self) -> anyhow::Result<PathBuf> {
        let given = self.data.clone();
        given.map_or_else(|| Ok(Config::load(self.config.as_deref())?.data_dir()), Ok)
    }

    fn open(&self, missing: Missing) -> anyhow::Result<Accounts> {
        let config = Config::load(self.config.as_deref())?;
        let data = self.data.clone().unwrap_or_else(|| config.data_dir());
        let database = config.platform.database()?;
        #[cfg(feature = "admin")]
        if let Some(node) = NodeUsers::in_folder(&data) {
            return Ok(Accounts::Node(node));
        }
        match missing {
            Missing::Create => files::make_private_dir(&data)?,
            // With PostgreSQL, only users are in the folder.
            Missing::Refuse if database == Database::File || !data.is_dir() => {
                check_is_there(&data)?;
            }
            Missing::Refuse => {}
        }
        Ok(Accounts::Here(Admin::open(&data, &database)?, data))
    }
}

/// The process that does what the command line says.
enum Accounts {
    /// This process, on the database.
    Here(Admin, PathBuf),
    /// The node of a cluster in whose folder it is, if that serves.
    #[cfg(feature = "admin")]
    Node(NodeUsers),
}

impl Accounts {
    fn run(&self, command: &AdminCommand) -> anyhow::Result<AdminAnswer> {
        match self {
            Accounts::Here(admin, data) => match command.change() {
                Some((action, object, detail)) => {
                    logged(data, action, object, detail, || Ok(admin.run(command)?))
                }
                None => Ok(admin.run(command)?),
            },
            #[cfg(feature = "admin")]
            Accounts::Node(node) => node.administer(command),
        }
    }

    fn users(&self) -> anyhow::Result<Vec<UserSummary>> {
        match self.run(&AdminCommand::Users)? {
            AdminAnswer::Users(users) => Ok(users),
            _ => Err(unexpected()),
        }
    }
}

/// Error for an answer that only a node of another version may send.
fn unexpected() -> anyhow::Error {
    anyhow::anyhow!("the node's answer is not what was asked for")
}

/// Fails if there is no platform's database in this folder.
fn check_is_there(data: &Path) -> anyhow::Result<()> {
    let file = data.join(DATABASE_FILE);
    if file.try_exists().with_context(|| file.display().to_string())? {
        return Ok(());
    }
    let what = if data.is_dir() { "has no platform database" } else { "does not exist" };
    Err(Usage(format!(
        "data folder {} {what}: name the folder of `fulmar serve` with --data or --config, or create a platform \
         there with `fulmar twin add` or `fulmar user add NAME --admin`",
        data.display()
    ))
    .into())
}

/// Manage users of the platform and their roles
#[derive(clap::Args, Debug)]
#[command(after_help = USER_EXAMPLES)]
pub struct UserArgs {
    #[command(flatten)]
    folder: Folder,
    #[command(subcommand)]
    action: UserAction,
}

#[derive(Debug, Subcommand)]
enum UserAction {
    /// Create a user
    Add {
        /// User name to log in with
        name: String,
        /// Name to display
        #[arg(long, value_name = "NAME")]
        display_name: Option<String>,
        /// Make the user an admin of the server, with all rights in all twins
        #[arg(long)]
        admin: bool,
        /// Twin of which the user is a member
        #[arg(long, requires = "role")]
        twin: Option<String>,
        /// Role: admin, office, reader, device or viewer
        #[arg(long, requires = "twin")]
        role: Option<Role>,
    },
    /// Give a user a role in a twin
    Role {
        /// User name
        name: String,
        /// Twin
        #[arg(long)]
        twin: String,
        /// Role: admin, office, reader, device or viewer
        #[arg(long)]
        role: Role,
    },
    /// Set a user's password; logins with the old one end, tokens made by `token` stay
    Passwd {
        /// User name
        name: String,
    },
    /// Create a token for a device or gateway that lasts until it is revoked; list or revoke tokens
    Token(TokenArgs),
    /// Remove a user
    Remove {
        /// User name
        name: String,
    },
    /// List all users
    List,
}

#[derive(clap::Args, Debug)]
struct TokenArgs {
    /// User name; with --twin and --role, a missing user is created without a password
    name: String,
    /// Twin of which the user is a member
    #[arg(long, requires = "role")]
    twin: Option<String>,
    /// Role: admin, office, reader, device or viewer
    #[arg(long, requires = "twin")]
    role: Option<Role>,
    /// Write the token to this file (mode 0600) instead of printing it
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Expire the user's other tokens after HOURS (0: at once); until then they stay valid
    #[arg(long, value_name = "HOURS", value_parser = clap::value_parser!(u32).range(0..=8760))]
    rotate: Option<u32>,
    /// List the user's tokens: identifier, time of creation, and expiry if set
    #[arg(long, conflicts_with_all = ["twin", "role", "file", "rotate", "revoke"])]
    list: bool,
    /// Revoke the token with this identifier, or `all`; connections made with it are closed
    #[arg(long, value_name = "ID", conflicts_with_all = ["twin", "role", "file", "rotate"])]
    revoke: Option<String>,
}

impl TokenArgs {
    fn run(&self, accounts: &Accounts) -> anyhow::Result<()> {
        let user = self.name.clone();
        if self.list {
            let AdminAnswer::Tokens(tokens) = accounts.run(&AdminCommand::Tokens { user })? else {
                return Err(unexpected());
            };
            for token in tokens {
                let end = token.expires_at.as_deref().unwrap_or("-");
                println!("{}\t{}\t{end}", token.id, token.created_at);
            }
            return Ok(());
        }
        if let Some(id) = &self.revoke {
            let id = (id != "all").then(|| id.clone());
            let AdminAnswer::Revoked(count) =
                accounts.run(&AdminCommand::RevokeTokens { user, id })?
            else {
                return Err(unexpected());
            };
            eprintln!("{count} revoked");
            return Ok(());
        }
        // Before the other tokens expire: nobody could use the new one without the file.
        if let Some(path) = &self.file {
            files::check_writable(path)?;
        }
        if let Some((twin, role)) = self.twin.as_deref().zip(self.role) {
            self.join(accounts, twin, role)?;
        }
        let others_end_in_ms = self.rotate.map(|hours| u64::from(hours) * 3_600_000);
        let command = AdminCommand::AddToken { user, others_end_in_ms };
        let AdminAnswer::Token(token) = accounts.run(&command)? else { return Err(unexpected()) };
        match &self.file {
            Some(path) => Ok(files::write(path, format!("{token}\n").as_bytes(), true)?),
            None => {
                println!("{token}");
                Ok(())
            }
        }
    }

    /// Makes the user, or gives one that is there the role.
    fn join(&self, accounts: &Accounts, twin: &str, role: Role) -> anyhow::Result<()> {
        let (name, twin) = (self.name.clone(), twin.to_owned());
        let is_there = accounts.users()?.iter().any(|user| user.name == name);
        let command = if is_there {
            AdminCommand::SetRole { user: name, twin, role }
        } else {
            let (role, password) = (Some((twin, role)), None);
            AdminCommand::AddUser { name, display_name: None, server_admin: false, role, password }
        };
        accounts.run(&command).map(drop)
    }
}

impl UserAction {
    /// A user of a twin needs the twin, and all but `add` a user.
    fn with_none(&self) -> anyhow::Result<Missing> {
        match self {
            UserAction::Add { admin: false, twin: None, .. } => {
                let text = "give a role: --admin, or --twin TWIN --role ROLE";
                Err(Usage(text.to_owned()).into())
            }
            UserAction::Add { twin: None, .. } => Ok(Missing::Create),
            _ => Ok(Missing::Refuse),
        }
    }
}

impl UserAction {
    fn run_without_platform(&self, users: &BrokerUsers) -> anyhow::Result<()> {
        match self {
            UserAction::Add { twin: Some(_), .. } => Err(only_platform("add --twin")),
            UserAction::Add { name, display_name, admin, .. } => {
                users.add(name, display_name.as_deref(), *admin, ask_new)
            }
            UserAction::Passwd { name } => users.set_password(name, &ask_new()?),
            UserAction::Remove { name } => {
                users.remove(name)?;
                eprintln!("removed {name}: refused with any credentials until it is added again");
                Ok(())
            }
            UserAction::List => {
                users.list()?.iter().for_each(|line| println!("{line}"));
                Ok(())
            }
            UserAction::Role { .. } => Err(only_platform("role")),
            UserAction::Token(_) => Err(only_platform("token")),
        }
    }
}

/// Runs `fulmar user`.
pub fn user(args: &UserArgs) -> anyhow::Result<()> {
    if let Some(users) = args.folder.broker_users()? {
        return args.action.run_without_platform(&users);
    }
    let accounts = args.folder.open(args.action.with_none()?)?;
    let added = match &args.action {
        UserAction::Add { name, .. } => Some(format!("added {name} to the platform's users")),
        _ => None,
    };
    let command = match &args.action {
        UserAction::Add { name, display_name, admin: server_admin, twin, role } => {
            let role = twin.clone().zip(*role);
            let (name, display_name) = (name.clone(), display_name.clone());
            let (server_admin, password) = (*server_admin, Some(ask_new()?));
            AdminCommand::AddUser { name, display_name, server_admin, role, password }
        }
        UserAction::Role { name, twin, role } => {
            AdminCommand::SetRole { user: name.clone(), twin: twin.clone(), role: *role }
        }
        UserAction::Passwd { name } => {
            AdminCommand::SetPassword { user: name.clone(), password: ask_new()? }
        }
        UserAction::Token(args) => return args.run(&accounts),
        UserAction::Remove { name } => AdminCommand::RemoveUser { user: name.clone() },
        UserAction::List => {
            accounts.users()?.iter().for_each(|user| println!("{}", line(user)));
            return Ok(());
        }
    };
    accounts.run(&command)?;
    if let Some(added) = added {
        let data = args.folder.data()?;
        eprintln!("{added} in {}", data.display());
    }
    Ok(())
}

fn line(user: &UserSummary) -> String {
    let roles = user.roles.iter().map(|(twin, role)| format!("{}@{twin}", role.name()));
    let roles: Vec<String> =
        user.server_admin.then(|| "admin".to_owned()).into_iter().chain(roles).collect();
    format!("{}\t{}\t{}", user.name, user.display_name, roles.join(" "))
}

/// Manage twins (tenants) of the platform
#[derive(clap::Args, Debug)]
#[command(after_help = TWIN_EXAMPLES)]
pub struct TwinArgs {
    #[command(flatten)]
    folder: Folder,
    #[command(subcommand)]
    action: TwinAction,
}

#[derive(Debug, Subcommand)]
enum TwinAction {
    /// Create a twin
    Add {
        /// Identifier of the twin
        id: String,
        /// Name to display
        #[arg(long)]
        name: Option<String>,
        /// Kind of data
        #[arg(long, value_enum, default_value_t = TwinKind::Meters)]
        kind: TwinKind,
    },
    /// List all twins
    List,
}

/// Subject of a twin.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum TwinKind {
    /// A utility's meters
    Meters,
    /// Homes with sensors
    Homes,
}

/// Runs `fulmar twin`.
pub fn twin(args: &TwinArgs) -> anyhow::Result<()> {
    let missing = match args.action {
        TwinAction::Add { .. } => Missing::Create,
        TwinAction::List => Missing::Refuse,
    };
    let accounts = args.folder.open(missing)?;
    match &args.action {
        TwinAction::Add { id, name, kind } => {
            let homes = *kind == TwinKind::Homes;
            let command = AdminCommand::AddTwin { id: id.clone(), name: name.clone(), homes };
            accounts.run(&command).map(drop)
        }
        TwinAction::List => {
            let AdminAnswer::Twins(twins) = accounts.run(&AdminCommand::Twins)? else {
                return Err(unexpected());
            };
            for (id, name) in twins {
                println!("{id}\t{name}");
            }
            Ok(())
        }
    }
}

//! `fulmar user` and `fulmar twin`: who may log in to the platform, and which installations it has.
//!
//! They work on the data folder, with the server running or not. Passwords come from the terminal or
//! standard input, never from the command line.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use fulmar_certs::files;
use fulmar_platform::{Admin, Role, UserSummary, UserToAdd};

use crate::config::{Config, set};
use crate::exit::Usage;
use crate::passwd;

const USER_EXAMPLES: &str = "\
Examples:
  fulmar user add ann --admin                            an admin of the server; asks for a password
  fulmar user add bob --twin hamburg --role reader       a reader of one twin
  fulmar user role bob --twin hamburg --role office      another role, or one in a further twin
  fulmar user passwd bob < secret                        the password is the first line of a file
  fulmar user list
  fulmar user remove bob                                 his tokens end at once; his readings stay

A running server sees changes within half a second.";

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

impl Folder {
    fn open(&self) -> anyhow::Result<Admin> {
        let config = Config::load(self.config.as_deref())?;
        let chosen = self.data.as_deref().or(set(&config.server.data_dir));
        let data = chosen.map_or_else(fulmar_certs::default_data_dir, Path::to_owned);
        files::make_private_dir(&data)?;
        Ok(Admin::open(&data, &config.platform.database()?)?)
    }
}

/// Users of the platform: who may log in, and as what
#[derive(clap::Args, Debug)]
#[command(after_help = USER_EXAMPLES)]
pub(crate) struct UserArgs {
    #[command(flatten)]
    folder: Folder,
    #[command(subcommand)]
    action: UserAction,
}

#[derive(Debug, Subcommand)]
enum UserAction {
    /// Make a user
    Add {
        /// What the user logs in with
        name: String,
        /// What people see
        #[arg(long, value_name = "NAME")]
        display_name: Option<String>,
        /// An admin of the server, who may do everything in all twins
        #[arg(long)]
        admin: bool,
        /// A twin the user is a member of
        #[arg(long, requires = "role")]
        twin: Option<String>,
        /// As what: admin, office, reader, device or viewer
        #[arg(long, requires = "twin")]
        role: Option<Role>,
    },
    /// Give a user a role in a twin
    Role {
        /// Whom
        name: String,
        /// Where
        #[arg(long)]
        twin: String,
        /// As what: admin, office, reader, device or viewer
        #[arg(long)]
        role: Role,
    },
    /// Set a user's password; tokens given out before end
    Passwd {
        /// Whose
        name: String,
    },
    /// Remove a user
    Remove {
        /// Whom
        name: String,
    },
    /// List all users
    List,
}

/// Runs `fulmar user`.
pub(crate) fn user(args: &UserArgs) -> anyhow::Result<()> {
    let admin = args.folder.open()?;
    match &args.action {
        UserAction::Add { name, display_name, admin: server_admin, twin, role } => {
            if !server_admin && twin.is_none() {
                let text = "say what the user may do: --admin, or --twin TWIN --role ROLE";
                return Err(Usage(text.to_owned()).into());
            }
            let role = twin.as_deref().zip(*role);
            let (display_name, server_admin) = (display_name.as_deref(), *server_admin);
            let user = UserToAdd { name, display_name, server_admin, role };
            Ok(admin.add_user(&user, &passwd::ask()?)?)
        }
        UserAction::Role { name, twin, role } => Ok(admin.set_role(name, twin, *role)?),
        UserAction::Passwd { name } => Ok(admin.set_password(name, &passwd::ask()?)?),
        UserAction::Remove { name } => Ok(admin.remove_user(name)?),
        UserAction::List => {
            for user in admin.users()? {
                println!("{}", line(&user));
            }
            Ok(())
        }
    }
}

fn line(user: &UserSummary) -> String {
    let roles = user.roles.iter().map(|(twin, role)| format!("{}@{twin}", role.name()));
    let roles: Vec<String> =
        user.server_admin.then(|| "admin".to_owned()).into_iter().chain(roles).collect();
    format!("{}\t{}\t{}", user.name, user.display_name, roles.join(" "))
}

/// Twins of the platform: a utility's installation each
#[derive(clap::Args, Debug)]
#[command(after_help = TWIN_EXAMPLES)]
pub(crate) struct TwinArgs {
    #[command(flatten)]
    folder: Folder,
    #[command(subcommand)]
    action: TwinAction,
}

#[derive(Debug, Subcommand)]
enum TwinAction {
    /// Make a twin
    Add {
        /// Its identifier
        id: String,
        /// What people see
        #[arg(long)]
        name: Option<String>,
        /// What it is about
        #[arg(long, value_enum, default_value_t = TwinKind::Meters)]
        kind: TwinKind,
    },
    /// List all twins
    List,
}

/// What a twin is about.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum TwinKind {
    /// A utility's meters
    Meters,
    /// Homes with sensors
    Homes,
}

/// Runs `fulmar twin`.
pub(crate) fn twin(args: &TwinArgs) -> anyhow::Result<()> {
    let admin = args.folder.open()?;
    match &args.action {
        TwinAction::Add { id, name, kind } => {
            Ok(admin.add_twin(id, name.as_deref(), *kind == TwinKind::Homes)?)
        }
        TwinAction::List => {
            for (id, name) in admin.twins()? {
                println!("{id}\t{name}");
            }
            Ok(())
        }
    }
}

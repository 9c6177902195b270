//! `fulmar ctl users` and `fulmar ctl tokens`.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use fulmar_command::password::{FIRST_USER, ask_new};
use http::Method;
use serde_json::{Value, json};

use crate::api::{Api, encode};
use crate::duration;
use crate::groups::{joined, split};
use crate::list::{self, ListArgs};
use crate::table::{self, Column, name_of, plain};

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Role {
    /// Sees clients, sessions, topics and rules
    Viewer,
    /// Also disconnects, bans, deletes, and reads messages
    Operator,
    /// Everything
    Administrator,
}

/// Permissions of a user for topics.
#[derive(clap::Args, Debug)]
pub(crate) struct AccessArgs {
    /// All its groups, separated by commas; "" for none
    #[arg(long, value_name = "GROUPS")]
    groups: Option<String>,
    /// All its own roles for topics, separated by commas; "" for none
    #[arg(long, value_name = "ROLES")]
    topic_roles: Option<String>,
    /// The only client identifier with which it may connect; "" for any
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
}

impl AccessArgs {
    /// Prints what changes if this makes somebody the broker's first user who is not only for administration.
    async fn announce(&self, api: &Api, administers: bool) -> anyhow::Result<()> {
        let has =
            |list: &Option<String>| list.as_deref().is_some_and(|list| !split(list).is_empty());
        let only_administers = administers && !has(&self.groups) && !has(&self.topic_roles);
        if !only_administers && api.get("/users?limit=1").await?["admits_unknown_names"] == true {
            eprintln!("{FIRST_USER}");
        }
        Ok(())
    }

    /// Adds what is given to a request.
    fn add_to(&self, request: &mut Value) {
        for (field, list) in [("groups", &self.groups), ("roles", &self.topic_roles)] {
            if let Some(list) = list {
                request[field] = json!(split(list));
            }
        }
        if let Some(id) = &self.client_id {
            request["client_id"] = id.as_str().into();
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List users
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Add a user; the password comes from the terminal, or is the first line of standard input
    Add {
        /// User
        name: String,
        /// Role in administration [default: none]
        #[arg(long, value_enum)]
        role: Option<Role>,
        #[command(flatten)]
        access: AccessArgs,
    },
    /// Show a user
    Show {
        /// User
        name: String,
    },
    /// Change a user's groups and roles for topics, at once also for connected clients
    Change {
        /// User
        name: String,
        #[command(flatten)]
        access: AccessArgs,
        /// Let the user log in again
        #[arg(long, conflicts_with = "disable")]
        enable: bool,
        /// Disconnect the user, who cannot log in any longer
        #[arg(long)]
        disable: bool,
    },
    /// Change a user's role in administration
    Role {
        /// User
        name: String,
        /// New role
        #[arg(long, value_enum)]
        role: Role,
    },
    /// Change a user's password, which comes from the terminal, or is the first line of standard input
    Passwd {
        /// User
        name: String,
    },
    /// Remove a user
    Remove {
        /// User
        name: String,
        /// Do not refuse the name from then on, also if the user was removed before
        #[arg(long)]
        forget: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tokens {
    /// List tokens
    List,
    /// Make a token
    Add {
        /// Name, which the log of changes shows
        name: String,
        /// Role, which decides what the token may do
        #[arg(long, value_enum)]
        role: Role,
        /// Validity: a number with s, m, h or d [default: for ever]
        #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
        time: Option<u64>,
        /// File for the token, which only its owner can read [default: standard output]
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Revoke a token
    Remove {
        /// Name
        name: String,
    },
}

const USERS: &[Column] = &[
    ("USER", |user| plain(&user["name"])),
    ("ADMINISTRATION", |user| plain(&user["administration"])),
    ("DISABLED", |user| plain(&user["disabled"])),
    ("GROUPS", |user| joined(&user["groups"])),
    ("ROLES", |user| joined(&user["roles"])),
];

const TOKENS: &[Column] = &[
    ("NAME", |token| plain(&token["name"])),
    ("ROLE", |token| plain(&token["role"])),
    ("CREATED", |token| table::time(token["created_ms"].as_u64().unwrap_or(0))),
    ("EXPIRES", |token| token["expires_ms"].as_u64().map_or_else(String::new, table::time)),
];

async fn change(api: &Api, name: &str, change: Value) -> anyhow::Result<()> {
    let path = format!("/users/{}", encode(name));
    api.change(Method::PATCH, &path, Some(&change), "changed").await
}

pub(crate) async fn run(api: &Api, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::List { list } => list::print(api, "/users", "users", [], list, USERS).await,
        Command::Add { name, role, access } => {
            access.announce(api, role.is_some()).await?;
            let role = role.as_ref().map(name_of);
            let mut user = json!({ "name": name, "password": ask_new()?, "administration": role });
            access.add_to(&mut user);
            api.change(Method::POST, "/users", Some(&user), "added").await
        }
        Command::Show { name } => api.print_object("/users", name).await,
        Command::Change { name, access, enable, disable } => {
            access.announce(api, true).await?;
            let mut user = json!({});
            access.add_to(&mut user);
            if *enable || *disable {
                user["disabled"] = (*disable).into();
            }
            change(api, name, user).await
        }
        Command::Role { name, role } => {
            change(api, name, json!({ "administration": name_of(role) })).await
        }
        Command::Passwd { name } => change(api, name, json!({ "password": ask_new()? })).await,
        Command::Remove { name, forget } => {
            let path = format!("/users/{}?forget={forget}", encode(name));
            api.change(Method::DELETE, &path, None, "removed").await
        }
    }
}

pub(crate) async fn tokens(api: &Api, command: &Tokens) -> anyhow::Result<()> {
    match command {
        Tokens::List => {
            let tokens = api.get("/tokens").await?;
            api.print(&tokens["tokens"], |tokens| table::rows(tokens, TOKENS));
        }
        Tokens::Add { name, role, time, file } => {
            // Before the token is made: nobody could use it without the file.
            let mut options = std::fs::OpenOptions::new();
            let mut to = match file {
                Some(path) => {
                    let open = options.write(true).create_new(true).mode(0o600).open(path);
                    Some(open.with_context(|| path.display().to_string())?)
                }
                None => None,
            };
            let token = json!({ "name": name, "role": name_of(role), "for_s": time });
            let made = api.send(Method::POST, "/tokens", Some(&token)).await;
            if let (Err(_), Some(path)) = (&made, file) {
                std::fs::remove_file(path)?;
            }
            let made = made?;
            match &mut to {
                Some(to) => writeln!(to, "{}", plain(&made["token"]))?,
                None => api.print(&made, |made| println!("{}", plain(&made["token"]))),
            }
        }
        Tokens::Remove { name } => api.remove("/tokens", name, "revoked").await?,
    }
    Ok(())
}

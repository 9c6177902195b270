//! `fulmar ctl groups` and `fulmar ctl roles`.

use clap::{Subcommand, ValueEnum};
use http::Method;
use serde_json::{Value, json};

use crate::api::{Api, encode};
use crate::list::{self, ListArgs};
use crate::table::{self, Column, name_of, plain};

#[derive(Debug, Subcommand)]
pub(crate) enum Groups {
    /// List groups
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show a group with its users
    Show {
        /// Group
        name: String,
    },
    /// Add a group
    Add {
        /// Group
        name: String,
        /// Roles for topics, separated by commas
        #[arg(long, value_name = "ROLES", value_delimiter = ',')]
        topic_roles: Vec<String>,
    },
    /// Change a group's roles and users, at once also for connected clients
    Change {
        /// Group
        name: String,
        /// All its roles for topics, separated by commas; "" for none
        #[arg(long, value_name = "ROLES")]
        topic_roles: Option<String>,
        /// All its users, separated by commas; "" for none
        #[arg(long, value_name = "USERS")]
        members: Option<String>,
    },
    /// Remove a group; its users stay
    Remove {
        /// Group
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Roles {
    /// List roles
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show a role with its rules
    Show {
        /// Role
        name: String,
    },
    /// Add a role without rules
    Add {
        /// Role
        name: String,
    },
    /// Add a rule that allows something, at once also for connected clients
    Allow(RuleArgs),
    /// Add a rule that denies something, at once also for connected clients
    Deny(RuleArgs),
    /// Remove a rule
    Unset {
        #[command(flatten)]
        which: WhichRule,
    },
    /// Remove a role; users and groups lose it
    Remove {
        /// Role
        name: String,
    },
}

/// A rule.
#[derive(clap::Args, Debug)]
pub(crate) struct RuleArgs {
    #[command(flatten)]
    which: WhichRule,
    /// Priority: of a role's matching rules for one action, the one with the highest decides
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
}

/// Identification of a rule.
#[derive(clap::Args, Debug)]
pub(crate) struct WhichRule {
    /// Role
    name: String,
    /// Action that the rule is about
    #[arg(value_enum)]
    action: Action,
    /// Topic filter; %u and %c stand for the user and the client identifier
    topic: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    /// Publish to a topic
    Publish,
    /// Receive what is published to a topic
    Receive,
    /// Subscribe to filters that this one includes
    Subscribe,
    /// Subscribe to exactly this filter
    SubscribeLiteral,
    /// Unsubscribe from filters that this one includes
    Unsubscribe,
    /// Unsubscribe from exactly this filter
    UnsubscribeLiteral,
}

const GROUPS: &[Column] = &[
    ("GROUP", |group| plain(&group["name"])),
    ("USERS", |group| plain(&group["size"])),
    ("ROLES", |group| joined(&group["roles"])),
];

const ROLES: &[Column] = &[
    ("ROLE", |role| plain(&role["name"])),
    ("RULES", |role| role["rules"].as_array().map_or(0, Vec::len).to_string()),
];

/// A list of names.
pub(crate) fn joined(names: &Value) -> String {
    let names = names.as_array().into_iter().flatten();
    names.map(plain).collect::<Vec<_>>().join(",")
}

/// The names of a list that commas separate.
pub(crate) fn split(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect()
}

pub(crate) async fn groups(api: &Api, command: &Groups) -> anyhow::Result<()> {
    match command {
        Groups::List { list } => list::print(api, "/groups", "groups", [], list, GROUPS).await,
        Groups::Show { name } => api.print_object("/groups", name).await,
        Groups::Add { name, topic_roles } => {
            let group = json!({ "name": name, "roles": topic_roles });
            api.change(Method::POST, "/groups", Some(&group), "added").await
        }
        Groups::Change { name, topic_roles, members } => {
            let mut change = json!({});
            for (field, list) in [("roles", topic_roles), ("members", members)] {
                if let Some(list) = list {
                    change[field] = json!(split(list));
                }
            }
            api.change(
                Method::PATCH,
                &format!("/groups/{}", encode(name)),
                Some(&change),
                "changed",
            )
            .await
        }
        Groups::Remove { name } => api.remove("/groups", name, "removed").await,
    }
}

async fn add_rule(api: &Api, args: &RuleArgs, allow: bool) -> anyhow::Result<()> {
    let RuleArgs { which: WhichRule { name, action, topic }, priority } = args;
    let rule =
        json!({ "action": name_of(action), "topic": topic, "allow": allow, "priority": priority });
    api.change(Method::POST, &format!("/roles/{}/rules", encode(name)), Some(&rule), "added").await
}

pub(crate) async fn roles(api: &Api, command: &Roles) -> anyhow::Result<()> {
    match command {
        Roles::List { list } => list::print(api, "/roles", "roles", [], list, ROLES).await,
        Roles::Show { name } => {
            let role = api.get(&format!("/roles/{}", encode(name))).await?;
            api.print(&role, |role| {
                for rule in role["rules"].as_array().into_iter().flatten() {
                    let verb = if rule["allow"] == true { "allow" } else { "deny" };
                    let action = plain(&rule["action"]).replace('_', "-");
                    let topic = table::printable(&plain(&rule["topic"]));
                    println!("{verb} {action} {topic} (priority {})", rule["priority"]);
                }
            });
            Ok(())
        }
        Roles::Add { name } => {
            api.change(Method::POST, "/roles", Some(&json!({ "name": name })), "added").await
        }
        Roles::Allow(args) => add_rule(api, args, true).await,
        Roles::Deny(args) => add_rule(api, args, false).await,
        Roles::Unset { which: WhichRule { name, action, topic } } => {
            let (action, topic) = (name_of(action), encode(topic));
            let path = format!("/roles/{}/rules?action={action}&topic={topic}", encode(name));
            api.change(Method::DELETE, &path, None, "removed").await
        }
        Roles::Remove { name } => api.remove("/roles", name, "removed").await,
    }
}

//! `fulmar ctl sessions` and `fulmar ctl retained`.

use clap::Subcommand;

use crate::api::Api;
use crate::list::{self, ListArgs, OwnerArgs};
use crate::table::{self, Column, plain};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List sessions, connected or not
    List {
        #[command(flatten)]
        owner: OwnerArgs,
        /// Only sessions whose client is not connected
        #[arg(long)]
        disconnected: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show one session with its subscriptions and flows
    Show {
        /// Client identifier
        client: String,
    },
    /// Delete a session and the messages in its queue
    Delete {
        /// Client identifier
        client: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Retained {
    /// List retained messages
    List {
        /// Only topics that match this filter
        #[arg(default_value = "#")]
        filter: String,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show a retained message
    Show {
        /// Topic
        topic: String,
    },
    /// Delete a retained message
    Delete {
        /// Topic
        topic: String,
    },
}

const SESSIONS: &[Column] = &[
    ("CLIENT", |session| plain(&session["client"])),
    ("USER", |session| plain(&session["user"])),
    ("CONNECTED", |session| plain(&session["connected"])),
    ("SUBSCRIPTIONS", |session| plain(&session["subscriptions"])),
    ("QUEUED", |session| plain(&session["queued_messages"])),
    ("IN FLIGHT", |session| plain(&session["in_flight"])),
    ("EXPIRES", |session| session["expires_ms"].as_u64().map_or_else(String::new, table::time)),
];

const MESSAGES: &[Column] = &[
    ("TOPIC", |message| plain(&message["topic"])),
    ("QOS", |message| plain(&message["qos"])),
    ("BYTES", |message| plain(&message["payload_bytes"])),
];

pub(crate) async fn run(api: &Api, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::List { owner, disconnected, list } => {
            let connected = disconnected.then(|| false.to_string());
            let parameters = owner.parameters().into_iter().chain([("connected", connected)]);
            list::print(api, "/sessions", "sessions", parameters, list, SESSIONS).await
        }
        Command::Show { client } => api.print_object("/sessions", client).await,
        Command::Delete { client } => api.remove("/sessions", client, "deleted").await,
    }
}

pub(crate) async fn retained(api: &Api, command: &Retained) -> anyhow::Result<()> {
    match command {
        Retained::List { filter, list } => {
            let parameters = [("filter", Some(filter.clone()))];
            list::print(api, "/retained", "messages", parameters, list, MESSAGES).await
        }
        Retained::Show { topic } => api.print_object("/retained", topic).await,
        Retained::Delete { topic } => api.remove("/retained", topic, "deleted").await,
    }
}

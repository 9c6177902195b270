//! `fulmar ctl clients`.

use clap::Subcommand;
use serde_json::Value;

use crate::api::Api;
use crate::bans;
use crate::list::{self, ListArgs, OwnerArgs};
use crate::table::{Column, plain};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List connected clients
    List {
        /// Only clients whose identifier begins with this
        #[arg(long, value_name = "PREFIX")]
        client: Option<String>,
        #[command(flatten)]
        owner: OwnerArgs,
        /// Only clients with this transport, such as quic
        #[arg(long, value_name = "NAME")]
        transport: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show one client, with the statistics of its path
    Show {
        /// Client identifier
        client: String,
    },
    /// Ban a client, a user or a network for a time
    Ban(bans::BanArgs),
    /// List bans
    Bans,
    /// Lift a ban
    Unban {
        /// Number of the ban
        number: String,
    },
    /// Disconnect a client; it may connect again
    Disconnect {
        /// Client identifier
        client: String,
    },
}

const COLUMNS: &[Column] = &[
    ("CLIENT", |client| plain(&client["client"])),
    ("USER", |client| plain(&client["user"])),
    ("ADDRESS", |client| plain(&client["address"])),
    ("TRANSPORT", |client| plain(&client["transport"])),
    ("RTT", |client| milliseconds(&client["path"]["rtt_us"])),
    ("LOSS", |client| percent(&client["path"]["loss"])),
    ("MOVED", |client| plain(&client["path"]["migrations"])),
    ("0-RTT", |client| yes(&client["path"]["early_data"])),
    ("QUEUED", |client| plain(&client["queued_messages"])),
    ("WAITS FOR", |client| plain(&client["waiting"]["cause"])),
    ("SUBSCRIPTIONS", |client| plain(&client["subscriptions"])),
];

fn milliseconds(us: &Value) -> String {
    us.as_f64().map_or_else(String::new, |us| format!("{:.1} ms", us / 1000.0))
}

fn percent(share: &Value) -> String {
    share.as_f64().map_or_else(String::new, |share| format!("{:.1} %", share * 100.0))
}

fn yes(value: &Value) -> String {
    value.as_bool().map_or("", |yes| if yes { "yes" } else { "no" }).to_owned()
}

pub(crate) async fn run(api: &Api, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::List { client, owner, transport, list } => {
            let own = [("client", client.clone()), ("transport", transport.clone())];
            let parameters = own.into_iter().chain(owner.parameters());
            list::print(api, "/clients", "clients", parameters, list, COLUMNS).await
        }
        Command::Show { client } => api.print_object("/clients", client).await,
        Command::Ban(args) => bans::add(api, args).await,
        Command::Bans => bans::list(api).await,
        Command::Unban { number } => bans::lift(api, number).await,
        Command::Disconnect { client } => {
            api.remove("/clients", client, &format!("{client} gets disconnected")).await
        }
    }
}

//! `fulmar ctl clients`.

use clap::Subcommand;
use http::Method;
use serde_json::Value;

use crate::api::{Api, encode};
use crate::bans;
use crate::table::{self, Column, plain};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List connected clients
    List {
        /// Only clients whose identifier begins with this
        #[arg(long, value_name = "PREFIX")]
        client: Option<String>,
        /// Only clients of this user; "" for anonymous clients
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
        /// Only clients with this transport, such as quic
        #[arg(long, value_name = "NAME")]
        transport: Option<String>,
        /// Only clients with at least this number of queued messages
        #[arg(long, value_name = "MESSAGES")]
        queued: Option<usize>,
        /// Maximum number of clients
        #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
        most: usize,
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
        Command::List { client, user, transport, queued, most } => {
            let given = [("client", client), ("user", user), ("transport", transport)];
            let mut query: Vec<String> = given
                .iter()
                .filter_map(|(name, value)| Some(format!("{name}={}", encode(value.as_ref()?))))
                .collect();
            query.extend(queued.map(|queued| format!("queued={queued}")));
            let path = format!("/clients?{}", query.join("&"));
            let clients = api.pages(&path, "clients", *most).await?;
            api.print(&clients, |clients| table::rows(clients, COLUMNS));
        }
        Command::Show { client } => {
            let client = api.get(&format!("/clients/{}", encode(client))).await?;
            api.print(&client, table::fields);
        }
        Command::Ban(args) => bans::add(api, args).await?,
        Command::Bans => bans::list(api).await?,
        Command::Unban { number } => bans::lift(api, number).await?,
        Command::Disconnect { client } => {
            api.send(Method::DELETE, &format!("/clients/{}", encode(client)), None).await?;
            api.done(&format!("{client} gets disconnected"));
        }
    }
    Ok(())
}

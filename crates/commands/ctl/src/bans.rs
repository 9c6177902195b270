//! `fulmar ctl clients ban`, `bans` and `unban`.

use fulmar_command::exit::Usage;
use http::Method;
use serde_json::json;

use crate::api::Api;
use crate::duration;
use crate::table::{self, Column, plain};

/// Whom to ban, and for how long.
#[derive(clap::Args, Debug)]
pub(crate) struct BanArgs {
    #[command(flatten)]
    whom: Whom,
    /// Duration: a number with s, m, h or d
    #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
    time: u64,
    /// Why; for other administrators
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

/// Whom to ban.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct Whom {
    /// Client identifier
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// User
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Address, or network as ADDRESS/BITS
    #[arg(long, value_name = "NETWORK")]
    network: Option<String>,
}

const COLUMNS: &[Column] = &[
    ("NUMBER", |ban| plain(&ban["id"])),
    ("WHOM", |ban| format!("{} {}", plain(&ban["kind"]), plain(&ban["value"]))),
    ("UNTIL", |ban| table::time(ban["until_ms"].as_u64().unwrap_or(0))),
    ("BY", |ban| plain(&ban["created_by"])),
    ("REASON", |ban| plain(&ban["reason"])),
];

pub(crate) async fn add(api: &Api, args: &BanArgs) -> anyhow::Result<()> {
    let mut ban = json!({ "for_s": args.time, "reason": args.reason });
    let Whom { client, user, network } = &args.whom;
    let whom = [("client", client), ("user", user), ("network", network)];
    for (kind, value) in whom {
        if let Some(value) = value {
            ban[kind] = value.as_str().into();
        }
    }
    let added = api.send(Method::POST, "/bans", Some(&ban)).await?;
    api.print(&added, |added| {
        println!("ban {}; `fulmar ctl clients unban {}` lifts it", added["id"], added["id"]);
    });
    Ok(())
}

pub(crate) async fn list(api: &Api) -> anyhow::Result<()> {
    let bans = api.get("/bans").await?;
    api.print(&bans["bans"], |bans| table::rows(bans, COLUMNS));
    Ok(())
}

pub(crate) async fn lift(api: &Api, number: &str) -> anyhow::Result<()> {
    let number: u64 = number.parse().map_err(|_| {
        Usage(format!(
            "{number:?} is not the number of a ban; `fulmar ctl clients bans` lists them"
        ))
    })?;
    api.remove("/bans", &number.to_string(), "lifted").await
}

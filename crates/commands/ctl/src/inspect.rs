//! `fulmar ctl explain`, `tap` and `log`: why, what, and in more detail.

use std::io::Write as _;

use anyhow::Context as _;
use clap::ValueEnum;
use fulmar_command::terminal;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::api::{Api, encode};
use crate::duration;
use crate::table::{self, name_of, plain, printable};

/// Why a client may or may not do something.
#[derive(clap::Args, Debug)]
pub(crate) struct ExplainArgs {
    /// Action of the client
    #[arg(value_enum)]
    action: Action,
    /// Topic; for subscribe, a filter
    topic: String,
    /// Client identifier
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// User [default: that of the client's session, otherwise anonymous]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Address of the client, for bans of networks and limits per address [default: the connected client's]
    #[arg(long, value_name = "IP")]
    address: Option<std::net::IpAddr>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    /// Publish to a topic
    Publish,
    /// Subscribe to a filter
    Subscribe,
    /// Receive what is published to a topic
    Receive,
}

/// Filter and duration of a tap.
#[derive(clap::Args, Debug)]
pub(crate) struct TapArgs {
    /// Topic filter
    filter: String,
    /// Duration: a number with s, m, h or d, at most an hour
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = duration::parse)]
    time: u64,
}

/// Filter for the log, and its duration.
#[derive(clap::Args, Debug)]
pub(crate) struct LogArgs {
    /// Level or filter, such as debug or info,fulmar_broker=debug [default: show the present one]
    filter: Option<String>,
    /// Duration: a number with s, m, h or d, at most a day
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = duration::parse)]
    time: u64,
}

pub(crate) async fn explain(api: &Api, args: &ExplainArgs) -> anyhow::Result<()> {
    let mut path =
        format!("/explain?action={}&topic={}", name_of(&args.action), encode(&args.topic));
    for (name, value) in [("client", &args.client), ("user", &args.user)] {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", encode(value)));
        }
    }
    if let Some(address) = args.address {
        path.push_str(&format!("&address={}", encode(&address.to_string())));
    }
    let decision = api.get(&path).await?;
    api.print(&decision, |decision| {
        let verdict = if decision["allowed"] == true { "allowed" } else { "denied" };
        let user = decision["user"].as_str().unwrap_or("an anonymous client");
        println!("{verdict} for {}: {}", printable(user), printable(&plain(&decision["because"])));
        if let Some(rule) = decision["rule"].as_str() {
            println!("rule: {}", printable(rule));
        }
        for note in decision["notes"].as_array().into_iter().flatten() {
            println!("note: {}", printable(&plain(note)));
        }
    });
    Ok(())
}

pub(crate) async fn tap(api: &Api, args: &TapArgs) -> anyhow::Result<()> {
    let path = format!("/tap?filter={}&for_s={}", encode(&args.filter), args.time);
    let mut body = api.begin(Method::GET, &path, None).await?.into_body();
    let mut unread = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the server ended the tap")?;
        let Some(data) = frame.data_ref() else { continue };
        unread.extend_from_slice(data);
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            print_message(api, &line)?;
        }
    }
    Ok(())
}

fn print_message(api: &Api, line: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if api.wants_json() {
        out.write_all(terminal::json(String::from_utf8_lossy(line).into_owned()).as_bytes())?;
    } else {
        let message: Value = serde_json::from_slice(line).context("not a message")?;
        if let Some(dropped) = message["dropped"].as_u64() {
            eprintln!("fulmar: {dropped} messages were dropped because this is too slow");
        }
        let payload = match message["payload"].as_str() {
            Some(text) => printable(text),
            None => format!("({} bytes)", message["payload_bytes"]),
        };
        writeln!(out, "{} {payload}", printable(&plain(&message["topic"])))?;
    }
    Ok(out.flush()?)
}

pub(crate) async fn log(api: &Api, args: &LogArgs) -> anyhow::Result<()> {
    let log = match &args.filter {
        None => api.get("/log").await?,
        Some(filter) => {
            let body = json!({ "filter": filter, "for_s": args.time });
            api.send(Method::PUT, "/log", Some(&body)).await?
        }
    };
    api.print(&log, table::fields);
    Ok(())
}

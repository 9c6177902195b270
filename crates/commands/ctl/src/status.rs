//! `fulmar ctl status`: one screen with the verdict on the broker's health and the numbers behind it.

use serde_json::Value;

use crate::api::Api;
use crate::table::{self, plain, printable};

const MINUTE_MS: u64 = 60_000;

pub(crate) async fn run(api: &Api) -> anyhow::Result<()> {
    let status = api.get("/overview").await?;
    let history = if api.wants_json() { Value::Null } else { api.get("/history").await? };
    api.print(&status, |status| {
        for (name, text) in lines(status, &history) {
            println!("{name:<11}  {}", printable(&text));
        }
    });
    Ok(())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn time(ms: u64) -> String {
    let minutes = ms / MINUTE_MS;
    if minutes < 120 { format!("{minutes} min") } else { format!("{} h", minutes / 60) }
}

/// The use of the fullest part of a budget.
fn fullest(accounts: &Value) -> String {
    let parts = list(accounts).filter(|one| number(&one["limit_bytes"]) > 0).map(|one| {
        let percent =
            100.0 * number(&one["used_bytes"]) as f64 / number(&one["limit_bytes"]) as f64;
        (percent, plain(&one["account"]))
    });
    let fullest = parts.max_by(|one, other| one.0.total_cmp(&other.0));
    fullest.map_or_else(String::new, |(percent, part)| format!("{percent:.0} % ({part})"))
}

/// Per second over the last minute, or since the broker started.
fn rate(history: &Value, counter: &str) -> String {
    let times: Vec<u64> = list(&history["at_ms"]).map(number).collect();
    let newest = times.last().copied().unwrap_or(0);
    let from = times.iter().position(|at| at + MINUTE_MS >= newest).unwrap_or(0);
    let of = |at: usize| number(&history[counter][at]);
    let ms = newest - times.get(from).copied().unwrap_or(newest);
    let count = of(times.len().saturating_sub(1)).saturating_sub(of(from));
    format!("{:.1}/s", count as f64 * 1000.0 / ms.max(1) as f64)
}

fn lines(status: &Value, history: &Value) -> Vec<(&'static str, String)> {
    let (now, server) = (number(&status["now_ms"]), &status["server"]);
    let counter =
        |names: &[&str]| names.iter().map(|name| number(&status["counters"][*name])).sum::<u64>();
    let verdict = match status["health"]["verdict"].as_str() {
        Some("good") => "good",
        Some("warn") => "needs attention",
        _ => "BAD",
    };
    let up = time(now.saturating_sub(number(&status["started_ms"])));
    let by_transport = status["connections"].as_object().into_iter().flatten();
    let by_transport: Vec<_> = by_transport.map(|(name, count)| (number(count), name)).collect();
    let clients: u64 = by_transport.iter().map(|(count, _)| count).sum();
    let parts = by_transport.iter().map(|(count, name)| format!(", {count} {name}"));
    let (received, sent) = (rate(history, "messages_received"), rate(history, "messages_sent"));
    let dropped =
        counter(&["messages_dropped_qos0", "messages_dropped_queue", "messages_dropped_size"]);
    let queues = list(&status["quality"]["transports"]);
    let waiting: u64 = queues.map(|one| number(&one["queued_messages"])).sum();
    let logins = counter(&["authentication_failed", "logins_busy"]);
    let connections = counter(&["connections_refused", "connections_too_fast"]);
    let [resident, free] =
        ["resident_bytes", "disk_free_bytes"].map(|field| number(&server[field]) >> 20);
    let mut lines = vec![("health", verdict.to_owned())];
    lines.extend(list(&status["health"]["reasons"]).map(|reason| ("", plain(&reason["text"]))));
    lines.extend([
        ("version", format!("{}, running for {up}", plain(&status["version"]))),
        ("clients", format!("{clients} connected{}", parts.collect::<String>())),
        ("sessions", format!("{}, subscriptions: {}", status["sessions"], status["subscriptions"])),
        (
            "messages",
            format!("{received} received, {sent} sent; {dropped} dropped since the start"),
        ),
        (
            "waiting",
            format!("{waiting} for connected clients, {} for the disk", status["storage_backlog"]),
        ),
        (
            "refused",
            format!(
                "logins: {logins}, connections: {connections}, by rules: {}",
                counter(&["access_denied"])
            ),
        ),
        (
            "memory",
            format!("{} of [limits] memory, {} MiB resident", fullest(&status["memory"]), resident),
        ),
        ("disk", format!("{} of [limits] disk, {} MiB free", fullest(&server["disk"]), free)),
    ]);
    lines.extend(list(&server["certificates"]).map(|one| {
        let days = number(&one["expires_ms"]).saturating_sub(now) / (1440 * MINUTE_MS);
        ("certificate", format!("{}: {days} days left", plain(&one["name"])))
    }));
    lines.extend(list(&server["upstreams"]).map(|one| ("upstream", upstream(one))));
    lines
}

fn upstream(one: &Value) -> String {
    let name = one["name"].as_str().map_or_else(String::new, |name| format!("{name}: "));
    let state = match (one["transport"].as_str(), one["down_since_ms"].as_u64()) {
        (Some(transport), _) => format!("connected by {transport}"),
        (None, Some(since)) => format!("not connected since {}", table::time(since)),
        (None, None) => "not connected yet".to_owned(),
    };
    let why = one["down_reason"].as_str().map_or_else(String::new, |why| format!(": {why}"));
    format!("{name}{state}{why}; {} messages in the outbox", one["queued_messages"])
}

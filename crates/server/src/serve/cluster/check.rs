//! What can be wrong with a node's folder or with the NATS servers, and is found before anything is changed.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use fulmar_identity::{FILE as IDENTITIES, Store};
use fulmar_store::Follower;

use super::membership;
use super::platform_copy;
use super::replica::DATABASE;
use crate::exit::Usage;
use fulmar_config::{Cluster, Config};
use fulmar_part::shared_rows::Database;

/// For a monitoring port.
const PATIENCE: Duration = Duration::from_secs(3);
/// Largest answer of one in bytes.
const MAX_ANSWER: u64 = 1 << 20;

/// Checks the data folder.
///
/// # Errors
/// It has state that would stay on this machine.
pub(super) fn local(data: &Path) -> anyhow::Result<()> {
    if !membership::is_member(data) && Store::has_clients(&data.join(IDENTITIES)) {
        return Err(Usage(format!(
            "{} has users of a broker alone. To make them the cluster's: fulmar cluster init. To join a cluster, which has \
             users of its own, use an empty data folder",
            data.join(IDENTITIES).display()
        ))
        .into());
    }
    if data.join(DATABASE).exists() && !membership::is_member(data) {
        return Err(Usage(format!(
            "{} has sessions and messages of a broker alone. To make them the cluster's: fulmar cluster init. To join \
             a cluster, use an empty data folder",
            data.display()
        ))
        .into());
    }
    Ok(())
}

/// Checks that somebody can log in.
///
/// # Errors
/// Nobody can.
pub(super) fn users(config: &Config, follower: &mut Follower) -> anyhow::Result<()> {
    if !follower.rows(Database::Identities as u8)?.is_empty()
        || platform_copy::may_have_users(config, follower)?
    {
        return Ok(());
    }
    if config.needs_user() {
        return Err(Usage(
            "nobody could log in at this node: before `fulmar cluster init`, create a user with `fulmar user add NAME \
             --admin` and the node's --config; or set [auth] password_file, jwt_key_file, [auth.http], or [tls] \
             client_auth, the same at each node"
                .to_owned(),
        )
        .into());
    }
    Ok(config.check_ways_in()?)
}

/// Asks the monitoring ports whether each server writes messages to its disk before it acknowledges them. An ordinary
/// client cannot see that.
///
/// # Errors
/// A server does not. A port without an answer is logged.
pub(super) fn sync_always(cluster: &Cluster) -> anyhow::Result<()> {
    if cluster.monitoring.is_empty() && !cluster.development {
        tracing::warn!(
            "whether the NATS servers have `sync_interval: always` is not known: set [cluster] monitoring"
        );
    }
    for address in &cluster.monitoring {
        match get(address) {
            Ok(answer) => judge(address, &answer)?,
            // A node must start although a server is down.
            Err(error) => {
                tracing::warn!(address, "[cluster] monitoring: not checked: {error:#}");
            }
        }
    }
    Ok(())
}

fn judge(address: &str, answer: &serde_json::Value) -> Result<(), Usage> {
    let config = &answer["jetstream"]["config"];
    let what = if config.is_null() {
        "has no JetStream: enable it in its configuration"
    } else if config["sync_always"] != true {
        "acknowledges messages before they are on its disk, so that a power cut loses them: set `sync_interval: always` \
         in its `jetstream` block and restart it"
    } else {
        return Ok(());
    };
    let name = answer["server_name"].as_str().unwrap_or_default();
    Err(Usage(format!("the NATS server {name} (monitoring port {address}) {what}")))
}

/// `GET /varz`, with HTTP/1.0: one request, and the connection ends.
fn get(address: &str) -> anyhow::Result<serde_json::Value> {
    let uri: http::Uri = address.parse()?;
    let host = uri.host().unwrap_or_default();
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let found = (name, uri.port_u16().unwrap_or(8222)).to_socket_addrs()?.next();
    let mut stream = TcpStream::connect_timeout(&found.context("unknown host")?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET /varz HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|part| part == b"\r\n\r\n").context("no HTTP answer")?;
    let status = answer.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(1..5));
    anyhow::ensure!(status == Some(b" 200"), "no answer 200");
    serde_json::from_slice(&answer[end + 4..]).context("no JSON")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn servers_without_fsync_or_jetstream_are_refused() {
        let with = |config: serde_json::Value| {
            let answer = serde_json::json!({"server_name": "n1", "jetstream": {"config": config}});
            judge("http://a:8222", &answer).map_err(|error| error.0)
        };
        with(serde_json::json!({"sync_always": true})).unwrap();
        let error = with(serde_json::json!({"sync_interval": 120_000_000_000_u64})).unwrap_err();
        assert!(error.contains("n1") && error.contains("sync_interval: always"), "{error}");
        let error = with(serde_json::Value::Null).unwrap_err();
        assert!(error.contains("no JetStream"), "{error}");
    }
}

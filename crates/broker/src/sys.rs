//! `$SYS`: the broker's state as topics, with mosquitto's names for those that mosquitto has.

use fulmar_auth::Timestamp;

use crate::broker::Broker;
use crate::peer::TransportKind;

/// Present only while storage fails.
const STORAGE_FAILURE: &str = "$SYS/broker/storage/failure";

/// Topics and values as of now.
pub(crate) fn values(broker: &Broker, now: Timestamp) -> Vec<(String, String)> {
    let metrics = broker.metrics();
    let (retained, retained_bytes) = broker.retained_totals();
    let mut values = vec![
        ("version".to_owned(), format!("fulmar {}", env!("CARGO_PKG_VERSION"))),
        ("uptime".to_owned(), format!("{} seconds", now.since(broker.started()).as_secs())),
        ("clients/connected".to_owned(), metrics.connections().to_string()),
        ("clients/total".to_owned(), broker.sessions().to_string()),
        ("subscriptions/count".to_owned(), broker.subscriptions().to_string()),
        ("retained messages/count".to_owned(), retained.to_string()),
        ("retained messages/bytes".to_owned(), retained_bytes.to_string()),
    ];
    for kind in TransportKind::ALL {
        let open = metrics.sum(|shard| &shard.connections[kind.index()]);
        values.push((format!("clients/connected/{kind}"), open.to_string()));
    }
    for (name, _, value) in metrics.totals() {
        values.push((format!("counters/{name}"), value.to_string()));
    }
    // An empty value removes the retained one.
    let failure = broker.storage_problem().unwrap_or_default();
    if !failure.is_empty() || broker.retained.read().get(STORAGE_FAILURE).is_some() {
        values.push(("storage/failure".to_owned(), failure));
    }
    let prefix = |(name, value)| (format!("$SYS/broker/{name}"), value);
    values.into_iter().map(prefix).collect()
}

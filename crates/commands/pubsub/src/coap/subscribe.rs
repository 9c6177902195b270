//! `fulmar sub coap://…`: observes one resource per topic. The server first sends its last value, and then changes;
//! if the server loses its state, the observation is renewed.

use std::collections::BTreeMap;

use fulmar_client::Message;
use fulmar_coap::{Call, CallId, ClientEvent, Method, Response};

use super::wire::Wire;
use super::{TrustArgs, Url, check};

/// Observes the topics and gives each message to `print`, which says whether that was the last one.
pub(crate) async fn subscribe(
    url: &str,
    given: &TrustArgs,
    topics: &[String],
    mut print: impl FnMut(&Message) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let url = Url::parse(url)?;
    let paths: Vec<_> = topics.iter().map(|topic| url.path(topic)).collect::<Result<_, _>>()?;
    let mut wire = Wire::open(&url, given).await?;
    let mut observed = BTreeMap::new();
    for (topic, path) in topics.iter().zip(paths) {
        let call = Call { observe: true, ..Call::new(Method::Get, path) };
        observed.insert(wire.call(call), topic);
    }
    let outcome = receive(&mut wire, &observed, &mut print).await;
    for id in observed.into_keys() {
        wire.cancel(id).await;
    }
    wire.close().await;
    outcome
}

async fn receive(
    wire: &mut Wire,
    observed: &BTreeMap<CallId, &String>,
    print: &mut impl FnMut(&Message) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let named = |id: &CallId| observed.get(id).map_or("", |topic| topic.as_str());
    loop {
        let (id, response, first) = match wire.event().await? {
            ClientEvent::Response { id, response, observing } => {
                check(named(&id), &response)?;
                anyhow::ensure!(
                    observing,
                    "the server does not allow observing {:?}",
                    observed[&id]
                );
                (id, response, true)
            }
            ClientEvent::Notification { id, response } => {
                check(named(&id), &response)?;
                (id, response, false)
            }
            ClientEvent::Failed { failure, .. } => return Err(failure.into()),
        };
        // A topic without a last value begins with nothing.
        if first && response.payload.is_empty() {
            continue;
        }
        let Some(topic) = observed.get(&id) else { continue };
        if print(&message(topic, &response, first))? {
            return Ok(());
        }
    }
}

/// Message as over MQTT; the first one is what the server kept.
fn message(topic: &str, response: &Response, retained: bool) -> Message {
    let mut message = Message::new(topic, response.payload.to_vec());
    message.retain = retained;
    message
}

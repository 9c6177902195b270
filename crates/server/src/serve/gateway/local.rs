//! The gateway's session with the local broker, inside the process: receives what local devices publish, and publishes
//! messages from upstream.
//!
//! It connects through the same handoff as clients inside HTTP, so that routing, durability and limits are the
//! broker's. Its session is durable: a message that the broker has acknowledged to a device waits in it until the
//! outbox has it on disk, and only then is it acknowledged here.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fulmar_broker::auth::EXTERNAL_USER_PREFIX;
use fulmar_broker::{ListenerPolicy, Peer, TransportKind};
use fulmar_gateway::identity::{self, MessageIdentity, Sent};
use fulmar_gateway::outbox::{Item, Stored};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{MAX_PACKET_BYTES, decode, peek_frame};
use fulmar_mqtt::packet::{
    Ack, Connect, FilterList, Publish, RetainHandling, Subscribe, SubscribeOptions, Unsubscribe,
};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};
use fulmar_transport::{Framing, Handoff};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::dead_letters::{DeadLetter, Way};
use super::downlink_scheduler::{Answer, DownlinkMessage, DownlinkScheduler, Refusal};
use super::metrics::count;
use super::outbox_thread::OutboxHandle;
use super::{Shared, current_refusals, now_ms};

const VERSION: Version = Version::V5;
/// Pause before connecting or writing to the outbox is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// Bytes of one read: messages that arrive together are made durable together, with one fsync.
const READ_BYTES: usize = 64 * 1024;
/// How the session subscribes.
pub(super) const OPTIONS: SubscribeOptions = SubscribeOptions {
    qos: QoS::AtLeastOnce,
    // Messages from upstream are not forwarded back.
    no_local: true,
    retain_as_published: true,
    retain_handling: RetainHandling::Never,
};
/// The name under which the outbox stores the session's filters.
const FILTERS: &str = "filters";

/// Runs until it is stopped, or the broker accepts no more connections.
pub(super) async fn run(
    shared: &Shared,
    outbox: &OutboxHandle,
    mut down: mpsc::Receiver<DownlinkMessage>,
    handoff: &Handoff,
    mut stopped: watch::Receiver<bool>,
) {
    let mut downlink = DownlinkScheduler::default();
    loop {
        let Ok(socket) = handoff.open(peer(), Framing::Bytes) else { return };
        let session = async {
            let stream = UnixStream::from_std(socket)?;
            Session::new(shared, outbox, &mut downlink).run(stream, &mut down).await
        };
        tokio::select! {
            outcome = session => match outcome {
                Ok(()) => tracing::debug!("the gateway's local session was disconnected"),
                Err(error) => tracing::warn!("the gateway's local session: {error}"),
            },
            _ = stopped.wait_for(|stop| *stop) => return,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn peer() -> Peer {
    let listener = ListenerPolicy { name: "gateway".into(), allow_anonymous: false };
    Peer {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        transport: TransportKind::Tcp,
        // The external user without a name is the program itself.
        identity: Some(EXTERNAL_USER_PREFIX.into()),
        listener: Arc::new(listener),
    }
}

/// Received packets that are not handled yet.
#[derive(Default)]
struct Taken {
    items: Vec<Item>,
    acknowledge: Vec<PacketId>,
}

struct Session<'a> {
    shared: &'a Shared,
    outbox: &'a OutboxHandle,
    next_id: PacketId,
    /// CONNACK has arrived. Nothing is published before, because the broker does not send a reason when it ends a
    /// connection before CONNACK.
    is_in: bool,
    downlink: &'a mut DownlinkScheduler,
}

impl<'a> Session<'a> {
    fn new(
        shared: &'a Shared,
        outbox: &'a OutboxHandle,
        downlink: &'a mut DownlinkScheduler,
    ) -> Session<'a> {
        // SUBSCRIBE and UNSUBSCRIBE after CONNECT use 1 and 2.
        let next_id = PacketId::FIRST.next().next();
        Session { shared, outbox, next_id, is_in: false, downlink }
    }

    /// Runs the session until the broker ends the connection.
    async fn run(
        mut self,
        mut stream: UnixStream,
        down: &mut mpsc::Receiver<DownlinkMessage>,
    ) -> std::io::Result<()> {
        let mut ended = None;
        let outcome = self.exchange(&mut stream, down, &mut ended).await;
        if let Some(message) = self.downlink.lost(ended) {
            self.give_up(message, ended.unwrap_or(ReasonCode::UnspecifiedError));
        }
        self.tell();
        outcome
    }

    /// The same; sets `ended` to the broker's reason, if it sends one.
    async fn exchange(
        &mut self,
        stream: &mut UnixStream,
        down: &mut mpsc::Receiver<DownlinkMessage>,
        ended: &mut Option<ReasonCode>,
    ) -> std::io::Result<()> {
        let greeting = self.greeting().await;
        stream.write_all(&greeting).await?;
        let mut input = Vec::new();
        loop {
            let mut output = Vec::new();
            input.reserve(READ_BYTES);
            tokio::select! {
                read = stream.read_buf(&mut input) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    let mut taken = Taken::default();
                    let done = self.take(&input, &mut taken, ended)?;
                    input.drain(..done);
                    self.keep(taken, &mut output).await;
                }
                Some(message) = down.recv(), if self.downlink.has_room() => {
                    self.downlink.push(message);
                }
                () = at(self.downlink.retry_at()) => {
                    self.downlink.retry(Instant::now());
                    self.tell();
                }
            }
            if self.is_in {
                self.publish_all(&mut output);
            }
            stream.write_all(&output).await?;
        }
    }

    /// CONNECT, followed by the packets that make the session's subscriptions match the configuration.
    async fn greeting(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut properties = PropertyBuf::new();
        properties.push(Property::SessionExpiryInterval(u32::MAX));
        let connect = Connect {
            version: VERSION,
            bridge: false,
            clean_start: false,
            keep_alive_s: 0,
            client_id: &self.shared.client_id,
            properties: properties.as_properties(),
            will: None,
            username: None,
            password: None,
        };
        connect.encode(&mut out);
        let filters = self.filters();
        let before = self.outbox.meta(FILTERS).await;
        let stale: Vec<&str> =
            before.split('\n').filter(|old| !old.is_empty() && !filters.contains(old)).collect();
        unsubscribe(&stale, &mut out);
        let before: Vec<&str> = before.split('\n').collect();
        subscribe(&filters, &before, &mut out);
        out
    }

    fn filters(&self) -> Vec<&str> {
        self.shared.filters()
    }

    /// Handles all complete packets; returns their bytes.
    fn take(
        &mut self,
        input: &[u8],
        taken: &mut Taken,
        ended: &mut Option<ReasonCode>,
    ) -> std::io::Result<usize> {
        let wrong = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
        let mut done = 0;
        while let Some(frame) = peek_frame(&input[done..], MAX_PACKET_BYTES).map_err(wrong)? {
            done += frame.len;
            match decode(&frame, VERSION).map_err(wrong)? {
                Packet::Publish(publish) => {
                    taken.acknowledge.extend(publish.packet_id);
                    taken.items.extend(self.item(&publish));
                }
                Packet::Ack(AckKind::Puback, ack) => self.answered(ack.packet_id, ack.reason),
                Packet::Disconnect(goodbye) => *ended = Some(goodbye.reason),
                Packet::Connack(connack) if connack.reason.is_error() => {
                    let text = format!("the broker refused it: {}", connack.reason);
                    return Err(std::io::Error::other(text));
                }
                Packet::Connack(_) => self.is_in = true,
                Packet::Suback(suback) if suback.codes.iter().any(|code| *code >= 0x80) => {
                    return Err(std::io::Error::other("a subscription was refused"));
                }
                // The answer to the last packet after CONNECT: the subscriptions match the configuration now.
                Packet::Suback(_) => self.outbox.set_meta(FILTERS, self.filters().join("\n")),
                _ => {}
            }
        }
        Ok(done)
    }

    /// The message for upstream; `None` if it is not forwarded.
    fn item(&self, publish: &Publish<'_>) -> Option<Item> {
        let shared = self.shared;
        let Some((rule, topic)) = shared.up.map(publish.topic) else {
            // A subscription of an earlier configuration.
            if shared.up.takes(publish.topic) {
                let Publish { topic, payload, properties, .. } = *publish;
                self.outbox.add_dead_letters(vec![DeadLetter::nameless(
                    topic,
                    payload,
                    properties,
                    Way::Refused,
                )]);
            }
            return None;
        };
        let identity = MessageIdentity::read(publish.properties);
        let Some(via) = identity.via_with(&shared.name) else {
            count(&shared.metrics.circles, 1);
            tracing::warn!(topic = publish.topic, "dropped: loop detected");
            return None;
        };
        let now = now_ms();
        let mut properties = identity::onward(publish.properties, &via);
        // The hook does not stamp messages that no client has published directly, such as wills.
        let sent = Sent { client_id: "", packet_id: None, dup: false, topic: &topic, payload: &[] };
        let stamped = shared.stamper.stamp(&identity, &sent, now);
        for property in stamped.as_properties().iter() {
            properties.push(property);
        }
        let stamped = MessageIdentity::read(properties.as_properties());
        let (id, at) =
            (stamped.id.unwrap_or_default().into(), stamped.at.unwrap_or_default().into());
        Some(Item {
            topic,
            payload: publish.payload.to_vec(),
            properties: properties.as_properties().raw().to_vec(),
            qos: rule.qos,
            retain: publish.retain,
            priority: rule.priority,
            id,
            at,
            origin: identity.origin,
            expires_ms: identity.expiry_s.map(|seconds| now + u64::from(seconds) * 1000),
        })
    }

    /// Puts messages into the outbox, trying until it succeeds, then acknowledges them. Nothing is read meanwhile:
    /// messages wait in the broker's queue, and if that is too long, their publishers wait.
    async fn keep(&self, taken: Taken, output: &mut Vec<u8>) {
        let Taken { mut items, acknowledge } = taken;
        let mut most = items.len();
        while !items.is_empty() {
            let part: Vec<Item> = items.drain(..most.clamp(1, items.len())).collect();
            let tried = part.len();
            match self.outbox.put(part).await {
                (_, Ok(put)) => {
                    self.shared.metrics.wake(put.taken);
                    most = tried.saturating_mul(2);
                }
                // There may never be room for all of them at once.
                (back, Err(())) => {
                    items.splice(..0, back);
                    most = tried / 2;
                    if most == 0 {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
        for packet_id in acknowledge {
            let (reason, properties) = (ReasonCode::Success, Properties::NONE);
            Ack { packet_id, reason, properties }.encode(AckKind::Puback, VERSION, output);
        }
    }

    /// Publishes the messages that may be published now.
    fn publish_all(&mut self, output: &mut Vec<u8>) {
        while let Some(message) = self.downlink.next() {
            let packet_id = (message.qos != QoS::AtMostOnce).then_some(self.next_id);
            let publish = Publish {
                dup: false,
                qos: message.qos,
                retain: message.retain,
                topic: &message.topic,
                packet_id,
                properties: message.properties.as_properties(),
                payload: &message.payload,
            };
            publish.encode(VERSION, output);
            match packet_id {
                Some(id) => {
                    self.next_id = id.next();
                    self.downlink.published(id, message);
                }
                // QoS 0: it may get lost, as the rule allows.
                None => drop(message.taken.send(())),
            }
        }
    }

    /// The broker has answered a publication.
    fn answered(&mut self, id: PacketId, reason: ReasonCode) {
        match self.downlink.answered(id, reason, Instant::now(), now_ms()) {
            Answer::Done => return,
            Answer::Never(message) => self.give_up(message, reason),
            Answer::Kept(_, false) => {}
            Answer::Kept(topic, true) => tracing::error!(
                topic, %reason,
                "the local broker refuses a message from upstream: kept upstream and retried; see [limits]"
            ),
            Answer::AcceptedAgain(topic) => {
                tracing::info!(
                    topic,
                    "the local broker accepts messages from upstream on this topic again"
                );
            }
        }
        self.tell();
    }

    /// The local broker can never accept the message: it is logged, counted and dropped, or put into the dead-letter
    /// file.
    fn give_up(&self, message: DownlinkMessage, reason: ReasonCode) {
        tracing::error!(
            topic = message.topic, %reason, bytes = message.payload.len(),
            "dropped: the local broker can never accept this message from upstream"
        );
        let DownlinkMessage { topic, payload, qos, retain, properties, taken } = message;
        let identity = MessageIdentity::read(properties.as_properties());
        let id = identity.id.unwrap_or_default().to_owned();
        let at = identity.at.unwrap_or_default().to_owned();
        let payload = payload.to_vec();
        let message = Stored { topic, payload, qos, retain, id, at, ..Stored::default() };
        self.outbox.add_dead_letters(vec![DeadLetter {
            message,
            reason: reason.text(),
            way: Way::Down(taken),
        }]);
    }

    /// Publishes the present refusals for operators.
    fn tell(&self) {
        let refused = |(topic, refusal): (&String, &Refusal)| current_refusals::Refused {
            what: topic.clone(),
            reason: refusal.reason,
            since_ms: refusal.since_ms,
        };
        self.shared.metrics.refusals.lock().down = self.downlink.refusals().map(refused).collect();
    }
}

/// Waits until this time; for ever if there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Subscribes again, for retained messages of the filters that are not in `before`.
fn subscribe(filters: &[&str], before: &[&str], out: &mut Vec<u8>) {
    let mut list = Vec::new();
    for filter in filters {
        let known = before.contains(filter);
        let retain_handling = if known { RetainHandling::Never } else { RetainHandling::Always };
        let options = SubscribeOptions { retain_handling, ..OPTIONS };
        FilterList::encode_one(&mut list, filter, Some(options));
    }
    if let Ok(filters) = FilterList::from_encoded(&list, true, VERSION) {
        let packet_id = PacketId::FIRST;
        Subscribe { packet_id, properties: Properties::NONE, filters }.encode(VERSION, out);
    }
}

fn unsubscribe(filters: &[&str], out: &mut Vec<u8>) {
    let mut list = Vec::new();
    filters.iter().for_each(|filter| FilterList::encode_one(&mut list, filter, None));
    if let Ok(filters) = FilterList::from_encoded(&list, false, VERSION) {
        let packet_id = PacketId::FIRST.next();
        Unsubscribe { packet_id, properties: Properties::NONE, filters }.encode(VERSION, out);
    }
}

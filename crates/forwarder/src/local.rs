//! The gateway's session with the local broker, inside the process: receives what local devices publish, and publishes
//! messages from upstream.
//!
//! It connects through the same handoff as clients inside HTTP, so that routing, durability and limits are the
//! broker's. Its session is durable: a message that the broker has acknowledged to a device waits in it until the
//! outbox has it on disk, and only then is it acknowledged here.

use std::io::ErrorKind;
use std::time::Duration;

use fulmar_gateway::forward::{self, NotForwarded};
use fulmar_gateway::identity::MessageIdentity;
use fulmar_gateway::outbox::{Item, Stored};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{Connect, Publish, RetainHandling, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Property, PropertyBuf, QoS, ReasonCode};
use fulmar_transport::Handoff;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::current_refusals;
use super::dead_letters::{DeadLetter, Direction};
use super::downlink_scheduler::{Answer, DownlinkMessage, DownlinkScheduler, Refusal};
use super::metrics::count;
use super::outbox_thread::OutboxHandle;
use super::shared::Shared;
use super::wall_clock::{now_ms, wall_ms};
use fulmar_part::local_client::{self, LocalReceiver, LocalSender};

/// Pause before connecting or writing to the outbox is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// Options of the session's subscriptions.
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
        let session = Session::new(shared, outbox, &mut downlink);
        tokio::select! {
            outcome = session.run(handoff, &mut down) => match outcome {
                Ok(()) => tracing::debug!("the gateway's local session was disconnected"),
                Err(error) if error.kind() == ErrorKind::NotConnected => return,
                Err(error) => tracing::warn!("the gateway's local session: {error}"),
            },
            _ = stopped.wait_for(|stop| *stop) => return,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Received packets that are not handled yet.
#[derive(Default)]
struct ReceivedPackets {
    items: Vec<Item>,
    letters: Vec<DeadLetter>,
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
        handoff: &Handoff,
        down: &mut mpsc::Receiver<DownlinkMessage>,
    ) -> std::io::Result<()> {
        let mut ended = None;
        let outcome = self.exchange(handoff, down, &mut ended).await;
        if let Some(message) = self.downlink.lost(ended) {
            let letter = dead_letter(message, ended.unwrap_or(ReasonCode::UnspecifiedError));
            self.outbox.add_dead_letters(vec![letter]).await;
        }
        self.publish_refusals();
        outcome
    }

    /// The same; sets `ended` to the broker's reason, if it sends one.
    async fn exchange(
        &mut self,
        handoff: &Handoff,
        down: &mut mpsc::Receiver<DownlinkMessage>,
        ended: &mut Option<ReasonCode>,
    ) -> std::io::Result<()> {
        let (sender, receiver) = self.connect(handoff).await?;
        self.serve(sender, receiver, down, ended).await
    }

    /// The same over a connection.
    async fn serve(
        &mut self,
        sender: LocalSender,
        mut receiver: LocalReceiver,
        down: &mut mpsc::Receiver<DownlinkMessage>,
        ended: &mut Option<ReasonCode>,
    ) -> std::io::Result<()> {
        loop {
            tokio::select! {
                open = receiver.fill() => {
                    if !open? {
                        return Ok(());
                    }
                    let taken = self.read_packets(&mut receiver, ended)?;
                    self.store_packets(taken, &receiver).await;
                }
                Some(message) = down.recv(), if self.downlink.has_room() => {
                    self.downlink.push(message);
                }
                () = at(self.downlink.retry_at()) => {
                    self.downlink.retry(Instant::now());
                    self.publish_refusals();
                }
            }
            if self.is_in {
                self.publish_all(&sender);
            }
            sender.written().await;
        }
    }

    /// Sends CONNECT, followed by the packets that make the session's subscriptions match the configuration. Filters
    /// that the session did not have before also get their retained messages.
    async fn connect(&self, handoff: &Handoff) -> std::io::Result<(LocalSender, LocalReceiver)> {
        let before = self.outbox.meta(FILTERS).await;
        let before: Vec<&str> = before.split('\n').filter(|filter| !filter.is_empty()).collect();
        let mut properties = PropertyBuf::new();
        properties.push(Property::SessionExpiryInterval(u32::MAX));
        let connect = Connect {
            clean_start: false,
            client_id: &self.shared.client_id,
            ..local_client::anonymous_session(properties.as_properties())
        };
        let peer = local_client::internal_peer("gateway");
        let (sender, receiver) = local_client::open(handoff, peer, &connect)?;
        let filters = self.filters();
        let stale = before.iter().copied().filter(|old| !filters.contains(old));
        sender.unsubscribe(PacketId::FIRST.next(), stale);
        let with_options = filters.iter().map(|filter| {
            let known = before.contains(filter);
            let retain_handling =
                if known { RetainHandling::Never } else { RetainHandling::Always };
            (*filter, SubscribeOptions { retain_handling, ..OPTIONS })
        });
        sender.subscribe(PacketId::FIRST, with_options);
        Ok((sender, receiver))
    }

    fn filters(&self) -> Vec<&str> {
        self.shared.filters()
    }

    /// Reads all complete packets.
    fn read_packets(
        &mut self,
        receiver: &mut LocalReceiver,
        ended: &mut Option<ReasonCode>,
    ) -> std::io::Result<ReceivedPackets> {
        let mut taken = ReceivedPackets::default();
        while let Some(packet) = receiver.next_packet()? {
            match packet {
                Packet::Publish(publish) => {
                    taken.acknowledge.extend(publish.packet_id);
                    self.sort(&publish, &mut taken);
                }
                Packet::Ack(AckKind::Puback, ack) => {
                    taken.letters.extend(self.answered(ack.packet_id, ack.reason));
                }
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
        Ok(taken)
    }

    /// Adds the message for upstream, or a dead letter, unless it is not forwarded.
    fn sort(&self, publish: &Publish<'_>, taken: &mut ReceivedPackets) {
        let Shared { up, name, stamper, metrics, .. } = self.shared;
        let now_ms = now_ms();
        match forward::item(publish, up, name, stamper, now_ms, wall_ms(now_ms)) {
            Ok(item) => taken.items.push(item),
            Err(NotForwarded::Loop) => {
                count(&metrics.circles, 1);
                tracing::warn!(topic = publish.topic, "dropped: loop detected");
            }
            Err(NotForwarded::NoRule) if up.takes(publish.topic) => {
                let Publish { topic, payload, properties, .. } = *publish;
                let letter = DeadLetter::nameless(topic, payload, properties, Direction::Refused);
                taken.letters.push(letter);
            }
            Err(NotForwarded::NoRule) => metrics.no_rule(publish.topic, now_ms),
        }
    }

    /// Puts messages into the outbox and the dead-letter file, trying until it succeeds, then acknowledges them. Nothing
    /// is read meanwhile: messages wait in the broker's queue, and if that is too long, their publishers wait.
    async fn store_packets(&self, taken: ReceivedPackets, receiver: &LocalReceiver) {
        let ReceivedPackets { mut items, letters, acknowledge } = taken;
        let mut most = items.len();
        while !items.is_empty() {
            let part: Vec<Item> = items.drain(..most.clamp(1, items.len())).collect();
            let tried = part.len();
            match self.outbox.store(part).await {
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
        self.outbox.add_dead_letters(letters).await;
        acknowledge.into_iter().for_each(|packet_id| receiver.acknowledge(packet_id));
    }

    /// Publishes the messages that may be published now.
    fn publish_all(&mut self, sender: &LocalSender) {
        while let Some(message) = self.downlink.next() {
            let packet_id = (message.qos != QoS::AtMostOnce).then_some(self.next_id);
            sender.publish(&Publish {
                dup: false,
                qos: message.qos,
                retain: message.retain,
                topic: &message.topic,
                packet_id,
                properties: message.properties.as_properties(),
                payload: &message.payload,
            });
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

    /// The broker has answered a publication. Returns the message if it can never be accepted.
    fn answered(&mut self, id: PacketId, reason: ReasonCode) -> Option<DeadLetter> {
        let mut letter = None;
        match self.downlink.answered(id, reason, Instant::now(), now_ms()) {
            Answer::Done => return None,
            Answer::Never(message) => letter = Some(dead_letter(message, reason)),
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
        self.publish_refusals();
        letter
    }

    /// Publishes the present refusals for operators.
    fn publish_refusals(&self) {
        let refused = |(topic, refusal): (&String, &Refusal)| current_refusals::Refused {
            what: topic.clone(),
            reason: refusal.reason,
            since_ms: refusal.since_ms,
        };
        self.shared.metrics.refusals.lock().down = self.downlink.refusals().map(refused).collect();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "local_tests.rs"]
mod tests;

/// The local broker can never accept the message.
fn dead_letter(message: DownlinkMessage, reason: ReasonCode) -> DeadLetter {
    let DownlinkMessage { topic, payload, qos, retain, properties, taken } = message;
    let identity = MessageIdentity::read(properties.as_properties());
    let id = identity.id.unwrap_or_default().to_owned();
    let at = identity.at.unwrap_or_default().to_owned();
    DeadLetter {
        message: Stored { topic, payload, qos, retain, id, at, ..Stored::default() },
        reason: reason.text(),
        way: Direction::Down(taken),
        text: "dropped: the local broker can never accept this message from upstream",
    }
}

/// Waits until this time; for ever if there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

//! Messages from upstream on the way to the local session: each gets its local name and is handed over, in order, or
//! becomes a dead letter. It is acknowledged upstream when the local broker has accepted it.
//!
//! While one waits to be handed over, no other is accepted, but the connection's owner continues: what is sent upstream
//! does not wait for what comes down.

use std::pin::Pin;

use fulmar_client::{Message, Property, Receipt};
use fulmar_gateway::identity::{self, MessageIdentity};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::dead_letters::{DeadLetter, Direction};
use super::downlink_scheduler::DownlinkMessage;
use super::metrics::count;
use super::outbox_thread::OutboxHandle;
use super::shared::Shared;
use super::wall_clock::now_ms;

/// Until the local session or the dead-letter file has the message.
type Handing = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A message from upstream, until the local broker has accepted it.
type Landing = Pin<Box<dyn Future<Output = Option<Receipt>> + Send>>;

/// See the module's documentation.
pub(super) struct Arriving<'a> {
    shared: &'a Shared,
    outbox: &'a OutboxHandle,
    down: &'a mpsc::Sender<DownlinkMessage>,
    handing: Option<Handing>,
    /// Messages that the local broker has not accepted yet.
    landing: FuturesUnordered<Landing>,
}

impl<'a> Arriving<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        outbox: &'a OutboxHandle,
        down: &'a mpsc::Sender<DownlinkMessage>,
    ) -> Arriving<'a> {
        Arriving { shared, outbox, down, handing: None, landing: FuturesUnordered::new() }
    }

    /// Whether [`Arriving::accept`] may be called.
    pub(super) fn has_room(&self) -> bool {
        self.handing.is_none()
    }

    /// Hands a message over. Returns the receipt of one that is to be acknowledged now.
    pub(super) fn accept(&mut self, message: Message) -> Option<Receipt> {
        let receipt = message.receipt.clone();
        let (taken, landed) = oneshot::channel();
        let rules = &self.shared.down;
        if rules.map(&message.topic).is_none() && rules.takes(&message.topic) {
            let (payload, properties) = (&message.payload, message.properties.as_properties());
            let way = Direction::Down(taken);
            let letter = DeadLetter::nameless(&message.topic, payload, properties, way);
            let outbox = self.outbox.clone();
            self.handing = Some(Box::pin(async move {
                outbox.add_dead_letters(vec![letter]).await;
            }));
        } else {
            let Some(message) = self.as_it_is_here(message, taken) else { return receipt };
            // The local session has ended for good only when the program ends.
            if let Err(TrySendError::Full(message)) = self.down.try_send(message) {
                let down = self.down.clone();
                self.handing = Some(Box::pin(async move { drop(down.send(message).await) }));
            }
        }
        if receipt.is_some() {
            // A message that is not accepted is not acknowledged, and is sent again.
            self.landing.push(Box::pin(async move { landed.await.ok().and(receipt) }));
        }
        None
    }

    /// The message to be published here; `None` if it is not to be.
    fn as_it_is_here(
        &self,
        message: Message,
        taken: oneshot::Sender<()>,
    ) -> Option<DownlinkMessage> {
        let shared = self.shared;
        let metrics = &shared.metrics;
        let Some((rule, topic)) = shared.down.map(&message.topic) else {
            metrics.no_rule(&message.topic, now_ms());
            return None;
        };
        let properties = message.properties.as_properties();
        let identity = MessageIdentity::read(properties);
        let Some(via) = identity.via_with(&shared.name) else {
            count(&metrics.circles, 1);
            tracing::warn!(topic = message.topic, "dropped: loop detected");
            return None;
        };
        let expiry = identity.expiry_s;
        let mut properties = identity::onward(properties, &via);
        if let Some(seconds) = expiry {
            properties.push(Property::MessageExpiryInterval(seconds));
        }
        count(&metrics.received, 1);
        let qos = rule.qos.min(message.qos);
        let (payload, retain) = (message.payload, message.retain);
        Some(DownlinkMessage { topic, payload, qos, retain, properties, taken })
    }

    /// Waits until the local broker has accepted a message, or never will, and returns its receipt; or until
    /// [`Arriving::has_room`] is true again. Nothing is lost if the future is dropped.
    pub(super) async fn progress(&mut self) -> Option<Receipt> {
        let handed = async {
            match &mut self.handing {
                Some(handing) => handing.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = handed => self.handing = None,
            Some(receipt) = self.landing.next() => return receipt,
        }
        None
    }

    /// Upstream sends unacknowledged messages again.
    pub(super) fn forget_unacknowledged(&mut self) {
        self.landing.clear();
    }
}

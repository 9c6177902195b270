//! The connection up: sends what the outbox holds, in its order and with its priorities, and takes in
//! what comes down.
//!
//! The client library connects, falls back, moves and connects again by itself, and sends again what
//! was not acknowledged. What it has given up on, such as a password that is refused, is tried again
//! here with fresh files: a gateway has nobody to ask.

use std::future::pending;
use std::pin::{Pin, pin};
use std::time::Duration;

use fulmar_client::{
    Client, Delivery, Error, Event, Events, Message, Property, PropertyBuf, ReasonCode, Receipt,
    RetainHandling, SubscribeOptions,
};
use fulmar_gateway::batch::{self, CONTENT_TYPE, DEFLATE, ENCODING};
use fulmar_gateway::drain::{Drain, Load};
use fulmar_gateway::mapping::Priority;
use fulmar_gateway::outbox::Reading;
use fulmar_gateway::stamp::{self, Passport, VIA};
use fulmar_mqtt::Properties;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::figures::count;
use super::keeper::Asking;
use super::local::Down;
use super::{Shared, now_ms};

/// Before a client that has given up is replaced.
const AGAIN: Duration = Duration::from_secs(15);
/// Before what the broker upstream could not take is sent again.
const LATER: Duration = Duration::from_secs(5);
/// Between two looks at the connection's figures.
const LOOK: Duration = Duration::from_secs(2);

/// A publication and its fate.
type Flight = Pin<Box<dyn Future<Output = (Load, Result<ReasonCode, Error>)> + Send>>;
/// A message that came down, until the broker here has it.
type Landing = Pin<Box<dyn Future<Output = Option<Receipt>> + Send>>;
/// What was read for a lane.
type Read = Pin<Box<dyn Future<Output = (Priority, Reading)> + Send>>;
/// The answer to SUBSCRIBE.
type Asked = Pin<Box<dyn Future<Output = Result<Vec<ReasonCode>, Error>> + Send>>;

/// Runs until it is stopped.
pub(super) async fn run(
    shared: &Shared,
    keeper: &Asking,
    down: mpsc::Sender<Down>,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        match shared.config.options(&shared.name).and_then(|options| Ok(Client::connect(options)?))
        {
            Ok((client, events)) => {
                let mut uplink = Uplink::new(shared, keeper, client, events, &down);
                if uplink.run(&mut stopped).await {
                    return uplink.end().await;
                }
            }
            Err(error) => {
                tracing::error!("upstream: {error:#}; trying again in {} s", AGAIN.as_secs())
            }
        }
        shared.figures.disconnected();
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            _ = stopped.wait_for(|stop| *stop) => return,
        }
    }
}

struct Uplink<'a> {
    shared: &'a Shared,
    keeper: &'a Asking,
    client: Client,
    events: Events,
    down: &'a mpsc::Sender<Down>,
    drain: Drain,
    flights: FuturesUnordered<Flight>,
    /// What came down and the broker here has not taken yet.
    landing: FuturesUnordered<Landing>,
    reading: Option<Read>,
    asked: Option<Asked>,
    /// Nothing is sent until what is on its way is over, and not before this.
    again_at: Option<Instant>,
    look_at: Instant,
}

/// What a turn was woken by.
enum Wake {
    Stop,
    Event(Option<Event>),
    Over(Load, Result<ReasonCode, Error>),
    Landed(Option<Receipt>),
    Read(Priority, Reading),
    Subscribed(Result<Vec<ReasonCode>, Error>),
    Arrived,
    Time,
}

impl<'a> Uplink<'a> {
    fn new(
        shared: &'a Shared,
        keeper: &'a Asking,
        client: Client,
        events: Events,
        down: &'a mpsc::Sender<Down>,
    ) -> Uplink<'a> {
        let asked = subscription(shared, client.clone());
        Uplink {
            drain: Drain::new(shared.config.window(), shared.config.batching()),
            shared,
            keeper,
            client,
            events,
            down,
            flights: FuturesUnordered::new(),
            landing: FuturesUnordered::new(),
            reading: None,
            asked,
            again_at: None,
            look_at: Instant::now(),
        }
    }

    /// Serves the connection until the client gives up, or until it is stopped: true then.
    async fn run(&mut self, stopped: &mut watch::Receiver<bool>) -> bool {
        loop {
            self.read_more();
            self.send().await;
            match self.wait(stopped).await {
                Wake::Stop => return true,
                Wake::Event(None) => return false,
                Wake::Event(Some(event)) => self.happened(event).await,
                Wake::Over(load, outcome) => self.over(&load, outcome),
                Wake::Landed(receipt) => self.acknowledge(receipt).await,
                Wake::Read(priority, read) => {
                    self.reading = None;
                    self.drain.loaded(priority, read);
                }
                Wake::Subscribed(outcome) => {
                    self.asked = None;
                    subscribed(self.shared, outcome);
                }
                Wake::Arrived => self.shared.figures.arrived(&mut self.drain),
                Wake::Time => {}
            }
        }
    }

    /// Ends the session in an orderly way; what is acknowledged meanwhile need not be sent again.
    async fn end(mut self) {
        let client = self.client.clone();
        let mut farewell = pin!(client.disconnect());
        loop {
            tokio::select! {
                () = &mut farewell => return,
                Some((load, outcome)) = self.flights.next() => self.over(&load, outcome),
                Some(_) = self.events.next() => {}
            }
        }
    }

    async fn wait(&mut self, stopped: &mut watch::Receiver<bool>) -> Wake {
        if self.look_at <= Instant::now() {
            self.look_at = Instant::now() + LOOK;
            *self.shared.figures.path.lock() = self.client.path_stats().await;
        }
        let batch = self
            .drain
            .due_at()
            .map(|at| Instant::now() + Duration::from_millis(at.saturating_sub(now_ms()).max(1)));
        let again = self.again_at.filter(|_| self.flights.is_empty());
        let wake_at = [Some(self.look_at), batch, again].into_iter().flatten().min();
        let wake_at = wake_at.unwrap_or(self.look_at);
        tokio::select! {
            // Whoever could stop it is gone: that is an end as well.
            _ = stopped.changed() => Wake::Stop,
            event = self.events.next() => Wake::Event(event),
            Some((load, outcome)) = self.flights.next() => Wake::Over(load, outcome),
            Some(receipt) = self.landing.next() => Wake::Landed(receipt),
            (priority, read) = or_never(&mut self.reading) => Wake::Read(priority, read),
            outcome = or_never(&mut self.asked) => Wake::Subscribed(outcome),
            () = self.shared.figures.news.notified() => Wake::Arrived,
            () = tokio::time::sleep_until(wake_at) => Wake::Time,
        }
    }

    fn read_more(&mut self) {
        if self.reading.is_some() {
            return;
        }
        if let Some((priority, after)) = self.drain.wants() {
            let keeper = self.keeper.clone();
            self.reading =
                Some(Box::pin(async move { (priority, keeper.read(priority, after).await) }));
        }
    }

    /// Sends what may be sent now.
    async fn send(&mut self) {
        if let Some(at) = self.again_at {
            if !self.flights.is_empty() || Instant::now() < at {
                return;
            }
            self.again_at = None;
            // What is being read now belongs to the order that is given up.
            self.reading = None;
            self.drain.restart();
            self.read_more();
        }
        while let Some(load) = self.drain.next(now_ms()) {
            let message = self.message(&load);
            let figures = &self.shared.figures;
            count(&figures.publications, 1);
            count(&figures.publication_bytes, message.topic.len() + message.payload.len());
            let bytes = load.messages().iter().map(|one| one.topic.len() + one.payload.len());
            count(&figures.message_bytes, bytes.sum());
            match self.client.publish(message).await {
                Ok(delivery) => self.flights.push(flight(load, delivery)),
                Err(error) => self.flights.push(Box::pin(async move { (load, Err(error)) })),
            }
        }
    }

    /// A publication of what is to be sent.
    fn message(&self, load: &Load) -> Message {
        match load {
            Load::One(stored) => {
                let mut properties = PropertyBuf::new();
                for property in Properties::from_forwardable(&stored.properties).iter() {
                    properties.push(property);
                }
                if let Some(at) = stored.expires_ms {
                    let left = at.saturating_sub(now_ms()).div_ceil(1000);
                    let left = u32::try_from(left).unwrap_or(u32::MAX);
                    properties.push(Property::MessageExpiryInterval(left));
                }
                let mut message =
                    Message::new(stored.topic.clone(), stored.payload.clone()).qos(stored.qos);
                message.retain = stored.retain;
                message.properties = properties;
                message
            }
            Load::Batch(messages) => {
                let config = &self.shared.config.batch;
                let (payload, packed) = batch::encode(messages, config.compress);
                let mut message = Message::new(config.topic.clone(), payload).qos1();
                message
                    .properties
                    .push(Property::ContentType(CONTENT_TYPE))
                    .push(Property::UserProperty(ENCODING, if packed { DEFLATE } else { "none" }))
                    .push(Property::UserProperty(VIA, &self.shared.name));
                message
            }
        }
    }

    fn over(&mut self, load: &Load, outcome: Result<ReasonCode, Error>) {
        let figures = &self.shared.figures;
        let messages = load.messages();
        match outcome {
            Ok(_) => count(&figures.sent, messages.len()),
            Err(Error::Rejected(reason)) if is_for_good(reason) => {
                count(&figures.refused, messages.len());
                let topic = messages.first().map_or("", |message| &message.topic);
                tracing::error!(
                    topic, %reason, messages = messages.len(),
                    "dropped: the broker upstream refuses it; give user {:?} the right to publish \
                     there, or change [[upstream.up]]", self.shared.config.user
                );
            }
            Err(error) => {
                tracing::warn!("upstream: {error}; sending again in {} s", LATER.as_secs());
                self.again_at = Some(Instant::now() + LATER);
                self.drain.done(load.first());
                return;
            }
        }
        self.keeper.remove(messages.iter().map(|message| message.seq).collect());
        self.drain.done(load.first());
    }

    async fn happened(&mut self, event: Event) {
        let figures = &self.shared.figures;
        match event {
            Event::Connected { session_present, transport, early_data } => {
                count(&figures.connections, 1);
                count(&figures.early, usize::from(early_data));
                *figures.transport.lock() = Some(transport);
                tracing::info!(
                    url = self.shared.config.url,
                    transport = transport.scheme(),
                    early_data,
                    session_present,
                    "upstream connected"
                );
            }
            Event::Disconnected { reason, retry_in } => {
                figures.disconnected();
                let retry = retry_in.unwrap_or(AGAIN).as_secs_f32();
                tracing::warn!("upstream: {reason}; trying again in {retry:.1} s");
            }
            Event::Migrated { local } => {
                count(&figures.migrations, 1);
                tracing::info!(%local, "upstream: the connection goes on from another address");
            }
            Event::Message(message) => self.came_down(message).await,
            _ => {}
        }
    }

    async fn came_down(&self, message: Message) {
        let receipt = message.receipt.clone();
        let (taken, landed) = oneshot::channel();
        let Some(down) = self.as_it_is_here(message, taken) else {
            return self.acknowledge(receipt).await;
        };
        if receipt.is_some() {
            // What is not taken is not acknowledged, and comes again.
            self.landing.push(Box::pin(async move { landed.await.ok().and(receipt) }));
        }
        // The local session has ended for good only when the program ends.
        drop(self.down.send(down).await);
    }

    /// A message as it is published here; `None` for one that is not.
    fn as_it_is_here(&self, message: Message, taken: oneshot::Sender<()>) -> Option<Down> {
        let shared = self.shared;
        let figures = &shared.figures;
        let (rule, topic) = shared.down.map(&message.topic)?;
        let properties = message.properties.as_properties();
        let passport = Passport::read(properties);
        let Some(via) = passport.via_with(&shared.name) else {
            count(&figures.circles, 1);
            tracing::warn!(topic = message.topic, "dropped: it has passed here before");
            return None;
        };
        let expiry = passport.expiry_s;
        let mut properties = stamp::onward(properties, &via);
        if let Some(seconds) = expiry {
            properties.push(Property::MessageExpiryInterval(seconds));
        }
        count(&figures.received, 1);
        let qos = rule.qos.min(message.qos);
        let (payload, retain) = (message.payload, message.retain);
        Some(Down { topic, payload, qos, retain, properties, taken })
    }

    /// The broker here has it for good, or never will.
    async fn acknowledge(&self, receipt: Option<Receipt>) {
        if let Some(receipt) = receipt {
            self.client.acknowledge(receipt).await;
        }
    }
}

fn flight(load: Load, delivery: Delivery) -> Flight {
    Box::pin(async move {
        let outcome = delivery.await;
        (load, outcome)
    })
}

/// Whether the same message would be refused again.
fn is_for_good(reason: ReasonCode) -> bool {
    use ReasonCode as R;
    matches!(
        reason,
        R::NotAuthorized
            | R::TopicNameInvalid
            | R::PayloadFormatInvalid
            | R::PacketTooLarge
            | R::QosNotSupported
            | R::RetainNotSupported
    )
}

fn subscription(shared: &Shared, client: Client) -> Option<Asked> {
    let filters: Vec<(String, SubscribeOptions)> = shared
        .down
        .rules()
        .iter()
        .map(|rule| {
            let options = SubscribeOptions {
                qos: rule.qos,
                // What went up does not come down again.
                no_local: true,
                retain_as_published: true,
                retain_handling: RetainHandling::IfNew,
            };
            (rule.filter.clone(), options)
        })
        .collect();
    if filters.is_empty() {
        return None;
    }
    Some(Box::pin(async move { client.subscribe(&filters).await }))
}

fn subscribed(shared: &Shared, outcome: Result<Vec<ReasonCode>, Error>) {
    match outcome {
        Ok(codes) => {
            for (rule, reason) in shared.down.rules().iter().zip(codes) {
                if reason.is_error() {
                    tracing::error!(
                        filter = rule.filter, %reason,
                        "the broker upstream refuses a subscription of [[upstream.down]]"
                    );
                }
            }
        }
        Err(error) => tracing::warn!("upstream: cannot subscribe: {error}"),
    }
}

/// What it brings; never, where there is nothing to wait for.
async fn or_never<T>(future: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

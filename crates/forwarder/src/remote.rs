//! The connection to the upstream broker: sends the outbox's messages, in order and by priority, and receives messages
//! from upstream.
//!
//! The client library connects, falls back to other transports, migrates and reconnects by itself, and sends
//! unacknowledged messages again. After errors on which it gives up, such as a refused password, this module tries
//! again and reads the files again, because a gateway has no user to ask.

use std::future::pending;
use std::pin::{Pin, pin};
use std::time::Duration;

use fulmar_client::{
    Client, Delivery, Error, Event, Events, Message, Options, ReasonCode, Receipt, RetainHandling,
    SubscribeOptions,
};
use fulmar_gateway::forward::{self, BatchForm, Outgoing};
use fulmar_gateway::mapping::Priority;
use fulmar_gateway::outbox::{Page, Stored};
use fulmar_gateway::refusals::{RefusalRecord, Refused, is_passing, may_pass};
use fulmar_gateway::uplink_scheduler::{LATER_MS, Publication, UplinkScheduler};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::arriving::Arriving;
use super::current_refusals;
use super::dead_letters::{DeadLetter, Direction};
use super::downlink_scheduler::DownlinkMessage;
use super::metrics::count;
use super::outbox_thread::OutboxHandle;
use super::shared::Shared;
use super::wall_clock::now_ms;

/// Pause before a client that has given up is replaced.
const AGAIN: Duration = Duration::from_secs(15);
/// The same after several clients in a row.
const AGAIN_AT_LAST: Duration = Duration::from_secs(120);
/// A connection that has lasted this long was not refused.
const SETTLED: Duration = Duration::from_secs(10);
/// Pause before refused filters are subscribed to again.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(60);
/// Time between two checks whether the file with the password or token has changed.
const CHECK_SECRET: Duration = Duration::from_secs(10);
/// Refused topics that the log names one by one.
const NAMED: usize = 10;
/// Time between two reads of the connection's metrics.
const LOOK: Duration = Duration::from_secs(2);

type Flight = Pin<Box<dyn Future<Output = (Publication, Result<ReasonCode, Error>)> + Send>>;
/// Messages read from the outbox for a lane.
type Read = Pin<Box<dyn Future<Output = (Priority, Page)> + Send>>;
/// The answer to SUBSCRIBE.
type PendingSubscription = Pin<Box<dyn Future<Output = Result<Vec<ReasonCode>, Error>> + Send>>;

/// Runs until it is stopped.
pub(super) async fn run(
    shared: &Shared,
    outbox: &OutboxHandle,
    down: mpsc::Sender<DownlinkMessage>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut scheduler = UplinkScheduler::new(shared.config.window(), shared.config.batching());
    let mut again = AGAIN;
    loop {
        scheduler.restart(now_ms());
        match options(shared).and_then(|options| Ok(Client::connect(options)?)) {
            Ok((client, events)) => {
                let mut uplink = Uplink::new(shared, outbox, client, events, &down, &mut scheduler);
                match uplink.run(&mut stopped).await {
                    End::Stopped => return uplink.end().await,
                    End::NewSecret => {
                        tracing::info!("upstream: password or token changed; connecting with it");
                        uplink.end().await;
                        continue;
                    }
                    End::GaveUp if uplink.was_connected => again = AGAIN,
                    End::GaveUp => {}
                }
            }
            Err(error) => {
                shared.metrics.disconnected(format!("{error:#}"), now_ms());
                tracing::error!("upstream: {error:#}");
            }
        }
        tracing::info!("upstream: trying again in {} s; its files are read again", again.as_secs());
        let pause = again;
        again = (again * 2).min(AGAIN_AT_LAST);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stopped.wait_for(|stop| *stop) => return,
        }
    }
}

/// The client's options; files with secrets are read now.
fn options(shared: &Shared) -> anyhow::Result<Options> {
    let mut options = shared.config.options(&shared.name)?;
    options.congestion = shared.congestion;
    options.copies = shared.copies;
    options.max_packet_bytes = shared.max_packet_bytes;
    Ok(options)
}

struct Uplink<'a> {
    shared: &'a Shared,
    outbox: &'a OutboxHandle,
    client: Client,
    events: Events,
    scheduler: &'a mut UplinkScheduler,
    flights: FuturesUnordered<Flight>,
    arriving: Arriving<'a>,
    reading: Option<Read>,
    asked: Option<PendingSubscription>,
    look_at: Instant,
    /// When the upstream broker accepted the connection, while it is open.
    connected_at: Option<Instant>,
    was_connected: bool,
    subscribe_at: Option<Instant>,
}

/// Why a client has ended.
enum End {
    /// The gateway stops.
    Stopped,
    /// The client has given up.
    GaveUp,
    /// The file with the password or token has changed since it connected.
    NewSecret,
}

/// The event that a turn handles.
enum Wake {
    Stop,
    Event(Option<Event>),
    Over(Publication, Result<ReasonCode, Error>),
    Landed(Option<Receipt>),
    Read(Priority, Page),
    Subscribed(Result<Vec<ReasonCode>, Error>),
    Arrived,
    Time,
}

impl<'a> Uplink<'a> {
    fn new(
        shared: &'a Shared,
        outbox: &'a OutboxHandle,
        client: Client,
        events: Events,
        down: &'a mpsc::Sender<DownlinkMessage>,
        scheduler: &'a mut UplinkScheduler,
    ) -> Uplink<'a> {
        let asked = subscription(shared, client.clone());
        Uplink {
            scheduler,
            shared,
            outbox,
            client,
            events,
            arriving: Arriving::new(shared, outbox, down),
            flights: FuturesUnordered::new(),
            reading: None,
            asked,
            look_at: Instant::now(),
            connected_at: None,
            was_connected: false,
            subscribe_at: None,
        }
    }

    /// Serves the connection until the client gives up, its secret changes, or it is stopped.
    async fn run(&mut self, stopped: &mut watch::Receiver<bool>) -> End {
        let secret = self.shared.config.secret().ok();
        let mut check_at = Instant::now() + CHECK_SECRET;
        loop {
            if check_at <= Instant::now() {
                check_at = Instant::now() + CHECK_SECRET;
                // A file that cannot be read now is no reason to end a working connection.
                let now = self.shared.config.secret().ok();
                if now.is_some() && now != secret {
                    return End::NewSecret;
                }
            }
            if self.scheduler.restart_if_due(now_ms()) {
                // A page that is being read belongs to the pass that is abandoned.
                self.reading = None;
            }
            self.read_more();
            self.send().await;
            match self.wait(stopped).await {
                Wake::Stop => return End::Stopped,
                Wake::Event(None) => return End::GaveUp,
                Wake::Event(Some(event)) => self.happened(event).await,
                Wake::Over(publication, outcome) => self.over(&publication, outcome),
                Wake::Landed(receipt) => self.acknowledge(receipt).await,
                Wake::Read(priority, read) => {
                    self.reading = None;
                    self.scheduler.loaded(priority, read);
                    self.scheduler.end_pass_if_read(now_ms());
                    self.publish_refusals();
                }
                Wake::Subscribed(outcome) => {
                    self.asked = None;
                    let again = subscribed(self.shared, outcome);
                    self.subscribe_at = again.then(|| Instant::now() + SUBSCRIBE_AGAIN);
                }
                Wake::Arrived => self.shared.metrics.arrived(self.scheduler),
                Wake::Time => self.on_time(),
            }
        }
    }

    /// Ends the session in an orderly way; messages acknowledged meanwhile need not be sent again.
    async fn end(mut self) {
        let client = self.client.clone();
        let mut farewell = pin!(client.disconnect());
        loop {
            tokio::select! {
                () = &mut farewell => return,
                Some((publication, outcome)) = self.flights.next() => self.over(&publication, outcome),
                Some(_) = self.events.next() => {}
            }
        }
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        if self.subscribe_at.is_some_and(|at| at <= now) && self.asked.is_none() {
            self.subscribe_at = None;
            self.asked = subscription(self.shared, self.client.clone());
        }
        if self.connected_at.is_some_and(|at| at + SETTLED <= now) {
            self.shared.metrics.refusals.lock().connection = None;
        }
    }

    /// Publishes the present refusals for operators.
    fn publish_refusals(&self) {
        let topic = |what: &Refused| match what {
            Refused::Topic(topic) => topic.clone(),
            Refused::Batches => self.shared.config.batch.topic.clone(),
        };
        let mut refusals = self.shared.metrics.refusals.lock();
        let all = self.scheduler.refusals().iter();
        refusals.topics = all
            .map(|(what, refusal)| current_refusals::Refused {
                what: topic(what),
                reason: refusal.reason,
                since_ms: refusal.since_ms,
            })
            .collect();
    }

    async fn wait(&mut self, stopped: &mut watch::Receiver<bool>) -> Wake {
        if self.look_at <= Instant::now() {
            self.look_at = Instant::now() + LOOK;
            *self.shared.metrics.path.lock() = self.client.path_stats().await;
        }
        let due = self
            .scheduler
            .deadline()
            .map(|at| Instant::now() + Duration::from_millis(at.saturating_sub(now_ms()).max(1)));
        let wake_at = [Some(self.look_at), due, self.subscribe_at].into_iter().flatten().min();
        let wake_at = wake_at.unwrap_or(self.look_at);
        tokio::select! {
            // The sender that could stop it was dropped: that is an end as well.
            _ = stopped.changed() => Wake::Stop,
            event = self.events.next(), if self.arriving.has_room() => Wake::Event(event),
            Some((publication, outcome)) = self.flights.next() => Wake::Over(publication, outcome),
            landed = self.arriving.progress() => Wake::Landed(landed),
            (priority, read) = or_never(&mut self.reading) => Wake::Read(priority, read),
            outcome = or_never(&mut self.asked) => Wake::Subscribed(outcome),
            () = self.shared.metrics.arrivals.notified() => Wake::Arrived,
            () = tokio::time::sleep_until(wake_at) => Wake::Time,
        }
    }

    fn read_more(&mut self) {
        if self.reading.is_some() {
            return;
        }
        if let Some((priority, after)) = self.scheduler.wants() {
            let outbox = self.outbox.clone();
            self.reading =
                Some(Box::pin(async move { (priority, outbox.read(priority, after).await) }));
        }
    }

    /// Sends the messages that may be sent now.
    async fn send(&mut self) {
        while let Some(publication) = self.scheduler.next(now_ms()) {
            let message = self.message(&publication);
            let metrics = &self.shared.metrics;
            count(&metrics.publications, 1);
            count(&metrics.publication_bytes, message.topic.len() + message.payload.len());
            let bytes =
                publication.messages().iter().map(|one| one.topic.len() + one.payload.len());
            count(&metrics.message_bytes, bytes.sum());
            match self.client.publish(message).await {
                Ok(delivery) => self.flights.push(flight(publication, delivery)),
                Err(error) => self.flights.push(Box::pin(async move { (publication, Err(error)) })),
            }
        }
    }

    /// The publication to be sent.
    fn message(&self, publication: &Publication) -> Message {
        let Shared { config, name, .. } = self.shared;
        let form = BatchForm { name, topic: &config.batch.topic, compress: config.batch.compress };
        let Outgoing { topic, payload, qos, retain, properties } =
            forward::outgoing(publication, &form, now_ms());
        let mut message = Message::new(topic, payload).qos(qos);
        (message.retain, message.properties) = (retain, properties);
        message
    }

    fn over(&mut self, publication: &Publication, outcome: Result<ReasonCode, Error>) {
        let metrics = &self.shared.metrics;
        let messages = publication.messages();
        match outcome {
            Ok(_) => {
                count(&metrics.sent, messages.len());
                if let Some(spans) = self.shared.spans.get() {
                    spans.forwarded(messages, &self.shared.name, &self.shared.config.url);
                }
                self.outbox.remove(messages.iter().map(|message| message.seq).collect());
                if let Some((what, _)) = self.scheduler.accepted(publication, now_ms()) {
                    tracing::info!(?what, "the upstream broker accepts the topic again");
                    self.publish_refusals();
                }
            }
            Err(Error::Rejected(reason)) if may_pass(reason) => self.refused(publication, reason),
            Err(error @ (Error::Rejected(_) | Error::Topic { .. })) => {
                self.give_up(publication, &error)
            }
            Err(error) => {
                tracing::warn!("upstream: {error}; sending again in {} s", LATER_MS / 1000);
                self.scheduler.failed(publication, now_ms());
            }
        }
    }

    /// The upstream broker may accept the publication after a change there or here: it stays in the outbox, and other
    /// topics continue.
    fn refused(&mut self, publication: &Publication, reason: ReasonCode) {
        let record = self.scheduler.refused(publication, reason, now_ms());
        if record == RefusalRecord::TooMany {
            tracing::error!(%reason,
                "the upstream broker refuses too many topics: forwarding paused");
            return;
        }
        if record == RefusalRecord::New {
            let known = self.scheduler.refusals().iter().count();
            let topic = match publication {
                Publication::One(message) => &message.topic,
                Publication::Batch(_) => &self.shared.config.batch.topic,
            };
            if is_passing(reason) && known <= NAMED {
                tracing::warn!(
                    topic, %reason,
                    "the upstream broker cannot store the topic's messages now: they stay in the \
                     outbox and are tried again every few seconds"
                );
            } else if known <= NAMED {
                tracing::error!(
                    topic, %reason,
                    "the upstream broker refuses the topic: its messages stay in the outbox and \
                     are tried again; give user {:?} the right to publish there, or change \
                     [[upstream.up]]", self.shared.config.user
                );
            } else if known == NAMED + 1 {
                tracing::error!(
                    "the upstream broker refuses more topics; /health/upstream of the http \
                     listener lists them"
                );
            }
        }
        self.publish_refusals();
    }

    /// The publication can never be accepted: it is logged, counted and dropped, or put into the dead-letter file.
    fn give_up(&mut self, publication: &Publication, error: &Error) {
        if let Publication::Batch(messages) = publication {
            tracing::warn!("upstream: a batch of {}: {error}; sent one by one", messages.len());
            self.scheduler.unbatch(publication, now_ms());
            return;
        }
        let reason = match error {
            Error::Rejected(reason) => reason.text(),
            _ => ReasonCode::TopicNameInvalid.text(),
        };
        let letter = |message: &Stored| DeadLetter {
            message: message.clone(),
            reason,
            way: Direction::Up,
            text: "dropped: the upstream broker can never accept it",
        };
        self.outbox.give_up(publication.messages().iter().map(letter).collect());
        self.scheduler.done(publication.first());
    }

    async fn happened(&mut self, event: Event) {
        let metrics = &self.shared.metrics;
        match event {
            Event::Connected { session_present, transport, early_data, url } => {
                self.connected_at = Some(Instant::now());
                self.was_connected = true;
                if session_present {
                    // Upstream sends unacknowledged messages again by this connection.
                    self.arriving.forget_unacknowledged();
                }
                self.scheduler.look_again(now_ms());
                count(&metrics.connections, 1);
                count(&metrics.early, usize::from(early_data));
                *metrics.transport.lock() = Some(transport);
                *metrics.down.lock() = None;
                tracing::info!(
                    %url,
                    transport = transport.scheme(),
                    early_data,
                    session_present,
                    "upstream connected"
                );
            }
            Event::Disconnected { reason, retry_in } => {
                metrics.disconnected(reason.to_string(), now_ms());
                self.connected_at = None;
                self.refused_connection(&reason);
                let retry = retry_in.unwrap_or(AGAIN).as_secs_f32();
                tracing::warn!("upstream: {reason}; trying again in {retry:.1} s");
            }
            Event::Migrated { local } => {
                count(&metrics.migrations, 1);
                tracing::info!(%local, "upstream: the connection continues from another address");
            }
            Event::Message(message) => {
                let receipt = self.arriving.accept(message);
                self.acknowledge(receipt).await;
            }
            _ => {}
        }
    }

    /// Records that the upstream broker refused the connection, if it sent a reason on which the operator has to act.
    fn refused_connection(&self, error: &Error) {
        let (Error::Refused { reason, .. } | Error::Disconnected(reason)) = error else { return };
        // These end without the operator.
        let passing = matches!(
            reason,
            ReasonCode::ServerShuttingDown | ReasonCode::UseAnotherServer | ReasonCode::ServerMoved
        );
        if passing || !reason.is_error() {
            return;
        }
        let mut refusals = self.shared.metrics.refusals.lock();
        let since_ms = refusals.connection.as_ref().map_or_else(now_ms, |before| before.since_ms);
        let what = format!("the connection is refused to user {:?}", self.shared.config.user);
        refusals.connection = Some(current_refusals::Refused { what, reason: *reason, since_ms });
    }

    /// The local broker has accepted the message, or never will.
    async fn acknowledge(&self, receipt: Option<Receipt>) {
        if let Some(receipt) = receipt {
            self.client.acknowledge(receipt).await;
        }
    }
}

fn flight(publication: Publication, delivery: Delivery) -> Flight {
    Box::pin(async move {
        let outcome = delivery.await;
        (publication, outcome)
    })
}

fn subscription(shared: &Shared, client: Client) -> Option<PendingSubscription> {
    let filters: Vec<(String, SubscribeOptions)> = shared
        .down
        .rules()
        .iter()
        .map(|rule| {
            let options = SubscribeOptions {
                qos: rule.qos,
                // Upstream does not send forwarded messages back.
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

/// Records the refused filters. Returns whether to subscribe again.
fn subscribed(shared: &Shared, outcome: Result<Vec<ReasonCode>, Error>) -> bool {
    let codes = match outcome {
        Ok(codes) => codes,
        Err(error) => {
            tracing::warn!("upstream: cannot subscribe: {error}");
            return true;
        }
    };
    let mut refusals = shared.metrics.refusals.lock();
    let before = std::mem::take(&mut refusals.filters);
    for (rule, reason) in shared.down.rules().iter().zip(codes).filter(|(_, code)| code.is_error())
    {
        let known = before.iter().find(|known| known.what == rule.filter);
        if known.is_none() {
            tracing::error!(
                filter = rule.filter, %reason,
                "the upstream broker refuses a subscription of [[upstream.down]]: trying again \
                 every {} s; give user {:?} the right to subscribe to it, or change the filter",
                SUBSCRIBE_AGAIN.as_secs(), shared.config.user
            );
        }
        let since_ms = known.map_or_else(now_ms, |known| known.since_ms);
        refusals.filters.push(current_refusals::Refused {
            what: rule.filter.clone(),
            reason,
            since_ms,
        });
    }
    !refusals.filters.is_empty()
}

/// The future's result; pending for ever if there is no future.
async fn or_never<T>(future: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "remote_tests.rs"]
mod tests;

//! Consumers: code that gets every message of some filters, durably and in batches, and acknowledges them when it has
//! them. Each has a durable session inside the broker, so that what was acknowledged to publishers while a consumer was
//! busy, failing or not running waits there; when too much waits, publishers wait (`crates/broker/src/back_pressure.rs`).

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fulmar_mqtt::packet::{Connect, Publish, RetainHandling, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS};
use fulmar_transport::Handoff;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::internal_sessions::InternalSessions;
use crate::local_client::{self, LocalReceiver, LocalSender};
use crate::thread::Thread;
use crate::{Core, Part};

/// Pause before connecting or consuming is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// Publications written at once.
const MAX_WRITTEN: usize = 256;

/// Bytes from which on a batch waits for no further messages.
const MAX_COLLECTED_BYTES: usize = 1 << 20;

/// A message as a consumer gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Topic name.
    pub topic: String,
    /// Application payload.
    pub payload: Vec<u8>,
    /// Names and values of its user properties, in their order.
    pub properties: Vec<(String, String)>,
}

impl Message {
    /// The value of the first user property with this name, such as `id` and `at` of what a gateway has forwarded.
    pub fn property(&self, name: &str) -> Option<&str> {
        let mut found = self.properties.iter().filter(|(known, _)| known == name);
        found.next().map(|(_, value)| value.as_str())
    }

    fn received(publish: &Publish<'_>) -> Message {
        let properties = publish.properties.iter().filter_map(|property| match property {
            Property::UserProperty(name, value) => Some((name.to_owned(), value.to_owned())),
            _ => None,
        });
        Message {
            topic: publish.topic.to_owned(),
            payload: publish.payload.to_vec(),
            properties: properties.collect(),
        }
    }
}

/// Code that gets messages of a server, such as one that writes them to a database.
pub trait Consumer: Send + 'static {
    /// The name, unique in a server. Its session is called `consumer-NAME`: with another name it is another session,
    /// which begins without messages.
    fn name(&self) -> &str;

    /// Topic filters of the messages, for as long as the server runs.
    fn filters(&self) -> Vec<String>;

    /// Stores messages, in the order in which the broker has them for this consumer. It may block: it has a thread of its
    /// own. After a crash, messages may come again that it had returned.
    ///
    /// # Errors
    /// They cannot be stored now: the same come again after a pause, and the log has the reason.
    fn consume(&mut self, batch: &[Message]) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// Topic, payload and RETAIN flag of a message that a part publishes at QoS 0.
pub type Publication<'a> = (&'a str, &'a [u8], bool);

/// Recipient of the messages of [`Session::run`].
pub trait Consume {
    /// Like [`Consumer::consume`], without blocking.
    fn consume(
        &mut self,
        batch: Vec<Message>,
    ) -> impl Future<Output = Result<(), (Vec<Message>, String)>>;
}

/// Publications of a part.
pub struct Publications<P> {
    /// Messages to publish.
    pub queue: mpsc::Receiver<P>,
    /// Reads one.
    pub read: fn(&P) -> Publication<'_>,
}

/// A durable session inside the broker.
#[derive(Clone)]
pub struct Session {
    /// Name of the listener in the log.
    pub listener: &'static str,
    /// Client identifier of the session.
    pub client_id: String,
    /// Topic filters of the messages.
    pub filters: Vec<String>,
    /// Longest time for which messages are collected after the first.
    pub linger: Duration,
    /// Number of messages at which it ends.
    pub batch: usize,
}

impl Session {
    /// Options of the subscriptions: what was retained before the session began would come without its time.
    const OPTIONS: SubscribeOptions = SubscribeOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Never,
    };

    /// Adds it before clients connect, so that no message is published before it exists.
    pub fn add_to(&self, sessions: &mut InternalSessions<'_>) {
        sessions.set(&self.client_id, &self.filters(), Session::OPTIONS);
    }

    fn filters(&self) -> Vec<&str> {
        self.filters.iter().map(String::as_str).collect()
    }

    /// Hands messages to `to` and acknowledges them, and publishes, until the broker accepts no more connections.
    pub async fn run<P>(
        &self,
        handoff: &Handoff,
        to: &mut impl Consume,
        publications: &mut Publications<P>,
    ) {
        let name = &self.client_id;
        loop {
            let outcome = match self.connect(handoff) {
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return,
                Ok(connection) => self.serve(connection, to, publications).await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(()) => tracing::debug!(name, "an internal session was disconnected"),
                Err(error) => tracing::warn!(name, "an internal session: {error}"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends CONNECT, followed by SUBSCRIBE.
    fn connect(&self, handoff: &Handoff) -> io::Result<(LocalSender, LocalReceiver)> {
        let mut durable = PropertyBuf::new();
        durable.push(Property::SessionExpiryInterval(u32::MAX));
        let connect = Connect {
            clean_start: false,
            client_id: &self.client_id,
            ..local_client::anonymous_session(durable.as_properties())
        };
        let peer = local_client::internal_peer(self.listener);
        let (sender, receiver) = local_client::open(handoff, peer, &connect)?;
        let filters = self.filters().into_iter().map(|filter| (filter, Session::OPTIONS));
        sender.subscribe(PacketId::FIRST, filters);
        Ok((sender, receiver))
    }

    /// Runs one connection until the broker ends it.
    async fn serve<P>(
        &self,
        (sender, mut receiver): (LocalSender, LocalReceiver),
        to: &mut impl Consume,
        publications: &mut Publications<P>,
    ) -> io::Result<()> {
        loop {
            let turn = self.turn(&mut receiver, to);
            tokio::pin!(turn);
            loop {
                tokio::select! {
                    open = &mut turn => match open? {
                        true => break,
                        false => return Ok(()),
                    },
                    Some(first) = publications.queue.recv() => {
                        publish((publications.read)(&first), &sender);
                        for _ in 1..MAX_WRITTEN {
                            let Ok(next) = publications.queue.try_recv() else { break };
                            publish((publications.read)(&next), &sender);
                        }
                        sender.written().await;
                    }
                }
            }
            // Whatever the broker sends meanwhile waits in its session.
            sender.written().await;
        }
    }

    /// Reads, hands over what was read, and acknowledges it. Returns false when the connection has ended.
    async fn turn(&self, receiver: &mut LocalReceiver, to: &mut impl Consume) -> io::Result<bool> {
        let mut open = receiver.fill().await?;
        let mut collected = Collected::default();
        collected.read(receiver)?;
        let until = Instant::now() + self.linger;
        while open
            && collected.messages.len() < self.batch
            && collected.bytes < MAX_COLLECTED_BYTES
            && let Ok(more) = timeout_at(until, receiver.fill()).await
        {
            open = more?;
            collected.read(receiver)?;
        }
        self.hand_over(receiver, to, collected).await;
        Ok(open)
    }

    /// Hands over messages, and acknowledges them. Nothing is read meanwhile.
    async fn hand_over(
        &self,
        receiver: &LocalReceiver,
        to: &mut impl Consume,
        collected: Collected,
    ) {
        let Collected { messages: mut batch, acknowledge, .. } = collected;
        while !batch.is_empty()
            && let Err((same, error)) = to.consume(std::mem::take(&mut batch)).await
        {
            let messages = same.len();
            tracing::warn!(name = self.client_id, messages, "messages are waiting: {error}");
            tokio::time::sleep(PAUSE).await;
            batch = same;
        }
        acknowledge.into_iter().for_each(|packet_id| receiver.acknowledge(packet_id));
    }
}

/// Messages that were read together.
#[derive(Default)]
struct Collected {
    messages: Vec<Message>,
    acknowledge: Vec<PacketId>,
    bytes: usize,
}

impl Collected {
    /// Adds everything that was received.
    fn read(&mut self, receiver: &mut LocalReceiver) -> io::Result<()> {
        while let Some(packet) = receiver.next_packet()? {
            match packet {
                Packet::Suback(suback) if suback.codes.iter().any(|code| *code >= 0x80) => {
                    return Err(io::Error::other("its subscription was refused"));
                }
                Packet::Publish(publish) => {
                    self.bytes += publish.payload.len();
                    self.messages.push(Message::received(&publish));
                    self.acknowledge.extend(publish.packet_id);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn publish((topic, payload, retain): Publication<'_>, sender: &LocalSender) {
    let (packet_id, properties) = (None, Properties::NONE);
    let qos = QoS::AtMostOnce;
    sender.publish(&Publish { dup: false, qos, retain, topic, packet_id, properties, payload });
}

/// The part that a consumer is.
struct Consuming {
    session: Session,
    consumer: Option<Box<dyn Consumer>>,
    thread: Option<Thread>,
}

/// The part for a consumer.
pub fn open(consumer: Box<dyn Consumer>) -> Box<dyn Part> {
    let session = Session {
        listener: "consumer",
        client_id: format!("consumer-{}", consumer.name()),
        filters: consumer.filters(),
        linger: Duration::ZERO,
        batch: 0,
    };
    Box::new(Consuming { session, consumer: Some(consumer), thread: None })
}

impl Part for Consuming {
    fn add_internal_sessions(&self, sessions: &mut InternalSessions<'_>) {
        self.session.add_to(sessions);
    }

    fn go_live(&mut self, core: &Core) -> anyhow::Result<()> {
        let Some(consumer) = self.consumer.take() else { return Ok(()) };
        let session = self.session.clone();
        let handoff = core.handoff.clone();
        let run = move || async move {
            let mut blocking = Blocking(Some(consumer));
            let (_none, queue) = mpsc::channel::<Infallible>(1);
            let mut publications = Publications { queue, read: |never| match *never {} };
            session.run(&handoff, &mut blocking, &mut publications).await;
        };
        self.thread = Some(Thread::start("fulmar-consumer", run)?);
        Ok(())
    }
}

/// A consumer, called where it may block.
struct Blocking(Option<Box<dyn Consumer>>);

impl Consume for Blocking {
    async fn consume(&mut self, batch: Vec<Message>) -> Result<(), (Vec<Message>, String)> {
        let Some(mut consumer) = self.0.take() else {
            return Err((batch, "the consumer has panicked; restart the server".to_owned()));
        };
        let batch = Arc::new(batch);
        let given = Arc::clone(&batch);
        let work = move || {
            let outcome = consumer.consume(&given).map_err(|error| error.to_string());
            drop(given);
            (consumer, outcome)
        };
        let back = |batch: Arc<Vec<Message>>| {
            Arc::try_unwrap(batch).unwrap_or_else(|batch| (*batch).clone())
        };
        match tokio::task::spawn_blocking(work).await {
            Ok((consumer, outcome)) => {
                self.0 = Some(consumer);
                outcome.map_err(|error| (back(batch), error))
            }
            Err(error) => Err((back(batch), error.to_string())),
        }
    }
}

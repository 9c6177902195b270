//! What the broker asks of durable storage, as data: operations, group commit, restored state.
//!
//! The core appends [`Op`]s to a batch while it handles input and submits the batch once a turn of
//! its loop. Storage commits batches in groups and says how far it has come by a [`Seq`]; whatever
//! must not happen before it is durable (PUBACK, PUBREC, PUBCOMP, sending a QoS 2 message, PUBREL)
//! waits for its batch's number. All operations of one batch become durable together or not at all.
//!
//! Nothing here touches a disk; `fulmar-store` implements [`Storage`] over SQLite.

use std::sync::Arc;

use fulmar_auth::Timestamp;
use fulmar_mqtt::{PacketId, QoS};

use crate::message::Message;
pub use crate::will::{Testator, Will};

/// Number of a submitted batch; they become durable in order. 0 means "already durable".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// Names a session for the life of the store; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(pub u64);

/// A flow inside a session: 0 is the control flow, others are the draft's flow identifiers
/// (QUIC varints, below 2^62). What belongs to a flow that does not outlive its stream is stored
/// as the control flow's, where it goes when the stream does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u64);

impl FlowId {
    /// The flow of the control stream, the only one of a TCP connection.
    pub const CONTROL: FlowId = FlowId(0);
}

/// Place of a message in a flow's outgoing order; grows within a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(pub u64);

impl Position {
    /// The packet identifier with which a message is sent if it is free: the same again if the broker crashed after
    /// sending and before storing it ([MQTT-4.4.0-1]).
    pub(crate) fn packet_id(self) -> PacketId {
        let number = self.0.saturating_sub(1) % u64::from(u16::MAX) + 1;
        u16::try_from(number).ok().and_then(PacketId::new).unwrap_or(PacketId::FIRST)
    }
}

/// A persistent session as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Key.
    pub key: SessionKey,
    /// MQTT client identifier.
    pub client_id: Box<str>,
    /// User the session belongs to; `None` for anonymous clients. Access rules see it too.
    pub username: Option<Box<str>>,
    /// Whether it is a session of MQTT-SN, whose clients show no credentials; `None` where an earlier
    /// version stored it, which did not note that.
    pub mqtt_sn: Option<bool>,
    /// Session expiry interval in seconds; `u32::MAX` never expires.
    pub expiry_interval_s: u32,
    /// When it expires if nobody connects; `None` while connected.
    pub expires_at: Option<Timestamp>,
    /// Will, if it has one that is not published yet.
    pub will: Option<Arc<Will>>,
    /// When that is to be published; `None` while connected.
    pub will_at: Option<Timestamp>,
}

/// A subscription of a persistent session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRecord {
    /// Session it belongs to.
    pub session: SessionKey,
    /// Flow on which deliveries go out.
    pub flow: FlowId,
    /// Full filter, `$share/group/…` included.
    pub filter: Box<str>,
    /// Subscription options byte (MQTT 5.0 section 3.8.3.1).
    pub options: u8,
    /// Subscription identifier, if the client gave one.
    pub identifier: Option<u32>,
    /// Retained messages above QoS 0 are still to be sent for it: those behind this topic, of which it may be empty.
    pub replay: Option<Box<str>>,
}

/// Terms on which a queued message is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Quality of service of this delivery.
    pub qos: QoS,
    /// RETAIN flag of this delivery.
    pub retain: bool,
    /// Subscription identifiers to send.
    pub identifiers: Box<[u32]>,
    /// Names the shared subscription whose member the session is for this message; 0 for none.
    pub share: u32,
}

/// State of a stored delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not sent yet, no packet identifier.
    Queued,
    /// Sent (or about to be) under this packet identifier.
    Sent(PacketId),
    /// Sent (or about to be) under an identifier that means nothing once its stream is gone.
    Offered,
    /// QoS 2: PUBREC has come; PUBREL is out or about to be.
    Released(PacketId),
}

/// Names a row of another part of the server: its database, and a key there.
pub type RowKey = (u8, Box<[u8]>);

/// One change to durable state.
#[derive(Clone, Debug)]
pub enum Op {
    /// Inserts or replaces a session.
    SessionPut(SessionRecord),
    /// Removes a session with its flows, subscriptions and queues.
    SessionRemove(SessionKey),
    /// Inserts or replaces a persistent flow; `expiry_s` counts from the loss of its stream.
    FlowPut {
        /// Session it belongs to.
        session: SessionKey,
        /// Identifier.
        flow: FlowId,
        /// The draft's flow flags byte.
        flags: u8,
        /// Flow expiry interval in seconds.
        expiry_s: u64,
    },
    /// Removes a flow with its inbound identifiers and subscriptions, which only its client's own
    /// worker stores. What its queue holds stays: another worker may have been sooner with a message for a newer flow
    /// of the same name.
    FlowRemove {
        /// Session it belongs to.
        session: SessionKey,
        /// Identifier.
        flow: FlowId,
    },
    /// Inserts or replaces the subscription of this session to this filter.
    SubscriptionPut(SubscriptionRecord),
    /// Removes a subscription.
    SubscriptionRemove {
        /// Session it belongs to.
        session: SessionKey,
        /// Full filter.
        filter: Box<str>,
    },
    /// Appends a message to a flow's outgoing queue. The message itself is stored once however
    /// many queues hold it.
    Enqueue {
        /// Session that will receive it.
        session: SessionKey,
        /// Flow it goes out on.
        flow: FlowId,
        /// Place in the order.
        position: Position,
        /// The message.
        message: Arc<Message>,
        /// Terms on which it is delivered.
        delivery: Delivery,
        /// Queued, or already given a packet identifier.
        progress: Progress,
    },
    /// Records how far a queued message has come.
    Advance {
        /// Session that receives it.
        session: SessionKey,
        /// Flow it goes out on.
        flow: FlowId,
        /// Place in the order.
        position: Position,
        /// The new state.
        progress: Progress,
    },
    /// Removes a delivered, dropped or expired message from a queue.
    Dequeue {
        /// Session that received it.
        session: SessionKey,
        /// Flow it went out on.
        flow: FlowId,
        /// Place in the order.
        position: Position,
    },
    /// Remembers a QoS 2 packet identifier received from a client and not yet released.
    InboundReceived {
        /// Session that sent it.
        session: SessionKey,
        /// Flow it came on.
        flow: FlowId,
        /// Packet identifier.
        packet_id: PacketId,
    },
    /// Forgets it: PUBREL has come.
    InboundReleased {
        /// Session that sent it.
        session: SessionKey,
        /// Flow it came on.
        flow: FlowId,
        /// Packet identifier.
        packet_id: PacketId,
    },
    /// Sets the retained message of its topic.
    RetainedPut(Arc<Message>),
    /// Clears a topic's retained message.
    RetainedRemove(Box<str>),
    /// Sets or removes a row of another part of the server, which nodes of a cluster share. The broker has no such rows.
    Row {
        /// Whose row it is.
        database: u8,
        /// Names it.
        key: Box<[u8]>,
        /// Contents; `None` removes it.
        value: Option<Arc<[u8]>>,
    },
}

/// A stored delivery, as restored.
#[derive(Clone, Debug)]
pub struct QueuedRecord {
    /// Session that will receive it.
    pub session: SessionKey,
    /// Flow it goes out on.
    pub flow: FlowId,
    /// Place in the order.
    pub position: Position,
    /// The message, shared between the queues that hold it.
    pub message: Arc<Message>,
    /// Terms on which it is delivered.
    pub delivery: Delivery,
    /// State that it had reached.
    pub progress: Progress,
}

/// Everything storage holds, read once at start.
#[derive(Debug, Default)]
pub struct Restored {
    /// Sessions.
    pub sessions: Vec<SessionRecord>,
    /// Persistent flows: session, flow, flags, expiry in seconds.
    pub flows: Vec<(SessionKey, FlowId, u8, u64)>,
    /// Subscriptions.
    pub subscriptions: Vec<SubscriptionRecord>,
    /// Outgoing queues, by session, flow and position ascending.
    pub queued: Vec<QueuedRecord>,
    /// QoS 2 packet identifiers received and not released.
    pub inbound: Vec<(SessionKey, FlowId, PacketId)>,
    /// Retained messages.
    pub retained: Vec<Arc<Message>>,
    /// Largest message number ever stored; new ones continue above it.
    pub last_message_id: u64,
    /// Largest session key ever stored; new ones continue above it.
    pub last_session_key: u64,
}

/// Durable storage as the broker sees it.
pub trait Storage: Send + Sync {
    /// Hands over a batch, in order with all earlier ones of this caller, and empties it. Never
    /// waits for the disk; the batch is durable once [`Storage::committed`] reaches the returned
    /// number. An empty batch returns the number of the newest batch handed over so far, removals left out.
    fn submit(&self, batch: &mut Vec<Op>) -> Seq;

    /// Hands over a batch of [`Op::Dequeue`] alone, for whose durability nobody waits. Storage may make it durable with the
    /// next batch, or after a bounded time: a crash until then makes the broker send again what was acknowledged.
    fn submit_removals(&self, batch: &mut Vec<Op>) {
        self.submit(batch);
    }

    /// Number up to which everything is durable.
    fn committed(&self) -> Seq;

    /// Operations handed over and not yet durable, large messages counting for several; the broker
    /// stops reading from publishers while this is above its limit.
    fn backlog(&self) -> usize;

    /// Why storage cannot write (disk full, I/O error). While it is set nothing is committed, and
    /// what needs durability waits, or is refused when that takes long; it is `None` again once storage has recovered.
    fn failure(&self) -> Option<String>;

    /// The system's clock was set; the broker's time goes on as before.
    fn clock_was_set(&self) {}

    /// Whether clients may get acknowledgements now. It is false where another broker may serve the same clients by
    /// now; then even what needs no storage must not be acknowledged, such as a publication without a subscriber: the
    /// other broker may have one. Once it is true again, the broker is notified as after a commit.
    ///
    /// It has to be asked after what is acknowledged was done.
    fn may_acknowledge(&self) -> bool {
        true
    }
}

/// Storage that keeps nothing: every batch counts as durable at once. For brokers without
/// persistence and for tests.
#[derive(Debug, Default)]
pub struct NoStorage;

impl Storage for NoStorage {
    fn submit(&self, batch: &mut Vec<Op>) -> Seq {
        batch.clear();
        Seq(0)
    }

    fn committed(&self) -> Seq {
        Seq(0)
    }

    fn backlog(&self) -> usize {
        0
    }

    fn failure(&self) -> Option<String> {
        None
    }
}

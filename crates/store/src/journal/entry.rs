//! The body of a record: the operations of a group as a sequence of entries in postcard's encoding.
//!
//! Entries have the order in which a transaction applies them. A message comes before the first entry that refers to
//! it, once per group, however many queues it is in. New kinds of entry go to the end; existing ones never change.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use fulmar_broker::message::{Message, MessageId, MessageParts};
use fulmar_broker::storage::{
    Delivery, FlowId, Op, Position, Progress, SessionKey, SessionRecord, SubscriptionRecord,
    Testator, Will,
};
use fulmar_broker::{Timestamp, User};
use fulmar_mqtt::{PacketId, QoS};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::RecordError;

type SessionFlow = (u64, u64);

/// Progress of a delivery.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Step {
    Queued,
    Sent(u16),
    Offered,
    Released(u16),
}

#[derive(Serialize, Deserialize)]
struct StoredMessage<'a> {
    id: u64,
    topic: &'a str,
    properties: &'a [u8],
    payload: &'a [u8],
    qos: u8,
    retain: bool,
    expires_at: Option<u64>,
    publisher: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredWill<'a> {
    topic: &'a str,
    properties: &'a [u8],
    payload: &'a [u8],
    qos: u8,
    retain: bool,
    delay_s: u32,
    message_expiry_s: Option<u32>,
}

/// All but the user.
#[derive(Serialize, Deserialize)]
struct StoredTestator<'a> {
    address: Option<IpAddr>,
    until: Option<u64>,
    credential: Option<&'a str>,
    certificate: Option<u64>,
    by_login: bool,
}

#[derive(Serialize, Deserialize)]
struct StoredSession<'a> {
    key: u64,
    client_id: &'a str,
    username: Option<&'a str>,
    mqtt_sn: Option<bool>,
    expiry_interval_s: u32,
    expires_at: Option<u64>,
    #[serde(borrow)]
    will: Option<StoredWill<'a>>,
    will_at: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct StoredSubscription<'a> {
    place: SessionFlow,
    filter: &'a str,
    options: u8,
    identifier: Option<u32>,
}

#[derive(Serialize, Deserialize)]
struct StoredDelivery {
    place: SessionFlow,
    position: u64,
    message: u64,
    qos: u8,
    retain: bool,
    identifiers: Box<[u32]>,
    step: Step,
}

#[derive(Serialize, Deserialize)]
enum Entry<'a> {
    #[serde(borrow)]
    Message(StoredMessage<'a>),
    Dequeue(SessionFlow, u64),
    Release(SessionFlow, u16),
    Advance(SessionFlow, u64, Step),
    #[serde(borrow)]
    SessionPut(Box<StoredSession<'a>>),
    SessionRemove(u64),
    FlowPut(SessionFlow, u8, u64),
    FlowRemove(SessionFlow),
    SubscriptionPut(StoredSubscription<'a>),
    SubscriptionRemove(u64, &'a str),
    Enqueue(StoredDelivery),
    Receive(SessionFlow, u16),
    Retain(u64),
    Unretain(&'a str),
    RowPut(u8, &'a [u8], &'a [u8]),
    RowRemove(u8, &'a [u8]),
    /// Author of the will of the session just before it.
    #[serde(borrow)]
    Testator(StoredTestator<'a>),
    /// The replay of the subscription just before it, if retained messages are still to be sent for it.
    Replay(&'a str),
    /// The shared subscription whose job the delivery just before it is.
    Share(u32),
}

impl From<Progress> for Step {
    fn from(progress: Progress) -> Step {
        match progress {
            Progress::Queued => Step::Queued,
            Progress::Sent(id) => Step::Sent(id.get()),
            Progress::Offered => Step::Offered,
            Progress::Released(id) => Step::Released(id.get()),
        }
    }
}

fn place(session: SessionKey, flow: FlowId) -> SessionFlow {
    (session.0, flow.0)
}

fn qos_code(qos: QoS) -> u8 {
    match qos {
        QoS::AtMostOnce => 0,
        QoS::AtLeastOnce => 1,
        QoS::ExactlyOnce => 2,
    }
}

/// Appends `ops`, in this order, to `out`.
pub fn encode<'o>(ops: impl IntoIterator<Item = Cow<'o, Op>>, out: &mut Vec<u8>) {
    let mut written = rustc_hash::FxHashSet::default();
    for op in ops {
        if let Op::Enqueue { message, .. } | Op::RetainedPut(message) = &*op
            && written.insert(message.id())
        {
            push(&message_entry(message), out);
        }
        push(&entry(&op), out);
        if let Op::SessionPut(SessionRecord { will: Some(will), .. }) = &*op {
            push(&testator_entry(&will.testator), out);
        }
        if let Op::SubscriptionPut(SubscriptionRecord { replay: Some(after), .. }) = &*op {
            push(&Entry::Replay(after), out);
        }
        if let Op::Enqueue { delivery: Delivery { share: share @ 1.., .. }, .. } = &*op {
            push(&Entry::Share(*share), out);
        }
    }
}

fn push(entry: &Entry<'_>, out: &mut Vec<u8>) {
    // Into a vector, of types whose lengths are known: there is nothing that could fail.
    let result = postcard::to_io(entry, &mut *out);
    debug_assert!(result.is_ok());
}

fn message_entry(message: &Message) -> Entry<'_> {
    Entry::Message(StoredMessage {
        id: message.id().0,
        topic: message.topic(),
        properties: message.properties(),
        payload: message.payload(),
        qos: qos_code(message.qos()),
        retain: message.retain(),
        expires_at: message.expires_at().map(|at| at.0),
        publisher: message.publisher(),
    })
}

fn entry(op: &Op) -> Entry<'_> {
    match op {
        Op::SessionPut(record) => Entry::SessionPut(Box::new(session_entry(record))),
        Op::SessionRemove(session) => Entry::SessionRemove(session.0),
        Op::FlowPut { session, flow, flags, expiry_s } => {
            Entry::FlowPut(place(*session, *flow), *flags, *expiry_s)
        }
        Op::FlowRemove { session, flow } => Entry::FlowRemove(place(*session, *flow)),
        Op::SubscriptionPut(record) => Entry::SubscriptionPut(StoredSubscription {
            place: place(record.session, record.flow),
            filter: &record.filter,
            options: record.options,
            identifier: record.identifier,
        }),
        Op::SubscriptionRemove { session, filter } => Entry::SubscriptionRemove(session.0, filter),
        Op::Enqueue { session, flow, position, message, delivery, progress } => {
            Entry::Enqueue(StoredDelivery {
                place: place(*session, *flow),
                position: position.0,
                message: message.id().0,
                qos: qos_code(delivery.qos),
                retain: delivery.retain,
                identifiers: delivery.identifiers.clone(),
                step: (*progress).into(),
            })
        }
        Op::Advance { session, flow, position, progress } => {
            Entry::Advance(place(*session, *flow), position.0, (*progress).into())
        }
        Op::Dequeue { session, flow, position } => {
            Entry::Dequeue(place(*session, *flow), position.0)
        }
        Op::InboundReceived { session, flow, packet_id } => {
            Entry::Receive(place(*session, *flow), packet_id.get())
        }
        Op::InboundReleased { session, flow, packet_id } => {
            Entry::Release(place(*session, *flow), packet_id.get())
        }
        Op::RetainedPut(message) => Entry::Retain(message.id().0),
        Op::RetainedRemove(topic) => Entry::Unretain(topic),
        Op::Row { database, key, value: Some(value) } => Entry::RowPut(*database, key, value),
        Op::Row { database, key, value: None } => Entry::RowRemove(*database, key),
    }
}

fn session_entry(record: &SessionRecord) -> StoredSession<'_> {
    StoredSession {
        key: record.key.0,
        client_id: &record.client_id,
        username: record.username.as_deref(),
        mqtt_sn: record.mqtt_sn,
        expiry_interval_s: record.expiry_interval_s,
        expires_at: record.expires_at.map(|at| at.0),
        will: record.will.as_deref().map(will_entry),
        will_at: record.will_at.map(|at| at.0),
    }
}

fn will_entry(will: &Will) -> StoredWill<'_> {
    StoredWill {
        topic: &will.topic,
        properties: &will.properties,
        payload: &will.payload,
        qos: qos_code(will.qos),
        retain: will.retain,
        delay_s: will.delay_s,
        message_expiry_s: will.message_expiry_s,
    }
}

fn testator_entry(testator: &Testator) -> Entry<'_> {
    let until = Some(testator.until).filter(|until| *until != Timestamp::NEVER);
    Entry::Testator(StoredTestator {
        address: testator.address,
        until: until.map(|until| until.0),
        credential: testator.credential.as_deref(),
        certificate: testator.certificate,
        by_login: testator.by_login,
    })
}

/// The operations of a group's body, in order.
///
/// # Errors
/// [`RecordError::Malformed`]: no group is encoded like this.
pub fn decode(mut body: &[u8]) -> Result<Vec<Op>, RecordError> {
    let mut messages = Messages::default();
    let mut ops = Vec::new();
    while !body.is_empty() {
        let (entry, rest) = postcard::take_from_bytes::<Entry<'_>>(body)
            .map_err(|_| RecordError::Malformed("no such operation"))?;
        body = rest;
        if let Entry::Message(message) = entry {
            let message = message.restore()?;
            if messages.insert(message.id().0, message).is_some() {
                return Err(RecordError::Malformed("a message twice"));
            }
        } else if let Entry::Testator(testator) = entry {
            testator.restore_to(ops.last_mut())?;
        } else if let Entry::Replay(after) = entry {
            let Some(Op::SubscriptionPut(record)) = ops.last_mut() else {
                return Err(RecordError::Malformed("no subscription to go on with"));
            };
            record.replay = Some(after.into());
        } else if let Entry::Share(share) = entry {
            let Some(Op::Enqueue { delivery, .. }) = ops.last_mut() else {
                return Err(RecordError::Malformed("no delivery that could be a job"));
            };
            delivery.share = share;
        } else {
            ops.push(operation(entry, &messages)?);
        }
    }
    Ok(ops)
}

type Messages = FxHashMap<u64, Arc<Message>>;

fn operation(entry: Entry<'_>, messages: &Messages) -> Result<Op, RecordError> {
    let known = |id: u64| {
        let message = messages.get(&id).cloned();
        message.ok_or(RecordError::Malformed("a message that is not in its group"))
    };
    Ok(match entry {
        Entry::Message(_) | Entry::Testator(_) | Entry::Replay(_) | Entry::Share(_) => {
            return Err(RecordError::Malformed("a message is no operation"));
        }
        Entry::SessionPut(session) => Op::SessionPut(session.restore()?),
        Entry::SessionRemove(session) => Op::SessionRemove(SessionKey(session)),
        Entry::FlowPut((session, flow), flags, expiry_s) => {
            Op::FlowPut { session: SessionKey(session), flow: FlowId(flow), flags, expiry_s }
        }
        Entry::FlowRemove((session, flow)) => {
            Op::FlowRemove { session: SessionKey(session), flow: FlowId(flow) }
        }
        Entry::SubscriptionPut(stored) => Op::SubscriptionPut(SubscriptionRecord {
            session: SessionKey(stored.place.0),
            flow: FlowId(stored.place.1),
            filter: stored.filter.into(),
            options: stored.options,
            identifier: stored.identifier,
            replay: None,
        }),
        Entry::SubscriptionRemove(session, filter) => {
            Op::SubscriptionRemove { session: SessionKey(session), filter: filter.into() }
        }
        Entry::Enqueue(stored) => Op::Enqueue {
            session: SessionKey(stored.place.0),
            flow: FlowId(stored.place.1),
            position: Position(stored.position),
            message: known(stored.message)?,
            delivery: Delivery {
                qos: qos(stored.qos)?,
                retain: stored.retain,
                identifiers: stored.identifiers,
                share: 0,
            },
            progress: stored.step.restore()?,
        },
        Entry::Advance((session, flow), position, step) => Op::Advance {
            session: SessionKey(session),
            flow: FlowId(flow),
            position: Position(position),
            progress: step.restore()?,
        },
        Entry::Dequeue((session, flow), position) => Op::Dequeue {
            session: SessionKey(session),
            flow: FlowId(flow),
            position: Position(position),
        },
        Entry::Receive((session, flow), id) => Op::InboundReceived {
            session: SessionKey(session),
            flow: FlowId(flow),
            packet_id: packet_id(id)?,
        },
        Entry::Release((session, flow), id) => Op::InboundReleased {
            session: SessionKey(session),
            flow: FlowId(flow),
            packet_id: packet_id(id)?,
        },
        Entry::Retain(message) => Op::RetainedPut(known(message)?),
        Entry::Unretain(topic) => Op::RetainedRemove(topic.into()),
        Entry::RowPut(database, key, value) => {
            Op::Row { database, key: key.into(), value: Some(value.into()) }
        }
        Entry::RowRemove(database, key) => Op::Row { database, key: key.into(), value: None },
    })
}

fn qos(code: u8) -> Result<QoS, RecordError> {
    match code {
        0 => Ok(QoS::AtMostOnce),
        1 => Ok(QoS::AtLeastOnce),
        2 => Ok(QoS::ExactlyOnce),
        _ => Err(RecordError::Malformed("no such quality of service")),
    }
}

fn packet_id(id: u16) -> Result<PacketId, RecordError> {
    PacketId::new(id).ok_or(RecordError::Malformed("packet identifier 0"))
}

impl Step {
    fn restore(self) -> Result<Progress, RecordError> {
        Ok(match self {
            Step::Queued => Progress::Queued,
            Step::Sent(id) => Progress::Sent(packet_id(id)?),
            Step::Offered => Progress::Offered,
            Step::Released(id) => Progress::Released(packet_id(id)?),
        })
    }
}

impl StoredMessage<'_> {
    fn restore(&self) -> Result<Arc<Message>, RecordError> {
        if self.topic.len() > usize::from(u16::MAX) {
            return Err(RecordError::Malformed("a topic is too long"));
        }
        let parts = MessageParts {
            topic: self.topic,
            properties: self.properties,
            payload: self.payload,
            qos: qos(self.qos)?,
            retain: self.retain,
            expires_at: self.expires_at.map(Timestamp),
            publisher: self.publisher,
        };
        Ok(Message::new(MessageId(self.id), &parts))
    }
}

impl StoredWill<'_> {
    fn restore(&self) -> Result<Will, RecordError> {
        Ok(Will {
            topic: self.topic.into(),
            properties: self.properties.into(),
            payload: self.payload.into(),
            qos: qos(self.qos)?,
            retain: self.retain,
            delay_s: self.delay_s,
            message_expiry_s: self.message_expiry_s,
            testator: Testator::default(),
        })
    }
}

impl StoredTestator<'_> {
    /// Adds it to the will of the session that was stored last.
    fn restore_to(self, last: Option<&mut Op>) -> Result<(), RecordError> {
        let Some(Op::SessionPut(SessionRecord { username, will: Some(will), .. })) = last else {
            return Err(RecordError::Malformed("nobody has left a will"));
        };
        Arc::make_mut(will).testator = Testator {
            user: username.clone().map(User::from_text),
            address: self.address,
            until: self.until.map_or(Timestamp::NEVER, Timestamp),
            credential: self.credential.map(Into::into),
            certificate: self.certificate,
            by_login: self.by_login,
        };
        Ok(())
    }
}

impl StoredSession<'_> {
    fn restore(&self) -> Result<SessionRecord, RecordError> {
        let mut will = self.will.as_ref().map(StoredWill::restore).transpose()?;
        if let Some(will) = &mut will {
            will.testator.user = self.username.map(User::from_text);
        }
        Ok(SessionRecord {
            key: SessionKey(self.key),
            client_id: self.client_id.into(),
            username: self.username.map(Into::into),
            mqtt_sn: self.mqtt_sn,
            expiry_interval_s: self.expiry_interval_s,
            expires_at: self.expires_at.map(Timestamp),
            will: will.map(Arc::new),
            will_at: self.will_at.map(Timestamp),
        })
    }
}

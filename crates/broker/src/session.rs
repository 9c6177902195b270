//! A session: what the broker remembers of a client, connected or not (MQTT 5.0 section 4.1).
//!
//! A session is owned by no thread. A worker locks it for one delivery; the worker that owns its connection locks it
//! once per flush. A session contains flows: the control flow, the only one of a TCP client, and one per QUIC data
//! stream. Each flow has packet identifiers, in-flight messages and an outgoing queue of its own; subscriptions belong
//! to the session and name the flow on which they deliver.
//!
//! Lock order: registry, session, then tree or retained messages. No thread locks two sessions.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmar_auth::{Timestamp, User};
use fulmar_mqtt::session::{Inbound, Outbound, Replay};
use fulmar_mqtt::{PacketId, QoS, Version};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::back_pressure::Queued;
use crate::deferred_ops::{TurnNumber, TurnStamp};
use crate::limits::Limits;
use crate::mailbox::Attachment;
use crate::memory::{Account, Charge, FREE_OUTPUT, Kept};
use crate::message::{self, Identifiers, Message};
use crate::outbox::{ClientLimits, Outbox};
use crate::peer::StreamKey;
use crate::quota::QuotaUse;
use crate::retained::RetainedCursor;
use crate::storage::{FlowId, Position, Progress, SessionKey};
use crate::will::Will;

/// A client's session. Shared by the subscription tree, the registry and its connection.
#[derive(Debug)]
pub(crate) struct Session {
    key: SessionKey,
    client_id: Box<str>,
    publisher: u64,
    state: Mutex<SessionState>,
}

impl Session {
    pub(crate) fn new(key: SessionKey, client_id: &str, limits: &Limits) -> Arc<Session> {
        Arc::new(Session {
            key,
            client_id: client_id.into(),
            publisher: message::publisher(client_id),
            state: Mutex::new(SessionState::new(limits)),
        })
    }

    pub(crate) fn key(&self) -> SessionKey {
        self.key
    }

    pub(crate) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// The name of its client in messages that it publishes.
    pub(crate) fn publisher(&self) -> u64 {
        self.publisher
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }

    /// `None` while somebody else has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, SessionState>> {
        self.state.try_lock()
    }
}

/// A subscription as stored in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionSubscription {
    pub(crate) flow: FlowId,
    pub(crate) options: u8,
    pub(crate) identifier: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct SessionState {
    pub(crate) attachment: Option<Attachment>,
    /// Whether [`BrokerEvent::Recheck`](crate::BrokerEvent) waits for its connection.
    pub(crate) awaits_recheck: bool,
    pub(crate) version: Version,
    /// Whether the session is stored.
    pub(crate) durable: bool,
    /// Whether it was removed from the registry: nothing may be delivered or subscribed any more.
    pub(crate) ended: bool,
    /// See [`crate::owner`].
    pub(crate) user: Option<User>,
    pub(crate) mqtt_sn: Option<bool>,
    pub(crate) expiry_interval_s: u32,
    pub(crate) expires_at: Timestamp,
    /// Largest packet the client accepts, in bytes.
    pub(crate) max_packet_bytes: u32,
    /// Topic aliases that may be set on each stream of its connection.
    pub(crate) topic_aliases: u16,
    /// In-flight window of each flow: the client's Receive Maximum, at most the broker's limit.
    pub(crate) window: u16,
    /// The last turn in which its connection or housekeeping may have stored something for it.
    pub(crate) last_turn: TurnStamp,
    /// The connection that takes over the session when that turn ends.
    pub(crate) awaited_by: Option<Attachment>,
    next_position: u64,
    /// In the queues of all flows.
    pub(crate) queued: Queued,
    /// None of them expires before.
    pub(crate) queue_expires_at: Timestamp,
    pub(crate) flows: SmallVec<[Flow; 1]>,
    pub(crate) subscriptions: FxHashMap<Box<str>, SessionSubscription>,
    /// How many of the subscriptions count for the owner's quota.
    pub(crate) quota_use: QuotaUse,
    /// What the session takes of its owner's memory, apart from messages and output; see [`crate::session_memory`].
    pub(crate) memory: Option<Charge>,
    /// Of it, what the subscriptions take.
    pub(crate) subscription_bytes: usize,
    pub(crate) will: Option<Arc<Will>>,
    /// When the session is examined next; see [`crate::housekeeping`].
    pub(crate) housekeeping_at: Option<Timestamp>,
    /// When the will of a lost connection is due.
    pub(crate) will_at: Option<Timestamp>,
}

impl SessionState {
    fn new(limits: &Limits) -> SessionState {
        SessionState {
            attachment: None,
            awaits_recheck: false,
            version: Version::V5,
            durable: false,
            ended: false,
            user: None,
            mqtt_sn: None,
            expiry_interval_s: 0,
            expires_at: Timestamp::NEVER,
            max_packet_bytes: u32::MAX,
            topic_aliases: 0,
            window: limits.max_in_flight,
            last_turn: TurnStamp::default(),
            awaited_by: None,
            next_position: 0,
            queued: Queued::default(),
            queue_expires_at: Timestamp::NEVER,
            flows: SmallVec::from_buf([Flow::new(FlowId::CONTROL, limits.max_in_flight)]),
            subscriptions: FxHashMap::default(),
            quota_use: QuotaUse::default(),
            memory: None,
            subscription_bytes: 0,
            will: None,
            housekeeping_at: None,
            will_at: None,
        }
    }

    pub(crate) fn next_position(&mut self) -> Position {
        self.next_position += 1;
        Position(self.next_position)
    }

    /// Continues positions above one that was restored.
    pub(crate) fn restore_position(&mut self, position: Position) {
        self.next_position = self.next_position.max(position.0);
    }

    pub(crate) fn flow_index(&self, id: FlowId) -> Option<usize> {
        self.flows.iter().position(|flow| flow.id == id)
    }

    pub(crate) fn flow_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        self.flows.iter_mut().find(|flow| flow.id == id)
    }

    /// When the next flow that has lost its stream expires.
    pub(crate) fn next_flow_expiry(&self) -> Timestamp {
        let waiting = self.flows.iter().filter(|flow| flow.stream.is_none());
        let times = waiting.filter_map(Flow::persistence).map(|lifetime| lifetime.expires_at);
        times.min().unwrap_or(Timestamp::NEVER)
    }

    /// Whether `at` is this session's connection now: false for one that was taken over.
    pub(crate) fn is_attached(&self, at: Attachment) -> bool {
        self.attachment == Some(at)
    }

    /// The limits that the client has set.
    pub(crate) fn client_limits(&self) -> ClientLimits {
        ClientLimits {
            version: self.version,
            max_packet_bytes: self.max_packet_bytes,
            aliases: self.topic_aliases,
        }
    }

    /// Encoded bytes that may wait in each flow's outbox.
    pub(crate) fn outbox_bytes(&self, limits: &Limits) -> usize {
        let share = limits.max_connection_outbox_bytes / self.flows.len().max(1);
        // At least one byte, or the flow could never send.
        share.clamp(1, limits.max_outbox_bytes.max(1))
    }

    /// Whether a flow's outbox, which is not yet at [`SessionState::outbox_bytes`], takes more now.
    #[inline]
    pub(crate) fn may_output(&self, index: usize) -> bool {
        self.flows[index].outbox.len() < FREE_OUTPUT
            || self
                .memory
                .as_ref()
                .is_none_or(|memory| memory.owner().has_room(Account::Output, FREE_OUTPUT))
    }

    /// The same for a message of this size, which may be dropped.
    #[inline]
    pub(crate) fn may_output_more(&self, index: usize, bytes: usize) -> bool {
        let has_room = |memory: &Charge| memory.owner().has_room(Account::Output, bytes);
        self.flows[index].outbox.len() + bytes < FREE_OUTPUT
            || self.memory.as_ref().is_none_or(has_room)
    }

    /// Whether messages that cannot be sent now are queued.
    pub(crate) fn keeps_messages(&self) -> bool {
        !self.ended && (self.attachment.is_some() || self.expiry_interval_s > 0)
    }
}

/// One ordered exchange of packets in a session, on the control stream or a data stream.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) id: FlowId,
    /// The stream that it uses now.
    pub(crate) stream: Option<StreamKey>,
    /// Whether its connection has an event that there is output.
    pub(crate) ready: bool,
    /// Sent and not yet acknowledged, in order.
    pub(crate) outbound: Outbound<Outgoing>,
    /// QoS 2 identifiers received and not yet released.
    pub(crate) inbound: Inbound,
    /// Not yet sent, in order.
    pub(crate) queue: VecDeque<Outgoing>,
    /// Encoded packets that the connection has not taken yet.
    pub(crate) outbox: Outbox,
    /// Rarely used state.
    pub(crate) rare: Option<Box<FlowExtras>>,
}

/// What a queued message waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// Earlier messages on another flow.
    Order,
    /// The worker that queued it. Until that worker's turn ends, the message has no record in storage, which would
    /// ignore its progress.
    Worker,
}

/// Flows, each with the position of the last message that was undelivered when the order had to be noted.
pub(crate) type FlowPositions = SmallVec<[(FlowId, Position); 1]>;

/// The rarely used state of a flow.
#[derive(Debug, Default)]
pub(crate) struct FlowExtras {
    /// In-flight identifiers to send again after a reconnection, in order.
    pub(crate) resend: VecDeque<PacketId>,
    /// The turn whose batch, or an earlier one's, has the client's acknowledgements on the previous stream. Nothing is
    /// sent again before it is durable: a PUBREL sent before would make the client discard state that a crashed
    /// broker would need again.
    pub(crate) resend_after: Option<TurnNumber>,
    /// In flight but not yet [`SendState::Sendable`], in order.
    pub(crate) unsendable: VecDeque<(PacketId, Position)>,
    /// Retained messages still to be sent for new subscriptions.
    pub(crate) retained: VecDeque<RetainedCursor>,
    /// Flows from which subscriptions have moved here, each with its last message that was undelivered then; see
    /// [`crate::message_order`].
    pub(crate) order_after: FlowPositions,
    /// Flows to which subscriptions have moved from here, each with the tree's generation since; see
    /// [`SessionState::order_after_stale_route`].
    pub(crate) moved: SmallVec<[(FlowId, u64); 1]>,
    /// The tree's generation when its client opened it. Routes found before lead to an earlier flow of its name.
    pub(crate) opened_in: u64,
    /// What the next message in the queue waits for, although the window is not full.
    pub(crate) blocked: Option<Block>,
    /// In which turn its client opened it as a flow that is stored under its name.
    pub(crate) opened: TurnStamp,
    /// `None` unless it is one of the draft's persistent flows.
    pub(crate) persistence: Option<FlowPersistence>,
}

/// A persistent flow's lifetime (draft sections 9.7 and 9.8).
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowPersistence {
    pub(crate) expiry_s: u64,
    pub(crate) expires_at: Timestamp,
    /// Whether the flow is stored under its name.
    pub(crate) stored: bool,
}

impl Flow {
    pub(crate) fn new(id: FlowId, window: u16) -> Flow {
        Flow {
            id,
            stream: None,
            ready: false,
            outbound: Outbound::new(window),
            inbound: Inbound::new(),
            queue: VecDeque::new(),
            outbox: Outbox::default(),
            rare: None,
        }
    }

    pub(crate) fn rare(&mut self) -> &mut FlowExtras {
        self.rare.get_or_insert_default()
    }

    pub(crate) fn persistence(&self) -> Option<FlowPersistence> {
        self.rare.as_ref().and_then(|rare| rare.persistence)
    }

    /// Whether the flow's messages are stored under its own name.
    pub(crate) fn is_stored(&self) -> bool {
        self.id == FlowId::CONTROL || self.persistence().is_some_and(|lifetime| lifetime.stored)
    }

    /// The flow under which this flow's messages are stored. A flow that ends with its stream has no records of its
    /// own: the client's next connection uses the same stream identifiers again, and another worker may still be
    /// storing messages for the flow after its end.
    pub(crate) fn stored_as(&self) -> FlowId {
        if self.is_stored() { self.id } else { FlowId::CONTROL }
    }

    /// The progress that is stored for a message sent with `packet_id`.
    pub(crate) fn sent(&self, packet_id: PacketId) -> Progress {
        if self.is_stored() { Progress::Sent(packet_id) } else { Progress::Offered }
    }

    /// In which turn the flow itself was stored.
    pub(crate) fn opened(&self) -> TurnStamp {
        self.rare.as_ref().map_or_else(TurnStamp::default, |rare| rare.opened)
    }

    /// Sets what the first message in the queue waits for.
    pub(crate) fn set_blocked(&mut self, blocked: Option<Block>) {
        if blocked.is_some() || self.rare.is_some() {
            self.rare().blocked = blocked;
        }
    }

    /// Whether its connection has to check the queue again without a new event.
    pub(crate) fn waits_for_worker(&self) -> bool {
        let by_worker = |rare: &FlowExtras| rare.blocked == Some(Block::Worker);
        !self.queue.is_empty() && self.rare.as_deref().is_some_and(by_worker)
    }

    /// Whether there are messages that must be sent before a new one.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.queue.is_empty() || self.rare.as_ref().is_some_and(|rare| !rare.resend.is_empty())
    }

    /// Whether [`Flow::outbox`] could be refilled.
    pub(crate) fn has_more(&self) -> bool {
        self.has_waiting() || self.rare.as_ref().is_some_and(|rare| !rare.retained.is_empty())
    }

    /// Whether the client's acknowledgements on the previous stream may not be stored yet.
    pub(crate) fn waits_for_acknowledgements(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.resend_after.is_some())
    }

    /// Whether there is something to send again and the client has room for it: it may accept fewer messages at once
    /// than on the previous connection ([MQTT-3.3.4-9]).
    pub(crate) fn can_resend(&self) -> bool {
        if self.waits_for_acknowledgements() {
            return false;
        }
        let Some(resend) = self.rare.as_ref().map(|rare| &rare.resend) else { return false };
        let publishes =
            |id: &PacketId| matches!(self.outbound.replay_of(*id), Some(Replay::Publish { .. }));
        resend
            .front()
            .is_some_and(|next| !publishes(next) || self.outbound.has_room_beside(resend.len()))
    }

    /// Whether refilling [`Flow::outbox`] would put something into it now.
    pub(crate) fn can_refill(&self) -> bool {
        if self.waits_for_acknowledgements() {
            return false;
        }
        let rare = self.rare.as_ref();
        let room = !self.outbound.is_full() && rare.is_none_or(|rare| rare.blocked.is_none());
        let has_retained = |rare: &FlowExtras| {
            let next = rare.retained.front();
            next.is_some_and(|cursor| room || cursor.qos == QoS::AtMostOnce)
        };
        self.can_resend()
            || (room && !self.queue.is_empty())
            // Behind all others. What is to be sent again may wait for room that a QoS 0 message does not need.
            || (!self.has_waiting()
                && rare.is_some_and(|rare| rare.blocked.is_none() && has_retained(rare)))
    }

    /// Attaches the flow to a stream of a new connection. Packets encoded for the old stream are dropped with its
    /// aliases, and everything unacknowledged is sent again ([MQTT-4.4.0-1]).
    pub(crate) fn attach(&mut self, stream: StreamKey, window: u16) {
        self.stream = Some(stream);
        self.ready = false;
        self.outbox = Outbox::default();
        self.outbound.set_window(window);
        let resend: VecDeque<PacketId> =
            self.outbound.replay().map(|replay| replay.packet_id()).collect();
        if !resend.is_empty() || self.rare.is_some() {
            let rare = self.rare();
            (rare.resend, rare.resend_after) = (resend, None);
        }
    }

    /// Detaches the flow from its stream.
    pub(crate) fn detach(&mut self) {
        self.stream = None;
        self.ready = false;
        self.outbox = Outbox::default();
        // The session may stay for days.
        self.outbound.shrink_to_fit();
        self.inbound.shrink_to_fit();
        self.queue.shrink_to_fit();
        if let Some(rare) = &mut self.rare {
            rare.unsendable.shrink_to_fit();
            rare.resend = VecDeque::new();
            rare.resend_after = None;
            // The others are for the client that resumes the session.
            rare.retained.retain(|cursor| cursor.qos > QoS::AtMostOnce);
            rare.retained.shrink_to_fit();
            rare.blocked = None;
        }
    }
}

/// A message to be delivered to one receiver.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) message: Arc<Message>,
    pub(crate) position: Position,
    pub(crate) identifiers: Identifiers,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// It waits to be sent and may have been sent before, on another stream or before a restart: it is sent with DUP
    /// ([MQTT-3.3.1-1]).
    pub(crate) maybe_sent: bool,
    /// The shared subscription whose job it is ([`crate::message::share`]); 0 for none.
    pub(crate) share: u32,
    /// Its acknowledgement is reported to the tracer.
    pub(crate) traced: bool,
    pub(crate) send_state: SendState,
    /// In which turn it was queued.
    pub(crate) stamp: TurnStamp,
    /// What it counts for the session's owner.
    pub(crate) kept: Option<Kept>,
}

/// Whether a message may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    /// No: QoS 2 of a durable session, and its packet identifier is not stored yet.
    Unstored,
    /// No: storage has its packet identifier if it needs to, but not that of an earlier message, which must be sent first.
    Stored,
    /// Yes, also again.
    Sendable,
}

impl SendState {
    /// The state of a message that has not been sent.
    pub(crate) fn of_new(durable: bool, qos: QoS) -> SendState {
        if durable && qos == QoS::ExactlyOnce { SendState::Unstored } else { SendState::Sendable }
    }
}

//! What an operator sees of sessions and retained messages, and what an operator can do with clients and sessions.
//!
//! Lists have pages: no call locks anything for longer than its page takes.

use std::net::IpAddr;
use std::sync::Arc;

use fulmar_auth::{Logins, Timestamp, User, Vouched};
use fulmar_mqtt::Version;

use crate::bans::{Ban, BannedSubject};
use crate::broker::Broker;
use crate::event::{BrokerEvent, CloseOrder};
use crate::message::Message;
use crate::session::{Session, SessionState};

/// Clients that are examined at once.
const SLICE: usize = 256;

/// A session, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    /// The client identifier.
    pub client: Box<str>,
    /// The owner; `None` for an anonymous client.
    pub user: Option<Box<str>>,
    /// Whether its client is connected.
    pub connected: bool,
    /// Whether it is stored.
    pub durable: bool,
    /// Whether it is the gateway's or the platform's.
    pub internal: bool,
    /// The version of its client: 4 (3.1.1) or 5.
    pub version: u8,
    /// Seconds that it outlives its connection.
    pub expiry_interval_s: u32,
    /// When it expires, by the system's clock; `None` while its client is connected, and if never.
    pub expires: Option<Timestamp>,
    /// Subscriptions.
    pub subscriptions: usize,
    /// Messages in its queues.
    pub queued_messages: usize,
    /// Bytes of those.
    pub queued_bytes: usize,
    /// Messages sent and not yet acknowledged.
    pub in_flight: usize,
    /// The topic of its will.
    pub will_topic: Option<Box<str>>,
}

/// A subscription, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionSummary {
    /// The topic filter, with `$share` if it is shared.
    pub filter: Box<str>,
    /// The maximum QoS.
    pub qos: u8,
    /// Whether the client gets no publications of its own.
    pub no_local: bool,
    /// The flow on which it delivers; 0 is the control flow.
    pub flow: u64,
}

/// A flow, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSummary {
    /// Number; 0 is the control flow.
    pub flow: u64,
    /// Messages in its queue.
    pub queued_messages: usize,
    /// Messages sent and not yet acknowledged.
    pub in_flight: usize,
}

/// A session with its subscriptions and flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionDetails {
    /// The session.
    pub summary: SessionSummary,
    /// Subscriptions, by filter, up to a maximum.
    pub subscriptions: Vec<SubscriptionSummary>,
    /// Flows.
    pub flows: Vec<FlowSummary>,
}

/// Why a session was not deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDeleted {
    /// There is none.
    Unknown,
    /// It belongs to the gateway or the platform, which would lose messages.
    Internal,
}

impl Broker {
    /// Disconnects this client with this reason, as its worker gets to it. False if it is not connected, or part of the
    /// program.
    pub fn disconnect(&self, client_id: &str, order: CloseOrder) -> bool {
        let Some(session) = self.registry.find(client_id) else { return false };
        self.transports.connection_of(session.key().0).is_some() && self.close(&session, order)
    }

    fn close(&self, session: &Session, order: CloseOrder) -> bool {
        let Some(at) = session.lock().attachment else { return false };
        self.mailboxes.post(at, BrokerEvent::Close(order));
        true
    }

    /// Replaces all bans, and disconnects clients that they are about. The system's clock shows `wall`.
    pub fn set_bans(&self, bans: Vec<Ban>, wall: Timestamp) {
        self.bans.set(bans);
        // A client that connects meanwhile looks at the bans again when it is in the list.
        let mut place = 0;
        loop {
            let found = self.connections(place, SLICE);
            let Some(last) = found.last() else { return };
            place = last.place;
            for client in found {
                let address = Some(client.address.ip());
                let (client_id, user) =
                    (&*client.client, client.user.as_deref().map(User::from_text));
                let subject = BannedSubject { client_id, user: user.as_ref(), address };
                if self.bans.covers(&subject, wall) {
                    self.disconnect(&client.client, CloseOrder::Administrative);
                }
            }
        }
    }

    /// Whether a ban is about the network of this address. For protocols with peers that have no connection of their own,
    /// which would otherwise be asked at CONNECT.
    #[must_use]
    pub fn is_network_banned(&self, address: IpAddr, now: Timestamp) -> bool {
        self.bans.covers_address(address, self.wall(now))
    }

    /// Whether clients may connect with any user name where anonymous clients may: nobody has named users yet.
    #[must_use]
    pub fn admits_unknown_names(&self) -> bool {
        self.access_control().admits_unknown_names()
    }

    /// True if the password file, the store of identities or the platform has a user of this name. Others may connect by
    /// certificates and tokens.
    #[must_use]
    pub fn knows_user(&self, name: &str) -> bool {
        self.access_control().knows_user(name)
    }

    /// Logins by password.
    #[must_use]
    pub fn logins(&self) -> Arc<Logins> {
        Arc::clone(&self.access_control().logins)
    }

    /// The user whom clients of this name are, or who is shown so: the platform's if only it knows the name.
    #[must_use]
    pub fn user_named(&self, text: &str) -> User {
        let (user, access_control) = (User::from_text(text), self.access_control());
        let external = user.operators().filter(|name| access_control.only_external(name));
        external.and_then(User::external).unwrap_or(user)
    }

    /// Calls `watcher` whenever bans have changed, for such protocols.
    pub fn watch_bans(&self, watcher: impl Fn() + Send + Sync + 'static) {
        self.bans.watch(watcher);
    }

    /// Sessions by client identifier, from the one behind `after` on: at most `most`.
    #[must_use]
    pub fn session_list(&self, after: &str, most: usize) -> Vec<SessionSummary> {
        let sessions = self.registry.after(after, most);
        sessions.iter().map(|session| summary(self, session, &session.lock())).collect()
    }

    /// A session with at most `most` of its subscriptions.
    #[must_use]
    pub fn session_details(&self, client_id: &str, most: usize) -> Option<SessionDetails> {
        let session = self.registry.find(client_id)?;
        let state = session.lock();
        let subscriptions = state.subscriptions.iter().take(most).map(|(filter, own)| {
            let options = own.options;
            SubscriptionSummary {
                filter: filter.clone(),
                qos: options & 3,
                no_local: options & 4 != 0,
                flow: own.flow.0,
            }
        });
        let mut subscriptions: Vec<_> = subscriptions.collect();
        subscriptions.sort_by(|a, b| a.filter.cmp(&b.filter));
        let flows = state.flows.iter().map(|flow| FlowSummary {
            flow: flow.id.0,
            queued_messages: flow.queue.len(),
            in_flight: flow.outbound.in_flight(),
        });
        let flows = flows.collect();
        Some(SessionDetails { summary: summary(self, &session, &state), subscriptions, flows })
    }

    /// Ends a session as if it had expired: its client is disconnected, its will is published, its queue is lost. That
    /// takes until the workers get to it; [`Broker::has_session`] with the returned number says when it is done.
    ///
    /// # Errors
    /// No client has this session, or a part of the program uses it.
    pub fn delete_session(&self, client_id: &str) -> Result<u64, NotDeleted> {
        let session = self.registry.find(client_id).ok_or(NotDeleted::Unknown)?;
        let mut state = session.lock();
        if is_internal(&state) {
            return Err(NotDeleted::Internal);
        }
        if let Some(at) = state.attachment {
            drop(state);
            self.mailboxes.post(at, BrokerEvent::Close(CloseOrder::SessionDeleted));
            return Ok(session.key().0);
        }
        state.expires_at = Timestamp(0);
        self.schedule(&session, &mut state);
        Ok(session.key().0)
    }

    /// Ends all sessions of external users, who do not exist any more: others who get their names
    /// must not have what is queued for them.
    pub fn delete_sessions_of_external_users(&self, is_gone: impl Fn(&str) -> bool) {
        let is_theirs = |user: Option<&User>| match user.map(User::vouched) {
            Some(Vouched::External(name)) => is_gone(name),
            _ => false,
        };
        for client_id in self.registry.clients_of(is_theirs) {
            // One that is gone meanwhile needs nothing.
            let _ = self.delete_session(&client_id);
        }
    }

    /// Whether this client still has the session of this number, and no newer one.
    #[must_use]
    pub fn has_session(&self, client_id: &str, number: u64) -> bool {
        self.registry.find(client_id).is_some_and(|session| session.key().0 == number)
    }

    /// Retained messages in the order of their topics, from the one behind `after` on, without the broker's own (`$`)
    /// and those that have expired: at most `most`, and the last topic that was examined if there may be more.
    #[must_use]
    pub fn retained_list(
        &self,
        after: &str,
        most: usize,
        now: Timestamp,
    ) -> (Vec<Arc<Message>>, Option<Box<str>>) {
        let retained = self.retained.read();
        let mut topics = retained.topics_after(after);
        let page: Vec<&str> = topics.by_ref().take(most).collect();
        let next = page.last().filter(|_| topics.next().is_some()).map(|last| Box::from(*last));
        let messages = page.iter().filter_map(|topic| retained.get(topic));
        let messages = messages.filter(|message| !message.is_expired(now)).map(Arc::clone);
        (messages.collect(), next)
    }

    /// The first topic from this one on that has a retained message, without the broker's own (`$`).
    #[must_use]
    pub fn retained_topic_from(&self, from: &str) -> Option<Box<str>> {
        let retained = self.retained.read();
        if !from.starts_with('$') && retained.get(from).is_some() {
            return Some(from.into());
        }
        retained.topics_after(from).next().map(Box::from)
    }

    /// Number of topics with a retained message between these two, without the broker's own (`$`).
    #[must_use]
    pub fn retained_topics_between(&self, after: &str, before: &str) -> usize {
        self.retained.read().topics_after(after).take_while(|topic| *topic < before).count()
    }

    /// The topic at this place behind `after`, from 1 on, among those with a retained message and without the broker's own
    /// (`$`); the last one if there are fewer.
    #[must_use]
    pub fn retained_topic_behind(&self, after: &str, place: usize) -> Option<Box<str>> {
        self.retained.read().topics_after(after).take(place).last().map(Box::from)
    }

    /// A topic's retained message, whatever the rules say.
    #[must_use]
    pub fn retained_message(&self, topic: &str, now: Timestamp) -> Option<Arc<Message>> {
        let message = self.retained.read().get(topic).map(Arc::clone);
        message.filter(|message| !message.is_expired(now))
    }
}

/// True if a part of the program uses this session. That of a part that is no longer configured is like a client's.
fn is_internal(state: &SessionState) -> bool {
    let is_connected = state.attachment.is_some();
    state.queued.is_internal() || (is_connected && User::is_program(state.user.as_ref()))
}

fn summary(broker: &Broker, session: &Session, state: &SessionState) -> SessionSummary {
    let in_flight = state.flows.iter().map(|flow| flow.outbound.in_flight()).sum();
    let expires = (state.attachment.is_none() && state.expires_at != Timestamp::NEVER)
        .then(|| broker.wall(state.expires_at));
    SessionSummary {
        client: session.client_id().into(),
        user: state.user.as_ref().map(|user| user.text().into()),
        connected: state.attachment.is_some(),
        durable: state.durable,
        internal: is_internal(state),
        version: if state.version == Version::V5 { 5 } else { 4 },
        expiry_interval_s: state.expiry_interval_s,
        expires,
        subscriptions: state.subscriptions.len(),
        queued_messages: state.queued.messages(),
        queued_bytes: state.queued.bytes(),
        in_flight,
        will_topic: state.will.as_ref().map(|will| will.topic.clone()),
    }
}

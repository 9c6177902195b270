//! What refuses a CONNECT, and the refusals (section 3.2.2.2), each with a line in the log.

use fulmar_auth::access::{Action, Subject};
use fulmar_auth::{AccessControl, Because, CONTROL_PREFIX, User, text_of};
use fulmar_mqtt::packet::{Connack, Connect};
use fulmar_mqtt::{Properties, Property, PropertyBuf, ReasonCode};

use super::{Connection, State};
use crate::bans::BannedSubject;
use crate::shard::Shard;
use crate::turn::MEMORY_FULL;

/// Bytes of a CONNACK without properties, the size of a refusal. An AUTH without data is smaller than a CONNACK of
/// success, and an acknowledgement no larger than this. For a connected client, only answers with many codes, and AUTH
/// with data, can therefore be too large.
const REFUSAL_BYTES: u32 = 5;

impl Connection {
    /// The cause for which the client may leave this will; `None` if it may not.
    pub(super) fn may_leave(
        &self,
        shard: &mut Shard,
        access_control: &AccessControl,
        subject: Subject<'_>,
        topic: &str,
    ) -> Option<Because> {
        // Requests are not published when their client has gone.
        let is_request = topic.starts_with(CONTROL_PREFIX);
        let (allowed, because) = access_control.explain(subject, Action::Publish, topic);
        if !is_request && allowed {
            return Some(because);
        }
        shard.metrics().access_denied.add(1);
        tracing::info!(peer = %self.peer.address, client = subject.client_id,
            user = text_of(subject.user), topic, "will denied, connection refused");
        None
    }

    /// Whether a ban is about the client; its user is not known before it is authenticated.
    pub(super) fn is_banned(&self, shard: &Shard, client_id: &str, user: Option<&User>) -> bool {
        let client = BannedSubject { client_id, user, address: Some(self.peer.address.ip()) };
        shard.broker().bans.covers(&client, shard.wall())
    }

    pub(super) fn recheck_ban(&mut self, shard: &mut Shard) {
        let State::Connected(session) = &self.state else { return };
        let user = session.lock().user.clone();
        if self.is_banned(shard, session.client_id(), user.as_ref()) {
            self.disconnect(shard, ReasonCode::AdministrativeAction, "banned");
        }
    }

    /// Closes the connection without an answer, after a CONNECT that violates the rules of 3.1.1 ([MQTT-3.1.4-1]) or is
    /// of another protocol.
    pub(super) fn turn_away(&mut self, shard: &mut Shard, reason: ReasonCode) {
        shard.metrics().connect_refused.add(1);
        self.state = State::New;
        self.end(shard, "CONNECT is not valid", u64::from(reason.as_u8()));
    }

    /// Refuses a client because too many logins wait. It does not count as a failed login.
    pub(super) fn refuse_for_now(&mut self, shard: &mut Shard) {
        shard.metrics().logins_busy.add(1);
        if let Some(times) = shard.turn.occurred("logins waiting to be checked") {
            tracing::warn!(peer = %self.peer.address, times,
                "connection refused for now: too many logins are waiting to be checked");
        }
        self.refuse(shard, ReasonCode::ServerBusy);
    }

    pub(super) fn refuse_banned(
        &mut self,
        shard: &mut Shard,
        client_id: &str,
        user: Option<&User>,
    ) {
        let user = text_of(user);
        tracing::info!(peer = %self.peer.address, client = client_id, user, "connection refused: banned");
        self.refuse(shard, ReasonCode::Banned);
    }

    /// Refuses a client that has logged in.
    pub(super) fn refuse_login(&mut self, shard: &mut Shard, subject: Subject<'_>, why: &str) {
        shard.metrics().authentication_failed.add(1);
        tracing::info!(peer = %self.peer.address, client = subject.client_id,
            user = text_of(subject.user), "login refused: {why}");
        self.refuse(shard, ReasonCode::NotAuthorized);
    }

    /// Refuses a new session for which its user, or its address, has no memory left.
    pub(super) fn refuse_memory(&mut self, shard: &mut Shard, client_id: &str, user: Option<&str>) {
        shard.metrics().memory_refused.add(1);
        if let Some(times) = shard.turn.occurred(MEMORY_FULL) {
            tracing::warn!(peer = %self.peer.address, client = client_id, user, times,
                "connection refused: the user's sessions have their share of [limits] memory");
        }
        self.refuse(shard, ReasonCode::QuotaExceeded);
    }

    /// Refuses a long CONNECT whose address has no memory left for it.
    pub(super) fn refuse_unknown(&mut self, shard: &mut Shard, client_id: &str) {
        shard.metrics().memory_refused.add(1);
        if let Some(times) = shard.turn.occurred(MEMORY_FULL) {
            tracing::warn!(peer = %self.peer.address, client = client_id, times,
                "connection refused: unfinished logins from its network have their share of [limits] memory");
        }
        self.refuse(shard, ReasonCode::QuotaExceeded);
    }

    /// Refuses a client identifier that belongs to another user, before that user's session is touched.
    pub(super) fn refuse_foreign(
        &mut self,
        shard: &mut Shard,
        client_id: &str,
        user: Option<&User>,
        owner: Option<&User>,
    ) {
        shard.metrics().sessions_refused.add(1);
        if let Some(times) = shard.turn.occurred("client identifiers of other users") {
            let (user, owner) = (name_of(user), name_of(owner));
            tracing::warn!(peer = %self.peer.address, transport = %self.peer.transport,
                client = client_id, user, owner, times,
                "connection refused: the client identifier belongs to another user's session");
        }
        self.refuse(shard, ReasonCode::ClientIdentifierNotValid);
    }

    /// Answers CONNECT with an error and closes; without an answer if its size is above the client's Maximum Packet
    /// Size ([MQTT-3.1.2-24]).
    pub(super) fn refuse_within(&mut self, shard: &mut Shard, reason: ReasonCode, most_bytes: u32) {
        if most_bytes < REFUSAL_BYTES {
            return self.turn_away(shard, reason);
        }
        self.refuse(shard, reason);
    }

    /// Names the server to use instead (section 4.11), and closes.
    pub(super) fn redirect(&mut self, shard: &mut Shard, connect: &Connect<'_>) {
        let transport = self.peer.transport;
        let reference =
            shard.broker().redirect().and_then(|redirect| redirect.reference(transport));
        let Some(reference) = reference else {
            return self.refuse_within(shard, ReasonCode::ServerUnavailable, largest(connect));
        };
        let (reason, most_bytes) = (ReasonCode::UseAnotherServer, largest(connect));
        let mut properties = PropertyBuf::new();
        properties.push(Property::ServerReference(&reference));
        let properties = properties.as_properties();
        let mut packet = Vec::new();
        Connack { session_present: false, reason, properties }.encode(self.version, &mut packet);
        if packet.len() > most_bytes as usize {
            return self.refuse_within(shard, reason, most_bytes);
        }
        self.refuse_with(shard, reason, properties);
    }

    /// Answers CONNECT with an error and closes. The client accepts packets of [`REFUSAL_BYTES`].
    pub(super) fn refuse(&mut self, shard: &mut Shard, reason: ReasonCode) {
        self.refuse_with(shard, reason, Properties::NONE);
    }

    pub(super) fn refuse_with(
        &mut self,
        shard: &mut Shard,
        reason: ReasonCode,
        properties: Properties<'_>,
    ) {
        shard.metrics().connect_refused.add(1);
        let connack = Connack { session_present: false, reason, properties };
        connack.encode(self.version, &mut self.streams[0].out);
        self.state = State::New;
        self.end(shard, reason.text(), u64::from(reason.as_u8()));
    }
}

fn name_of(user: Option<&User>) -> &str {
    user.map_or("(anonymous)", User::text)
}

/// The client's Maximum Packet Size.
pub(super) fn largest(connect: &Connect<'_>) -> u32 {
    let said = fulmar_mqtt::find_property!(connect.properties, MaximumPacketSize);
    said.unwrap_or(u32::MAX)
}

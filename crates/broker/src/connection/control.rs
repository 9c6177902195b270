//! Requests to change the identity store ([`crate::control`]), and their answers.

use fulmar_auth::User;
use fulmar_mqtt::ReasonCode;

use super::{Connection, State};
use crate::control::{CONTROL_TOPIC, ControlReply, ControlRequest, RESPONSE_TOPIC};
use crate::message::MessageParts;
use crate::shard::Shard;

impl Connection {
    /// Hands a request on that the rules allow. Returns the publication's reason code: the answer has what came of it.
    pub(super) fn control(&self, shard: &Shard, parts: &MessageParts<'_>) -> ReasonCode {
        let broker = shard.broker();
        let State::Connected(session) = &self.state else { return ReasonCode::NotAuthorized };
        let Some(control) = broker.control().filter(|_| parts.topic == CONTROL_TOPIC) else {
            return ReasonCode::NotAuthorized;
        };
        let user = session.lock().user.clone();
        control.request(ControlRequest {
            payload: parts.payload,
            client_id: session.client_id(),
            username: user.as_ref().and_then(User::operators),
            from: self.peer.address.ip(),
            reply_to: ControlReply::new(broker.mailboxes.clone(), self.at),
        });
        ReasonCode::Success
    }

    /// Publishes the answer to this client.
    pub(super) fn control_response(&self, shard: &mut Shard, payload: &[u8]) {
        let State::Connected(session) = &self.state else { return };
        if !shard.publish_to(session, RESPONSE_TOPIC, payload) {
            tracing::debug!(client = session.client_id(), "not subscribed to {RESPONSE_TOPIC}");
        }
    }
}

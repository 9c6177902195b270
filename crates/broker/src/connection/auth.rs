//! Enhanced authentication (section 4.12): method `JWT`.
//!
//! The token is the Authentication Data of CONNECT, or of the AUTH that answers our challenge if
//! CONNECT had none. A connected client sends a fresh one with AUTH 0x19 before the old expires and
//! stays connected. SCRAM is not offered: it needs its own form of stored passwords, and ours are
//! argon2 hashes.

use std::sync::Arc;

use fulmar_mqtt::codec::{Frame, decode};
use fulmar_mqtt::packet::{Auth, Connect};
use fulmar_mqtt::{Packet, Properties, Property, PropertyBuf, ReasonCode, Version};

use super::connect::PendingConnect;
use super::{Connection, State};
use crate::access::Subject;
use crate::auth::AuthReply;
use crate::peer::PeerIdentity;
use crate::session::Session;
use crate::shard::Shard;

/// The method this broker offers.
pub(super) const METHOD: &str = "JWT";

/// The properties of CONNECT or AUTH about authentication.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exchange<'a> {
    pub(super) method: Option<&'a str>,
    pub(super) data: Option<&'a [u8]>,
}

impl<'a> Exchange<'a> {
    pub(super) fn read(properties: Properties<'a>) -> Exchange<'a> {
        let mut exchange = Exchange::default();
        for property in properties.iter() {
            match property {
                Property::AuthenticationMethod(method) => exchange.method = Some(method),
                Property::AuthenticationData(data) => exchange.data = Some(data),
                _ => {}
            }
        }
        exchange
    }
}

impl Connection {
    /// A CONNECT that names a method.
    pub(super) fn begin_exchange(
        &mut self,
        shard: &mut Shard,
        pending: PendingConnect,
        connect: &Connect<'_>,
        exchange: Exchange<'_>,
    ) {
        if exchange.method != Some(METHOD) || shard.broker().access_control().jwt.is_none() {
            return self.refuse(shard, ReasonCode::BadAuthenticationMethod);
        }
        let Some(data) = exchange.data else {
            self.state = State::Challenged(Box::new(pending));
            return self.send_auth(ReasonCode::ContinueAuthentication);
        };
        let reply = check(shard, data, connect.username);
        self.state = State::Authenticating(Box::new(pending));
        self.authenticated(shard, reply);
    }

    /// A packet between our challenge and CONNACK: AUTH or DISCONNECT, nothing else
    /// ([MQTT-3.1.2-30]).
    pub(super) fn handle_challenged(&mut self, shard: &mut Shard, frame: &Frame<'_>) {
        let State::Challenged(pending) = std::mem::replace(&mut self.state, State::New) else {
            return;
        };
        match decode(frame, Version::V5) {
            Ok(Packet::Disconnect(_)) => self.end(shard, "client gave up", 0),
            Ok(Packet::Auth(auth)) if auth.reason == ReasonCode::ContinueAuthentication => {
                let exchange = Exchange::read(auth.properties);
                let reply = match exchange.data {
                    Some(data) if exchange.method == Some(METHOD) => {
                        check(shard, data, pending.username())
                    }
                    _ => Err(ReasonCode::ProtocolError),
                };
                self.state = State::Authenticating(pending);
                self.authenticated(shard, reply);
            }
            Err(error) if error.reason() == ReasonCode::MalformedPacket => {
                self.refuse(shard, ReasonCode::MalformedPacket);
            }
            // CONNACK has no code for what can be wrong with other packets.
            Ok(_) | Err(_) => self.refuse(shard, ReasonCode::ProtocolError),
        }
    }

    /// AUTH of a connected client (section 4.12.1): a fresh token.
    pub(super) fn handle_auth(
        &mut self,
        shard: &mut Shard,
        session: &Arc<Session>,
        auth: &Auth<'_>,
    ) {
        let exchange = Exchange::read(auth.properties);
        let awaited = match auth.reason {
            ReasonCode::ReAuthenticate => true,
            ReasonCode::ContinueAuthentication => self.rare().challenged,
            _ => false,
        };
        if !self.rare().by_method || !awaited || exchange.method != Some(METHOD) {
            let why = "AUTH without a method at CONNECT, or out of order";
            return self.refuse_packet(shard, ReasonCode::ProtocolError, &why);
        }
        self.rare().challenged = exchange.data.is_none();
        let Some(data) = exchange.data else {
            return self.send_auth(ReasonCode::ContinueAuthentication);
        };
        let username = session.lock().username.clone();
        match check(shard, data, username.as_deref()) {
            // The user cannot change: `check` compares the names, and there is one.
            Ok(admitted) if username.is_some() => {
                let rare = self.rare();
                rare.admitted_until = admitted.until;
                if admitted.credential.is_some() {
                    rare.credential = admitted.credential;
                }
                self.send_auth(ReasonCode::Success);
            }
            _ => {
                shard.metrics().authentication_failed.add(1);
                tracing::info!(peer = %self.peer.address, client = session.client_id(),
                    "token of a re-authentication refused");
                self.disconnect(shard, ReasonCode::NotAuthorized, "re-authentication failed");
            }
        }
    }

    /// Forgets cached decisions of the rules. Disconnects a client whose certificate was revoked, or an external user whose
    /// credential was revoked, or that may no longer get the topics to which it has subscribed.
    pub(super) fn recheck(&mut self, shard: &mut Shard) {
        self.allowed_topic = Box::default();
        let State::Connected(session) = &self.state else { return };
        let access_control = shard.broker().access_control();
        let credential = self.rare.as_ref().and_then(|rare| rare.credential.as_deref());
        let why = if self.has_revoked_certificate(shard) {
            "certificate revoked"
        } else if credential.is_some_and(|credential| !access_control.is_good(credential)) {
            "credential revoked"
        } else {
            let state = session.lock();
            let client_id = session.client_id();
            let subject = Subject { username: state.username.as_deref(), client_id };
            if !access_control
                .has_outgrown(subject, state.subscriptions.keys().map(|filter| &**filter))
            {
                return;
            }
            "no longer allowed to read its subscriptions"
        };
        tracing::info!(peer = %self.peer.address, client = self.client_id(), "closed: {why}");
        self.disconnect(shard, ReasonCode::NotAuthorized, why);
    }

    /// Whether the client has presented a certificate that its CA has revoked since.
    pub(super) fn has_revoked_certificate(&self, shard: &Shard) -> bool {
        let certificate = self.peer.identity.as_ref().and_then(PeerIdentity::certificate);
        certificate.is_some_and(|number| shard.broker().revoked_certificates().contains(&number))
    }

    fn send_auth(&mut self, reason: ReasonCode) {
        let mut properties = PropertyBuf::new();
        properties.push(Property::AuthenticationMethod(METHOD));
        let auth = Auth { reason, properties: properties.as_properties() };
        auth.encode(&mut self.streams[0].out);
    }
}

fn check(shard: &Shard, token: &[u8], username: Option<&str>) -> AuthReply {
    shard.broker().access_control().check_token(token, username, shard.now())
}

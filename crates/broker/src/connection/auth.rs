//! Enhanced authentication (section 4.12): methods `JWT` and `SCRAM-SHA-256`.
//!
//! A token is the Authentication Data of CONNECT, or of the AUTH that answers our challenge if CONNECT had none. SCRAM's
//! first message comes in the same way, our answer is the data of an AUTH, the client's last message that of another
//! one, and our last message that of CONNACK. A connected client authenticates again with AUTH 0x19, with the method of
//! its CONNECT and as the same user, and stays connected.

use std::sync::Arc;

use fulmar_auth::access::Subject;
use fulmar_auth::{
    AccessControl, Admitted, AuthReply, PeerCertificate, PeerIdentity, ScramLogin, Timestamp,
    TokenSource, User,
};
use fulmar_mqtt::codec::{Frame, decode};
use fulmar_mqtt::packet::Auth;
use fulmar_mqtt::{Packet, Properties, Property, PropertyBuf, ReasonCode, Version};

use super::connect::PendingConnect;
use super::{Connection, State};
use crate::lifecycle;
use crate::memory::{Account, MemoryShare};
use crate::session::Session;
use crate::shard::Shard;

/// How the identity store keeps a client out.
pub(super) const BY_STORE: &str = "disabled, removed (`fulmar ctl users remove NAME --forget` ends that), or with another client identifier";

/// An exchange that waits for the client's last message, and the memory that is counted for it.
#[derive(Debug)]
pub(super) struct ScramExchange {
    login: ScramLogin,
    _share: Option<MemoryShare>,
}

/// A method that this broker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Jwt,
    Scram,
}

impl Method {
    pub(super) fn from_name(name: &str) -> Option<Method> {
        [Method::Jwt, Method::Scram].into_iter().find(|method| method.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Method::Jwt => "JWT",
            Method::Scram => fulmar_scram::MECHANISM,
        }
    }

    fn is_offered(self, access_control: &AccessControl) -> bool {
        match self {
            Method::Jwt => access_control.jwt.is_some(),
            Method::Scram => access_control.scram.is_some(),
        }
    }
}

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
        exchange: Exchange<'_>,
    ) {
        let access_control = shard.broker().access_control();
        let offered = pending.method.filter(|method| method.is_offered(&access_control));
        let Some(method) = offered else {
            tracing::info!(peer = %self.peer.address, client = pending.client_id(), method = exchange.method,
                "connection refused: the authentication method is not offered");
            return self.refuse(shard, ReasonCode::BadAuthenticationMethod);
        };
        match exchange.data {
            Some(data) => self.continue_exchange(shard, Box::new(pending), method, data),
            None => {
                self.state = State::Challenged(Box::new(pending));
                self.send_auth(ReasonCode::ContinueAuthentication, method, None);
            }
        }
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
                match (pending.method, exchange.data) {
                    (Some(method), Some(data)) if exchange.method == Some(method.name()) => {
                        self.continue_exchange(shard, pending, method, data);
                    }
                    _ => {
                        self.state = State::Authenticating(pending);
                        self.authenticated(shard, Err(ReasonCode::ProtocolError));
                    }
                }
            }
            Err(error) if error.reason() == ReasonCode::MalformedPacket => {
                self.refuse(shard, ReasonCode::MalformedPacket);
            }
            // CONNACK has no code for what can be wrong with other packets.
            Ok(_) | Err(_) => self.refuse(shard, ReasonCode::ProtocolError),
        }
    }

    /// Authentication Data of a client that is not connected yet.
    fn continue_exchange(
        &mut self,
        shard: &mut Shard,
        mut pending: Box<PendingConnect>,
        method: Method,
        data: &[u8],
    ) {
        let reply = match (method, pending.scram.take()) {
            (Method::Jwt, _) => {
                let from = TokenSource { peer: self.peer.address, client_id: pending.client_id() };
                check(shard, data, pending.username(), from)
            }
            (Method::Scram, Some(exchange)) => {
                let access_control = shard.broker().access_control();
                let finished =
                    access_control.finish_scram(exchange.login, data, self.peer.address.ip());
                finished.map(|(admitted, end)| {
                    pending.server_final = Some(end);
                    admitted
                })
            }
            (Method::Scram, None) => {
                let access_control = shard.broker().access_control();
                // Until CONNACK, the connection has a deadline of its own.
                let until = self.opened + shard.broker().limits().connect_timeout;
                match access_control.begin_scram(data, pending.username(), until) {
                    Ok((login, answer)) => {
                        let owner = shard.broker().memory.owner(None, self.site());
                        let share = MemoryShare::take(owner, Account::Logins, login.bytes());
                        let Some(share) = share else {
                            return self.refuse_unknown(shard, pending.client_id());
                        };
                        if auth_bytes(method, &answer) > pending.max_packet_bytes as usize {
                            let most = pending.max_packet_bytes;
                            return self.refuse_within(shard, ReasonCode::PacketTooLarge, most);
                        }
                        // What the limits and the log count a failed login for.
                        pending.username = Some(login.username().into());
                        pending.scram =
                            Some(Box::new(ScramExchange { login, _share: Some(share) }));
                        self.state = State::Challenged(pending);
                        let reason = ReasonCode::ContinueAuthentication;
                        return self.send_auth(reason, method, Some(&answer));
                    }
                    Err(reason) => Err(reason),
                }
            }
        };
        self.state = State::Authenticating(pending);
        self.authenticated(shard, reply);
    }

    /// AUTH of a connected client (section 4.12.1).
    pub(super) fn handle_auth(
        &mut self,
        shard: &mut Shard,
        session: &Arc<Session>,
        auth: &Auth<'_>,
    ) {
        let exchange = Exchange::read(auth.properties);
        let rare = self.rare();
        let awaited = match auth.reason {
            // One exchange at a time.
            ReasonCode::ReAuthenticate => rare.scram.is_none(),
            ReasonCode::ContinueAuthentication => rare.challenged,
            _ => false,
        };
        let method = rare.method.filter(|method| exchange.method == Some(method.name()));
        let Some(method) = method.filter(|_| awaited) else {
            let why = "AUTH without a method at CONNECT, or out of order";
            return self.refuse_packet(shard, ReasonCode::ProtocolError, &why);
        };
        rare.challenged = exchange.data.is_none();
        let Some(data) = exchange.data else {
            return self.send_auth(ReasonCode::ContinueAuthentication, method, None);
        };
        match self.authenticate_again(shard, session, method, data) {
            Again::Admitted(admitted, end) => {
                let until = admitted.until.min(self.certified_until());
                let rare = self.rare();
                rare.admitted_until = until;
                if admitted.credential.is_some() {
                    rare.credential = admitted.credential;
                }
                self.renew_will(shard, session);
                self.send_auth(ReasonCode::Success, method, end.as_deref());
            }
            Again::Asked(answer) => {
                let reason = ReasonCode::ContinueAuthentication;
                self.send_auth(reason, method, Some(&answer));
            }
            Again::Refused => {
                shard.metrics().authentication_failed.add(1);
                tracing::info!(peer = %self.peer.address, client = session.client_id(),
                    method = method.name(), "re-authentication refused");
                self.disconnect(shard, ReasonCode::NotAuthorized, "re-authentication failed");
            }
        }
    }

    /// Authentication Data of a connected client. Its user cannot change, and there is one.
    fn authenticate_again(
        &mut self,
        shard: &Shard,
        session: &Arc<Session>,
        method: Method,
        data: &[u8],
    ) -> Again {
        let (user, owner, most) = {
            let state = session.lock();
            (state.user.clone(), state.memory_owner(), state.max_packet_bytes as usize)
        };
        if method == Method::Jwt {
            let from = TokenSource { peer: self.peer.address, client_id: session.client_id() };
            let reply = check(shard, data, None, from).ok();
            let reply = reply.filter(|admitted| admitted.user == user);
            return reply.map_or(Again::Refused, |admitted| Again::Admitted(admitted, None));
        }
        let Some(username) = user.as_ref().and_then(User::operators) else {
            return Again::Refused;
        };
        let now = shard.now();
        if let Some(exchange) = self.rare().scram.take() {
            let (access_control, from) = (shard.broker().access_control(), self.peer.address.ip());
            let in_time = now <= exchange.login.until;
            let finish = || access_control.finish_scram(exchange.login, data, from).ok();
            let finished = in_time.then(finish).flatten();
            return finished
                .map_or(Again::Refused, |(admitted, end)| Again::Admitted(admitted, Some(end)));
        }
        let until = now + shard.broker().limits().connect_timeout;
        let begun = shard.broker().access_control().begin_scram(data, Some(username), until);
        let Ok((login, answer)) = begun else { return Again::Refused };
        let fits = auth_bytes(method, &answer) <= most;
        let share = owner.map(|owner| MemoryShare::take(owner, Account::Logins, login.bytes()));
        if !fits || matches!(share, Some(None)) {
            return Again::Refused;
        }
        let rare = self.rare();
        rare.scram = Some(Box::new(ScramExchange { login, _share: share.flatten() }));
        rare.challenged = true;
        Again::Asked(answer)
    }

    /// Forgets cached decisions of the rules. Disconnects a client whose certificate was revoked, or an external user whose
    /// credential was revoked, or that may no longer get the topics to which it has subscribed.
    pub(super) fn recheck(&mut self, shard: &mut Shard) {
        self.allowed_topic = Box::default();
        let State::Connected(session) = &self.state else { return };
        // Before anything is looked at: what changes from now on causes another event.
        session.lock().awaits_recheck = false;
        let access_control = shard.broker().access_control();
        let credential = self.rare.as_ref().and_then(|rare| rare.credential.as_deref());
        let why = if let Some(why) = self.fault_of_certificate(shard) {
            why
        } else if credential.is_some_and(|credential| !access_control.is_good(credential)) {
            "credential revoked"
        } else {
            let state = session.lock();
            let client_id = session.client_id();
            let subject = Subject { user: state.user.as_ref(), client_id };
            let filters = state.subscriptions.keys().map(|filter| &**filter);
            if access_control.refuses(subject) {
                // The store may have got such a user only since: the client then has no credential of the store's.
                BY_STORE
            } else if access_control.has_outgrown(subject, filters) {
                "no longer allowed to read its subscriptions"
            } else {
                return;
            }
        };
        tracing::info!(peer = %self.peer.address, client = self.client_id(), "closed: {why}");
        self.disconnect(shard, ReasonCode::NotAuthorized, why);
    }

    /// What has become of the certificate that the client has presented: a handshake that resumes a session, and one's
    /// early data, present it without showing it again.
    pub(super) fn fault_of_certificate(&self, shard: &Shard) -> Option<&'static str> {
        let PeerCertificate { number, until } = self.certificate()?;
        let revoked = shard.broker().revoked_certificates();
        if number.is_some_and(|number| revoked.contains(&number)) {
            Some("certificate revoked")
        } else {
            (until <= shard.wall()).then_some("certificate expired")
        }
    }

    pub(super) fn certificate(&self) -> Option<PeerCertificate> {
        self.peer.identity.as_ref().and_then(PeerIdentity::certificate)
    }

    /// When the client's certificate expires.
    pub(super) fn certified_until(&self) -> Timestamp {
        self.certificate().map_or(Timestamp::NEVER, |certificate| certificate.until)
    }

    /// What the client has shown anew counts for its will, too.
    fn renew_will(&self, shard: &mut Shard, session: &Arc<Session>) {
        let credential = self.rare.as_ref().and_then(|rare| rare.credential.clone());
        lifecycle::renew_will(&mut shard.turn, session, self.at, |testator| {
            (testator.until, testator.credential) = (self.admitted_until(), credential);
        });
    }

    fn send_auth(&mut self, reason: ReasonCode, method: Method, data: Option<&str>) {
        auth_packet(reason, method, data, &mut self.streams[0].out);
    }
}

/// What comes of a connected client's Authentication Data.
enum Again {
    /// It is the same user, and this is SCRAM's last message.
    Admitted(Admitted, Option<String>),
    /// The exchange goes on with this message.
    Asked(String),
    Refused,
}

fn auth_packet(reason: ReasonCode, method: Method, data: Option<&str>, out: &mut Vec<u8>) {
    let mut properties = PropertyBuf::new();
    properties.push(Property::AuthenticationMethod(method.name()));
    if let Some(data) = data {
        properties.push(Property::AuthenticationData(data.as_bytes()));
    }
    Auth { reason, properties: properties.as_properties() }.encode(out);
}

/// Bytes of the AUTH with this message.
fn auth_bytes(method: Method, data: &str) -> usize {
    let mut packet = Vec::new();
    auth_packet(ReasonCode::ContinueAuthentication, method, Some(data), &mut packet);
    packet.len()
}

fn check(shard: &Shard, token: &[u8], username: Option<&str>, from: TokenSource<'_>) -> AuthReply {
    shard.broker().access_control().check_token(token, username, from, shard.wall())
}

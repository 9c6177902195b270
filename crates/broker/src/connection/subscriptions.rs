//! SUBSCRIBE and UNSUBSCRIBE of a connected client (MQTT 5.0, sections 3.8 to 3.11). What a subscription changes is in
//! [`crate::subscribe`].

use std::sync::Arc;

use fulmar_auth::access::{Action, Subject};
use fulmar_auth::text_of;
use fulmar_mqtt::packet::{FilterList, Suback, Subscribe, SubscribeOptions, Unsuback, Unsubscribe};
use fulmar_mqtt::topic::{Subscription, TopicError};
use fulmar_mqtt::{Properties, ReasonCode, Version};
use fulmar_text::network::site;

use super::stall::STALLED;
use super::{Connection, Waiting};
use crate::session::Session;
use crate::shard::Shard;
use crate::subscribe::Request;

/// Maximum number of filters accepted in one SUBSCRIBE or UNSUBSCRIBE; the packet's size bounds it too.
const MAX_FILTERS: usize = 10_000;

impl Connection {
    pub(super) fn handle_subscribe(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        session: &Arc<Session>,
        packet: &Subscribe<'_>,
    ) {
        let identifier = fulmar_mqtt::find_property!(packet.properties, SubscriptionIdentifier);
        let shared_no_local = packet
            .filters
            .iter()
            .any(|(filter, options)| options.no_local && filter.starts_with("$share/"));
        if shared_no_local {
            // [MQTT-3.8.3-4].
            let why = "No Local on a shared subscription";
            return self.refuse_packet(shard, ReasonCode::ProtocolError, &why);
        }
        if !self.check_filters_or_close(shard, session, packet.filters) {
            return;
        }
        let access_control = shard.broker().access_control();
        let (flow, site) = (self.flow_of(stream_index), site(self.peer.address.ip()));
        let before = shard.turn.batch_len();
        let mut codes = Vec::new();
        let mut state = session.lock();
        if !state.is_attached(self.at) {
            return;
        }
        state.last_turn = shard.turn.awaitable_stamp();
        let stalled = shard.turn.is_stalled() && state.durable;
        let user = state.user.clone();
        let subject = Subject { user: user.as_ref(), client_id: session.client_id() };
        for (text, options) in packet.filters.iter() {
            let options = if self.rare.as_ref().is_some_and(|rare| rare.bridge) {
                bridged(text, options)
            } else {
                options
            };
            let denied = Subscription::parse(text).is_ok_and(|Subscription { filter, .. }| {
                !access_control.allows(subject, Action::Subscribe, filter)
                    || shard.broker().is_hidden(filter)
            });
            let turn = &mut shard.turn;
            let code = if denied {
                turn.metrics().access_denied.add(1);
                tracing::info!(peer = %self.peer.address, client = session.client_id(),
                    user = text_of(user.as_ref()), filter = text, "subscription denied");
                ReasonCode::NotAuthorized
            } else if stalled {
                turn.metrics().storage_refused.add(1);
                STALLED
            } else {
                let request = Request { text, options, identifier, flow, site };
                crate::subscribe::add(&mut state, session, turn, request)
            };
            codes.push(code.as_u8());
        }
        drop(state);
        let wait_for_storage = shard.turn.batch_len() > before;
        let suback =
            Suback { packet_id: packet.packet_id, properties: Properties::NONE, codes: &codes };
        let mut bytes = Vec::new();
        suback.encode(self.version, &mut bytes);
        self.answer(shard, stream_index, wait_for_storage, Waiting::Packet(bytes.into()));
    }

    pub(super) fn handle_unsubscribe(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        session: &Arc<Session>,
        packet: &Unsubscribe<'_>,
    ) {
        if !self.check_filters_or_close(shard, session, packet.filters) {
            return;
        }
        let before = shard.turn.batch_len();
        let mut codes = Vec::new();
        let mut state = session.lock();
        if !state.is_attached(self.at) {
            return;
        }
        state.last_turn = shard.turn.awaitable_stamp();
        // Of 3.1.1 such packets are left unread.
        let stalled = shard.turn.is_stalled() && state.durable && self.version == Version::V5;
        let access_control = shard.broker().access_control();
        let user = state.user.clone();
        let subject = Subject { user: user.as_ref(), client_id: session.client_id() };
        for (text, _) in packet.filters.iter() {
            let denied = Subscription::parse(text)
                .is_ok_and(|own| !access_control.may_unsubscribe(subject, own.filter));
            let turn = &mut shard.turn;
            let code = if denied {
                turn.metrics().access_denied.add(1);
                ReasonCode::NotAuthorized
            } else if stalled {
                turn.metrics().storage_refused.add(1);
                STALLED
            } else {
                crate::subscribe::remove(&mut state, session, turn, text)
            };
            codes.push(code.as_u8());
        }
        drop(state);
        let wait_for_storage = shard.turn.batch_len() > before;
        let unsuback =
            Unsuback { packet_id: packet.packet_id, properties: Properties::NONE, codes: &codes };
        let mut bytes = Vec::new();
        unsuback.encode(self.version, &mut bytes);
        self.answer(shard, stream_index, wait_for_storage, Waiting::Packet(bytes.into()));
    }

    /// Returns whether the filters of a SUBSCRIBE or UNSUBSCRIBE can be handled and answered. Otherwise closes the
    /// connection, and none of them takes effect.
    fn check_filters_or_close(
        &mut self,
        shard: &mut Shard,
        session: &Session,
        filters: FilterList<'_>,
    ) -> bool {
        let count = filters.iter().count();
        if count > MAX_FILTERS {
            let why =
                format!("{count} topic filters in one packet; at most {MAX_FILTERS} are accepted");
            self.refuse_packet(shard, ReasonCode::QuotaExceeded, &why);
            return false;
        }
        if self.version == Version::V311 {
            // MQTT 3.1.1 has no return code for this; [MQTT-4.8.0-1] requires closing the connection.
            if let Some(error) = filters.iter().find_map(|(text, _)| malformed(text)) {
                self.refuse_packet(shard, ReasonCode::TopicFilterInvalid, &error);
                return false;
            }
            return true;
        }
        // [MQTT-3.1.2-24]: the SUBACK or UNSUBACK has one code per filter and cannot be shortened.
        let answer = answer_bytes(count);
        let most = session.lock().max_packet_bytes;
        if answer > most as usize {
            let why = format!("the answer would have {answer} bytes; the client accepts {most}");
            self.refuse_packet(shard, ReasonCode::PacketTooLarge, &why);
            return false;
        }
        true
    }
}

/// The error of a filter by the rules of 3.1.1, which has neither shared subscriptions nor a limit of levels.
fn malformed(filter: &str) -> Option<TopicError> {
    let error = Subscription::parse(filter).err()?;
    (!matches!(error, TopicError::TooDeep | TopicError::Share)).then_some(error)
}

/// Bytes of a SUBACK or UNSUBACK with this many codes and no properties.
fn answer_bytes(codes: usize) -> usize {
    // Identifier and length of properties.
    let body = 3 + codes;
    1 + if body < 128 {
        1
    } else if body < 16_384 {
        2
    } else {
        3
    } + body
}

/// The options of a bridge's subscription; 3.1.1 cannot express them. Messages from the bridge are not sent back to it,
/// and the RETAIN flag is kept as published.
fn bridged(filter: &str, options: SubscribeOptions) -> SubscribeOptions {
    let no_local = !filter.starts_with("$share/");
    SubscribeOptions { no_local, retain_as_published: true, ..options }
}

//! What a connection takes of its owner's memory ([`crate::memory`]): topic aliases that the client sets (MQTT 5.0 section
//! 3.3.2.3.4), and what it may send over QUIC before that is processed.

use fulmar_mqtt::ReasonCode;

use super::{Connection, State};
use crate::memory::{Account, Charge};
use crate::session::Session;
use crate::shard::Shard;
use crate::turn::MEMORY_FULL;

/// Bytes of topics of one connection's aliases that are not counted.
const FREE_ALIASES: usize = 1024;

impl Connection {
    /// Sets an alias, or looks it up.
    pub(super) fn resolve_alias(
        &mut self,
        shard: &Shard,
        stream_index: usize,
        session: &Session,
        alias: u16,
        topic: &str,
    ) -> Result<Box<str>, ReasonCode> {
        let maximum = shard.broker().limits().topic_alias_maximum;
        let table = self.streams[stream_index].aliases.get_or_insert_default();
        if topic.is_empty() {
            let is_possible = (1..=maximum).contains(&alias);
            // Section 3.3.2.3.4: a possible alias that nothing has set is a protocol error.
            let wrong =
                if is_possible { ReasonCode::ProtocolError } else { ReasonCode::TopicAliasInvalid };
            return table.get(alias).map(Into::into).ok_or(wrong);
        }
        let before = table.bytes();
        if !table.set(alias, maximum, topic) {
            return Err(ReasonCode::TopicAliasInvalid);
        }
        if table.bytes() > before && !self.count_aliases(session) {
            return Err(ReasonCode::QuotaExceeded);
        }
        Ok(topic.into())
    }

    /// Counts the topics of the client's aliases on all streams. False if its owner has no memory left for them.
    fn count_aliases(&mut self, session: &Session) -> bool {
        let tables = self.streams.iter().filter_map(|stream| stream.aliases.as_ref());
        let bytes = tables.map(|table| table.bytes()).sum();
        let counted = self.rare.as_ref().and_then(|rare| rare.aliases.as_ref());
        if bytes <= FREE_ALIASES && counted.is_none() {
            return true;
        }
        let Some(owner) = session.lock().memory_owner() else { return true };
        let counted =
            self.rare().aliases.get_or_insert_with(|| Charge::new(owner, Account::Aliases));
        let fits = bytes <= counted.bytes() || counted.has_room(bytes - counted.bytes());
        if fits {
            counted.set(bytes);
        }
        fits
    }

    /// The connection has ended.
    pub(super) fn forget_memory(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.aliases = None);
        if let Some(rare) = &mut self.rare {
            (rare.aliases, rare.input) = (None, None);
        }
    }

    /// Number of the `wanted` bytes that the client may send before they are processed, beyond what every connection
    /// may. To be called once, when the client is connected; they count for its user until the connection ends.
    pub fn input_window(&mut self, wanted: usize) -> usize {
        let State::Connected(session) = &self.state else { return 0 };
        let Some(owner) = session.lock().memory_owner() else { return wanted };
        let granted = owner.room_for(Account::Input, wanted);
        let mut charge = Charge::new(owner, Account::Input);
        charge.set(granted);
        self.rare().input = Some(charge);
        granted
    }

    pub(super) fn refuse_alias(&mut self, shard: &mut Shard, alias: u16, reason: ReasonCode) {
        if reason != ReasonCode::QuotaExceeded {
            let why = format!("topic alias {alias} is not known or too large");
            return self.refuse_packet(shard, reason, &why);
        }
        shard.metrics().memory_refused.add(1);
        if let Some(times) = shard.turn.occurred(MEMORY_FULL) {
            tracing::warn!(peer = %self.peer.address, client = self.client_id(), alias, times,
                "topic alias refused: the user's clients have their share of [limits] memory");
        }
        self.disconnect(shard, reason, "no memory for topic aliases");
    }
}

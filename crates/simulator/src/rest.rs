//! The state that must hold at rest, besides what clients were owed: storage has exactly the state of the present
//! sessions, and new subscribers get the retained messages.

use fulmar_broker::StreamKey;
use fulmar_broker::storage::SessionKey;
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::{Connect, FilterList, Subscribe, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, Version, find_property};

use crate::client::Client;
use crate::ledger::{message_of, publication_of};
use crate::network::Input;
use crate::play::Scene;
use crate::schedule::FILTERS;

/// Seconds after which expired retained messages are deleted.
const SWEPT_S: u64 = 100;

impl Scene<'_> {
    /// Storage has the state of the clients, and no state of what has ended.
    pub(crate) fn check_tables(&self) -> Result<(), String> {
        let tables = self.world.disk.durable();
        if self.world.disk.waiting() > 0 || self.world.disk.committed().0 == u64::MAX {
            return Err("batches wait at the end".to_owned());
        }
        if let Some(queued) = tables.queued.values().next() {
            return Err(format!("storage still holds {queued:?}"));
        }
        if let Some(inbound) = tables.inbound.first() {
            return Err(format!("storage still holds the identifier {inbound:?}"));
        }
        let unknown = |key: &SessionKey| !tables.sessions.contains_key(key);
        if let Some(at) = tables.subscriptions.keys().find(|at| unknown(&at.0)) {
            return Err(format!("storage holds a subscription of no session: {at:?}"));
        }
        if let Some(at) = tables.flows.keys().find(|at| unknown(&at.0)) {
            return Err(format!("storage holds a flow of no session: {at:?}"));
        }
        let (kept, retained) = self.world.kept_bytes();
        if kept != retained {
            return Err(format!("messages count for {kept} bytes, {retained} of them retained"));
        }
        for client in &self.clients {
            let name = Client::name(client.index);
            let sessions: Vec<_> =
                tables.sessions.values().filter(|record| *record.client_id == *name).collect();
            if sessions.len() != usize::from(client.nature.durable) {
                return Err(format!("storage holds {} sessions of {name}", sessions.len()));
            }
            let Some(session) = sessions.first() else { continue };
            let stored = || {
                let own = tables.subscriptions.keys().filter(|at| at.0 == session.key);
                own.map(|at| &*at.1)
            };
            if let Some(certain) = self.ledger.certain(client.index)
                && !stored().eq(certain.iter().copied())
            {
                let stored: Vec<_> = stored().collect();
                return Err(format!("{name} is subscribed to {certain:?}, stored is {stored:?}"));
            }
            debug_assert!(stored().all(|filter| FILTERS.contains(&filter)));
        }
        Ok(())
    }

    /// A new client subscribes and gets the retained messages, which must be those in storage.
    pub(crate) fn check_retained(&mut self) -> Result<(), String> {
        let Some(line) = self.world.open(0, false, usize::MAX) else {
            return Err("the broker takes no more connections".to_owned());
        };
        let version = Version::V5;
        let connect = Connect::new(version, "newcomer");
        let mut list = Vec::new();
        // Nothing of it is the newcomer's own.
        let options = SubscribeOptions { no_local: true, ..SubscribeOptions::default() };
        FilterList::encode_one(&mut list, "r/+", Some(options));
        let filters = FilterList::from_encoded(&list, true, version).map_err(|e| e.to_string())?;
        let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
        let subscribe = Subscribe { packet_id, properties, filters };
        for packet in [Packet::Connect(connect), Packet::Subscribe(subscribe)] {
            let mut bytes = Vec::new();
            packet.encode(version, &mut bytes);
            self.world.say(line, StreamKey::CONTROL, Input::Bytes(bytes));
        }
        self.settle()?;
        self.see_refusals(line);
        let mut retained = vec![None; self.clients.len()];
        while let Some(packet) = self.world.receive(line, StreamKey::CONTROL) {
            let frame = peek_frame(&packet, usize::MAX).ok().flatten().ok_or("half a packet")?;
            let Ok(Packet::Publish(publish)) = decode(&frame, version) else { continue };
            let client = publish.topic.strip_prefix("r/").and_then(|index| index.parse().ok());
            let own = client.and_then(|index: usize| retained.get_mut(index));
            let own =
                own.filter(|_| publish.retain).ok_or_else(|| format!("{publish:?} at rest"))?;
            let left_s = find_property!(publish.properties, MessageExpiryInterval);
            let asked_s = message_of(publish.payload)
                .and_then(|message| self.ledger.sent.get(message))
                .and_then(|sent| sent.expiry_s);
            if left_s.is_some() != asked_s.is_some() || left_s > asked_s || left_s == Some(0) {
                return Err(format!("{publish:?} has {left_s:?} s left of {asked_s:?}"));
            }
            if publication_of(publish.payload).is_some_and(|number| self.ledger.was_refused(number))
            {
                return Err(format!("{publish:?} was refused"));
            }
            if own.replace(message_of(publish.payload)).is_some() {
                return Err(format!("{} is retained twice", publish.topic));
            }
        }
        let tables = self.world.disk.durable();
        let now = self.world.now;
        for client in &self.clients {
            let topic = format!("r/{}", client.index);
            let stored = tables.retained.get(&*topic).filter(|message| !message.is_expired(now));
            let stored = stored.map(|message| message_of(message.payload()));
            let shown = retained[client.index];
            if shown != stored {
                return Err(format!("{topic} retains {shown:?}, in storage {stored:?}"));
            }
            let number = stored.flatten();
            let (oldest, newest) = client.retained;
            let lapsed = number.is_none()
                && newest.is_some_and(|newest| {
                    let oldest = oldest.unwrap_or(newest);
                    self.ledger.may_have_lapsed(client.index, oldest, newest)
                });
            if !lapsed && (number < oldest || number > newest) {
                return Err(format!("{topic} retains {number:?}, not {:?}", client.retained));
            }
        }
        self.pass(SWEPT_S);
        self.settle()?;
        let tables = self.world.disk.durable();
        match tables.retained.values().find(|message| message.is_expired(now)) {
            Some(message) => Err(format!("storage still retains {message:?}")),
            None => Ok(()),
        }
    }
}

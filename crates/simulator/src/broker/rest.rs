//! The state that must hold at rest, besides what clients were owed: storage has exactly the state of the present
//! sessions, and new subscribers get the retained messages.

use fulmar_broker::StreamKey;
use fulmar_broker::storage::SessionKey;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{Connect, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Property, PropertyBuf, QoS, Version, find_property};

use super::Scene;
use super::client::Client;
use super::ledger::{message_of, publication_of};
use super::schedule::FILTERS;
use crate::packets::{acknowledgement, decoded, encoded, subscription};

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
        let connect = Connect::new(Version::V5, "newcomer");
        let (line, _) = self.arrive(connect)?;
        // Nothing of it is the newcomer's own.
        let options = SubscribeOptions { no_local: true, ..SubscribeOptions::default() };
        let packets = self.exchange(line, subscribe_to_all(options))?;
        let mut retained = vec![None; self.clients.len()];
        for packet in packets {
            let Packet::Publish(publish) = decoded(&packet, Version::V5)? else { continue };
            let client = publish.topic.strip_prefix("r/").and_then(|index| index.parse().ok());
            let own = client.and_then(|index: usize| retained.get_mut(index));
            let own =
                own.filter(|_| publish.retain).ok_or_else(|| format!("{publish:?} at rest"))?;
            let left_s = find_property!(publish.properties, MessageExpiryInterval);
            let asked_s =
                message_of(publish.payload).and_then(|message| self.ledger.most_left_s(message));
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
        self.check_replay()?;
        self.check_room()?;
        self.pass(SWEPT_S);
        self.settle()?;
        let now = self.world.now;
        let tables = self.world.disk.durable();
        match tables.retained.values().find(|message| message.is_expired(now)) {
            Some(message) => Err(format!("storage still retains {message:?}")),
            None => Ok(()),
        }
    }

    /// A client connects; its connection, and the packets that it has received when everything is at rest.
    fn arrive(&mut self, connect: Connect<'_>) -> Result<(usize, Vec<Vec<u8>>), String> {
        let line = self.world.open(0, false, usize::MAX);
        let line = line.ok_or("the broker takes no more connections")?;
        let packets = self.exchange(line, encoded(&Packet::Connect(connect), Version::V5))?;
        Ok((line, packets))
    }

    /// A client sends this; the packets that it has received when everything is at rest.
    fn exchange(&mut self, line: usize, said: Vec<u8>) -> Result<Vec<Vec<u8>>, String> {
        self.world.client_sends(line, StreamKey::CONTROL, said);
        self.settle()?;
        self.see_refusals(line);
        Ok(std::iter::from_fn(|| self.world.receive(line, StreamKey::CONTROL)).collect())
    }

    /// A client that takes one message at once loses its connection after the first retained one. The others come when it
    /// resumes its session, in half of the worlds after a restart.
    fn check_replay(&mut self) -> Result<(), String> {
        let (mut expected, now) = (self.world.disk.durable().retained, self.world.now);
        expected.retain(|_, message| message.qos() > QoS::AtMostOnce && !message.is_expired(now));
        let mut properties = PropertyBuf::new();
        properties.push(Property::ReceiveMaximum(1));
        properties.push(Property::SessionExpiryInterval(100));
        let properties = properties.as_properties();
        let connect = Connect { properties, ..Connect::new(Version::V5, "collector") };
        let (line, _) = self.arrive(connect)?;
        let options = SubscribeOptions { qos: QoS::AtLeastOnce, ..SubscribeOptions::default() };
        self.exchange(line, subscribe_to_all(options))?;
        self.world.cut(line, false);
        self.settle()?;
        if self.ledger.sent.len().is_multiple_of(2) {
            self.crash(self.world.workers())?;
        }
        let (line, mut packets) = self.arrive(Connect { clean_start: false, ..connect })?;
        while !packets.is_empty() {
            let mut pubacks = Vec::new();
            for packet in packets {
                let Packet::Publish(publish) = decoded(&packet, Version::V5)? else { continue };
                let Some(id) = publish.packet_id else { continue };
                expected.remove(publish.topic);
                pubacks.extend(acknowledgement(AckKind::Puback, id, Version::V5));
            }
            packets = self.exchange(line, pubacks)?;
        }
        match expected.first_key_value() {
            Some((topic, _)) => Err(format!("{topic} did not come after a reconnection")),
            None => Ok(()),
        }
    }

    /// Retained messages that have expired make room for as many new ones.
    fn check_room(&mut self) -> Result<(), String> {
        const FULL: Option<&u8> = Some(&0x97);
        let (line, _) = self.arrive(Connect::new(Version::V5, "filler"))?;
        let mut room = [0_u8; 2];
        for (round, room) in room.iter_mut().enumerate() {
            // PUBLISH at QoS 1 with RETAIN, to expire in a second; the fifth byte of PUBACK is its reason.
            let publish =
                |room| vec![0x33, 13, 0, 2, round as u8 + b'0', room, 0, 1, 5, 2, 0, 0, 0, 1, 0];
            while self.exchange(line, publish(b'a' + *room))?.last().and_then(|ack| ack.get(4))
                != FULL
            {
                *room += 1;
            }
            self.pass(2);
        }
        let [before, after] = room;
        let words = || format!("room for {before} retained messages, and then {after}");
        if after >= before { Ok(()) } else { Err(words()) }
    }
}

fn subscribe_to_all(options: SubscribeOptions) -> Vec<u8> {
    subscription(PacketId::FIRST, ["r/+"], Some(options), Version::V5)
}

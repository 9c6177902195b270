//! What liars, and the program, send.

use std::rc::Rc;

use fulmar_broker::{Peer, PeerCertificate, PeerIdentity, StreamKey, Timestamp, User};
use fulmar_mqtt::packet::{Connect, Disconnect, LastWill, Publish, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};

use super::fakes::{self, certificate_number};
use super::law::{Who, address_of};
use super::stage::{Line, Message, PendingRequest, Stage};
use super::{ACCOUNTS, Connecting, PROGRAM, Voucher};
use crate::packets::{encoded, subscription};
use crate::settings;

/// Seconds that durable sessions of clients outlive their connections.
const EXPIRY_S: u32 = 1000;

/// A will: its payload, its topic, its delay in seconds.
type Will = (String, &'static str, u32);

impl Stage {
    fn send_packet(&mut self, line: usize, packet: &Packet<'_>) {
        self.world.client_sends(line, StreamKey::CONTROL, encoded(packet, Version::V5));
    }

    /// The program connects, if it is not there.
    pub(super) fn open_program(&mut self) {
        let is_there = |at: usize| self.lines[at].client.is_none() && self.world.is_open(at);
        if (0..self.lines.len()).any(is_there) {
            return;
        }
        let peer = Peer { identity: Some(User::program().into()), ..settings::peer(false) };
        let who = Who {
            voucher: Voucher::Program,
            name: None,
            id: PROGRAM,
            address: peer.address.ip(),
            until: Timestamp::NEVER,
            certificate: None,
        };
        if let Some(line) = self.open(0, peer, who, None) {
            // Its session does not end.
            self.say_connect(line, None, None, None, u32::MAX);
        }
    }

    pub(super) fn connect(&mut self, asked: Connecting) {
        let Connecting { client, voucher, name, id, ends_s, .. } = asked;
        let until = ends_s.map_or(Timestamp::NEVER, |seconds| self.world.now.plus_secs(seconds));
        let account = ACCOUNTS[usize::from(name.len() % 2 == 0)];
        let (mut peer, mut said) = (settings::peer(false), (None, None));
        peer.address.set_ip(address_of(client));
        let mut who = Who {
            voucher,
            name: Some(name.to_owned()),
            id,
            address: peer.address.ip(),
            until: Timestamp::NEVER,
            certificate: None,
        };
        match voucher {
            Voucher::Nobody | Voucher::Program => who.name = None,
            Voucher::Service => {
                who.until = until;
                said = (Some(name), Some(fakes::password("", until)));
            }
            Voucher::Platform => {
                (who.name, who.until) = (Some(format!("platform:{account}")), until);
                said = (None, Some(fakes::password(account, until)));
            }
            Voucher::Certificate => {
                let number = Some(certificate_number(client));
                let certificate = PeerCertificate { number, until };
                // The transport does not accept others.
                let Ok(own) = PeerIdentity::certified(name, certificate) else { return };
                peer.identity = Some(own);
                who.until = until;
                who.certificate = Some(client);
            }
        }
        let Some(line) = self.open(asked.worker, peer, who, Some(client)) else { return };
        let will = asked
            .will
            .map(|(topic, delay_s)| (self.note(line, topic, true).to_string(), topic, delay_s));
        self.say_connect(line, said.0, said.1, will, if asked.durable { EXPIRY_S } else { 0 });
    }

    fn open(
        &mut self,
        worker: usize,
        peer: Peer,
        who: Who,
        client: Option<usize>,
    ) -> Option<usize> {
        let line = self.world.open_as(worker, usize::MAX, peer)?;
        self.lines.push(Line::new(Rc::new(who), client, self.now()));
        Some(line)
    }

    fn say_connect(
        &mut self,
        line: usize,
        username: Option<&str>,
        password: Option<String>,
        will: Option<Will>,
        expiry_s: u32,
    ) {
        let (mut properties, mut will_properties) = (PropertyBuf::new(), PropertyBuf::new());
        properties.push(Property::SessionExpiryInterval(expiry_s));
        let will = will.as_ref().map(|(payload, topic, delay_s)| {
            will_properties.push(Property::WillDelayInterval(*delay_s));
            let (qos, properties) = (QoS::AtLeastOnce, will_properties.as_properties());
            LastWill { topic, payload: payload.as_bytes(), qos, retain: false, properties }
        });
        let connect = Connect {
            clean_start: expiry_s == 0,
            properties: properties.as_properties(),
            will,
            username,
            password: password.as_ref().map(String::as_bytes),
            ..Connect::new(Version::V5, self.lines[line].who.id)
        };
        self.send_packet(line, &Packet::Connect(connect));
    }

    /// A new message.
    fn note(&mut self, line: usize, topic: &'static str, is_will: bool) -> usize {
        let (who, said) = (Rc::clone(&self.lines[line].who), self.now());
        self.messages.push(Message { who, topic, line, is_will, said, accepted: None });
        self.messages.len() - 1
    }

    fn send_request(&mut self, line: usize, asked: PendingRequest) -> Option<PacketId> {
        let line = &mut self.lines[line];
        line.next_id += 1;
        let id = PacketId::new(line.next_id)?;
        line.asked.push((id, asked, line.seen()));
        Some(id)
    }

    pub(super) fn publish(&mut self, line: usize, topic: &'static str, qos: QoS, retain: bool) {
        let message = self.note(line, topic, false);
        let payload = message.to_string();
        let id = (qos > QoS::AtMostOnce)
            .then(|| self.send_request(line, PendingRequest::Publish(message)));
        let publish = Publish {
            dup: false,
            qos,
            retain,
            topic,
            packet_id: id.flatten(),
            properties: Properties::NONE,
            payload: payload.as_bytes(),
        };
        self.send_packet(line, &Packet::Publish(publish));
    }

    pub(super) fn subscribe(&mut self, line: usize, filter: &'static str) {
        let Some(packet_id) = self.send_request(line, PendingRequest::Subscribe(filter)) else {
            return;
        };
        let options = SubscribeOptions { qos: QoS::AtLeastOnce, ..SubscribeOptions::default() };
        let subscribe = subscription(packet_id, [filter], Some(options), Version::V5);
        self.world.client_sends(line, StreamKey::CONTROL, subscribe);
    }

    pub(super) fn disconnect(&mut self, line: usize) {
        let (reason, properties) = (ReasonCode::Success, Properties::NONE);
        self.send_packet(line, &Packet::Disconnect(Disconnect { reason, properties }));
        self.world.cut(line, false);
    }
}

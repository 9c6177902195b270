//! The receivers of a message, compared with a list of all subscriptions that is searched from end to end: wildcards,
//! overlaps, No Local, Retain As Published, shared groups, retained messages.

use std::collections::BTreeMap;

use fulmar_broker::{DropPolicy, Limits, StreamKey};
use fulmar_mqtt::packet::{
    Connect, FilterList, Publish, RetainHandling, Subscribe, SubscribeOptions, Unsubscribe,
};
use fulmar_mqtt::topic::{Subscription, check_name};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};
use fulmar_mqtt_fuzz::support::script::Script;
use fulmar_mqtt_fuzz::support::topics::naive_matches;

use crate::rig::{Conn, Rig, limits};

const CLIENTS: usize = 4;

/// Of these are filters and names made.
const LETTERS: [&str; 8] = ["a", "b", "/", "/", "+", "#", "$", "é"];

struct Kept {
    client: usize,
    text: String,
    share: Option<String>,
    filter: String,
    options: SubscribeOptions,
    identifier: u32,
}

struct Retained {
    payload: Vec<u8>,
    /// The client that published it, whatever session it has now: No Local compares client identifiers
    /// (MQTT 5.0 3.8.3.1).
    publisher: usize,
}

/// A delivery: topic, payload, RETAIN, subscription identifiers.
type Got = (String, Vec<u8>, bool, Vec<u32>);

struct Scene {
    rig: Rig,
    clients: Vec<Conn>,
    kept: Vec<Kept>,
    retained: BTreeMap<String, Retained>,
    limits: Limits,
    identifier: u32,
    codes: Vec<u8>,
}

/// What four clients subscribe to and publish.
pub fn tree(data: &[u8]) {
    let mut script = Script(data);
    let limits = limits(DropPolicy::Newest);
    let mut scene = Scene {
        rig: Rig::new(limits.clone()),
        clients: Vec::new(),
        kept: Vec::new(),
        retained: BTreeMap::new(),
        limits,
        identifier: 0,
        codes: Vec::new(),
    };
    for at in 0..CLIENTS {
        let client = scene.connect(at);
        scene.clients.push(client);
    }
    while !script.is_over() {
        let client = usize::from(script.byte()) % CLIENTS;
        match script.byte() % 16 {
            0..6 => scene.subscribe(client, &mut script),
            6..8 => scene.unsubscribe(client, &mut script),
            8..15 => scene.publish(client, &mut script),
            _ => scene.reconnect(client),
        }
        assert_eq!(scene.rig.subscriptions(), scene.kept.len());
    }
}

fn text(script: &mut Script<'_>) -> String {
    let letters = script.byte() % 8;
    (0..letters).map(|_| LETTERS[usize::from(script.byte() % 8)]).collect()
}

impl Scene {
    fn connect(&mut self, at: usize) -> Conn {
        let Some(conn) = self.rig.open(at, false) else { panic!("no room for a client") };
        let connect = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive_s: 0,
            client_id: ["one", "two", "three", "four"][at],
            properties: Properties::NONE,
            will: None,
            username: None,
            password: None,
        };
        self.say(conn, &Packet::Connect(connect));
        self.look(conn);
        conn
    }

    fn reconnect(&mut self, at: usize) {
        self.rig.cut(self.clients[at]);
        self.kept.retain(|kept| kept.client != at);
        self.clients[at] = self.connect(at);
    }

    fn say(&mut self, conn: Conn, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes);
        self.rig.say(conn, StreamKey::CONTROL, &bytes);
        self.rig.settle();
        assert!(self.rig.is_open(conn), "closed for {packet:?}");
    }

    /// Messages a client has got, and the codes of an answer.
    fn look(&mut self, conn: Conn) -> Vec<Got> {
        let (mut got, mut codes) = (Vec::new(), Vec::new());
        self.rig.look(conn, |packet| match packet {
            Packet::Publish(publish) => {
                let identifiers = publish.properties.iter().filter_map(|property| match property {
                    Property::SubscriptionIdentifier(identifier) => Some(identifier),
                    _ => None,
                });
                let mut identifiers: Vec<u32> = identifiers.collect();
                identifiers.sort_unstable();
                let (topic, payload) = (publish.topic.to_owned(), publish.payload.to_vec());
                got.push((topic, payload, publish.retain, identifiers));
            }
            Packet::Suback(suback) => codes.extend_from_slice(suback.codes),
            Packet::Unsuback(unsuback) => codes.extend_from_slice(unsuback.codes),
            _ => {}
        });
        self.codes = codes;
        got
    }

    fn subscribe(&mut self, at: usize, script: &mut Script<'_>) {
        let flags = script.byte();
        let share = if flags & 0x40 != 0 {
            ["$share/g/", "$share/h/"][usize::from(flags >> 7)]
        } else {
            ""
        };
        let text = share.to_owned() + &text(script);
        let Ok(parsed) = Subscription::parse(&text) else { return };
        let handling = [RetainHandling::Always, RetainHandling::IfNew, RetainHandling::Never];
        let options = SubscribeOptions {
            no_local: flags & 1 != 0 && parsed.share.is_none(),
            retain_as_published: flags & 2 != 0,
            retain_handling: handling[usize::from(flags >> 2) % 3],
            ..SubscribeOptions::default()
        };
        self.identifier += 1;
        let mut properties = PropertyBuf::new();
        properties.push(Property::SubscriptionIdentifier(self.identifier));
        let mut filters = Vec::new();
        FilterList::encode_one(&mut filters, &text, Some(options));
        let Ok(filters) = FilterList::from_encoded(&filters, true, Version::V5) else {
            panic!("{text:?} is right alone and wrong in SUBSCRIBE")
        };
        let (packet_id, properties) = (PacketId::FIRST, properties.as_properties());
        let conn = self.clients[at];
        self.say(conn, &Packet::Subscribe(Subscribe { packet_id, properties, filters }));
        let got = self.look(conn);
        if parsed.filter.starts_with('$') {
            // Only a rule that begins so allows it, and there are none.
            assert_eq!((&self.codes[..], got), (&[ReasonCode::NotAuthorized.as_u8()][..], vec![]));
            return;
        }
        let own = |kept: &Kept| kept.client == at;
        let known = self.kept.iter().position(|kept| own(kept) && kept.text == text);
        let full = self.kept.iter().filter(|kept| own(kept)).count()
            >= self.limits.max_subscriptions_per_session;
        if known.is_none() && full {
            assert_eq!((&self.codes[..], got), (&[ReasonCode::QuotaExceeded.as_u8()][..], vec![]));
            return;
        }
        assert_eq!(self.codes, [0]);
        let owed = match options.retain_handling {
            RetainHandling::Always => true,
            RetainHandling::IfNew => known.is_none(),
            RetainHandling::Never => false,
        };
        let kept = Kept {
            client: at,
            share: parsed.share.map(str::to_owned),
            filter: parsed.filter.to_owned(),
            text: text.clone(),
            options,
            identifier: self.identifier,
        };
        let wanted = if owed && kept.share.is_none() { self.owed(at, &kept) } else { Vec::new() };
        assert_eq!(got, wanted, "retained messages for {text:?}");
        match known {
            Some(known) => self.kept[known] = kept,
            None => self.kept.push(kept),
        }
    }

    /// Retained messages for a new subscription, by topic.
    fn owed(&self, at: usize, kept: &Kept) -> Vec<Got> {
        self.retained
            .iter()
            .filter(|(topic, _)| naive_matches(&kept.filter, topic))
            .filter(|(_, retained)| !(kept.options.no_local && retained.publisher == at))
            .map(|(topic, retained)| {
                (topic.clone(), retained.payload.clone(), true, vec![kept.identifier])
            })
            .collect()
    }

    fn unsubscribe(&mut self, at: usize, script: &mut Script<'_>) {
        let own: Vec<usize> =
            (0..self.kept.len()).filter(|kept| self.kept[*kept].client == at).collect();
        let choice = usize::from(script.byte());
        let known = own.get(choice % (own.len() + 1)).copied();
        let text = known.map_or("a/a/a/none".to_owned(), |known| self.kept[known].text.clone());
        let mut filters = Vec::new();
        FilterList::encode_one(&mut filters, &text, None);
        let Ok(filters) = FilterList::from_encoded(&filters, false, Version::V5) else {
            panic!("{text:?} was subscribed to")
        };
        let conn = self.clients[at];
        let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
        self.say(conn, &Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters }));
        self.look(conn);
        let none = ReasonCode::NoSubscriptionExisted.as_u8();
        assert_eq!(self.codes, [if known.is_some() { 0 } else { none }]);
        if let Some(known) = known {
            self.kept.remove(known);
        }
    }

    fn publish(&mut self, at: usize, script: &mut Script<'_>) {
        let flags = script.byte();
        let topic = text(script);
        if check_name(&topic).is_err() {
            return;
        }
        self.identifier += 1;
        let clears = flags & 2 != 0;
        let payload = if clears { Vec::new() } else { self.identifier.to_string().into_bytes() };
        let retain = flags & 1 != 0;
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain,
            topic: &topic,
            packet_id: None,
            properties: Properties::NONE,
            payload: &payload,
        };
        self.say(self.clients[at], &Packet::Publish(publish));
        // Nobody may publish where the broker speaks.
        let forbidden = topic.starts_with('$');
        if retain && !forbidden {
            self.retain(at, &topic, &payload);
        }
        let mut groups: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let got: Vec<Vec<Got>> = (0..CLIENTS).map(|to| self.look(self.clients[to])).collect();
        let matching = |kept: &&Kept| !forbidden && naive_matches(&kept.filter, &topic);
        for kept in self.kept.iter().filter(matching) {
            if let Some(share) = &kept.share {
                groups.entry((share, &kept.filter)).or_default();
            }
        }
        for (to, mut got) in got.into_iter().enumerate() {
            let own: Vec<&Kept> =
                self.kept.iter().filter(matching).filter(|kept| kept.client == to).collect();
            for kept in &own {
                if let Some(share) = &kept.share {
                    let identifiers = [kept.identifier];
                    let before = got.len();
                    got.retain(|got| got.3 != identifiers);
                    *groups.entry((share, &kept.filter)).or_default() += before - got.len();
                }
            }
            let wanted = wanted(&own, to == at, retain, &topic, &payload);
            assert_eq!(got, wanted, "{topic:?} for client {to}");
        }
        assert!(groups.values().all(|copies| *copies == 1), "{groups:?}");
    }

    fn retain(&mut self, at: usize, topic: &str, payload: &[u8]) {
        if payload.is_empty() {
            self.retained.remove(topic);
            return;
        }
        // All clients have the same address and no user, and together at most half.
        let full = self.retained.len() >= self.limits.max_retained_messages / 2;
        if !full || self.retained.contains_key(topic) {
            let retained = Retained { payload: payload.to_vec(), publisher: at };
            self.retained.insert(topic.to_owned(), retained);
        }
    }
}

/// The one delivery for all overlapping subscriptions of a client, if there is one.
fn wanted(matching: &[&Kept], local: bool, retain: bool, topic: &str, payload: &[u8]) -> Vec<Got> {
    let plain: Vec<&&Kept> = matching.iter().filter(|kept| kept.share.is_none()).collect();
    if plain.iter().all(|kept| local && kept.options.no_local) {
        return Vec::new();
    }
    let mut identifiers: Vec<u32> = plain.iter().map(|kept| kept.identifier).collect();
    identifiers.sort_unstable();
    let retain = retain && plain.iter().any(|kept| kept.options.retain_as_published);
    vec![(topic.to_owned(), payload.to_vec(), retain, identifiers)]
}

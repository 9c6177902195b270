//! The topic identifiers between one device and its gateway (sections 6.5 to 6.7, 6.10): registered by the device or by
//! the gateway, or predefined. Nothing is sent here.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use fulmar_mqtt::topic::check_name;

use crate::message::TopicRef;

/// The largest identifier; 0x0000 and 0xFFFF are reserved (section 5.3.11).
const LAST_ID: u16 = 0xFFFE;

/// Predefined topics: the operator's configuration gives them an identifier for all devices.
pub(crate) type Predefined = Arc<BTreeMap<u16, Box<str>>>;

/// Name for the topic of a message to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// By this identifier, which the device knows.
    Known(TopicRef),
    /// By this identifier, after it is registered with the device.
    Unknown(u16),
}

/// There is no room for another topic.
#[derive(Debug)]
pub(crate) struct Full;

struct Entry {
    id: u16,
    /// Whether the device knows it.
    known: bool,
    /// The gateway has registered it, not the device.
    ours: bool,
}

/// One device's topics.
#[derive(Default)]
pub(crate) struct Topics {
    predefined: Predefined,
    names: BTreeMap<Box<str>, Entry>,
    ids: BTreeMap<u16, Box<str>>,
    /// Predefined identifiers that the device has subscribed to, so that it knows them.
    in_use: BTreeSet<u16>,
    last_id: u16,
    bytes: usize,
    max_topics: usize,
    max_bytes: usize,
}

impl Topics {
    /// At most this many topics, and bytes of their names.
    pub(crate) fn new(predefined: Predefined, max_topics: usize, max_bytes: usize) -> Topics {
        Topics { predefined, max_topics, max_bytes, ..Topics::default() }
    }

    /// The topic of the device's PUBLISH; `None` if the identifier is unknown.
    pub(crate) fn resolve(&self, topic: TopicRef) -> Option<Cow<'_, str>> {
        match topic {
            TopicRef::Normal(id) => self.ids.get(&id).map(|name| Cow::Borrowed(&**name)),
            TopicRef::Predefined(id) => self.predefined(id).map(Cow::Borrowed),
            TopicRef::Short(name) => short_name(name).map(Cow::Owned),
        }
    }

    /// The topic of a predefined identifier.
    pub(crate) fn predefined(&self, id: u16) -> Option<&str> {
        self.predefined.get(&id).map(|name| &**name)
    }

    /// The device subscribes with this predefined identifier, so messages to it may use it.
    pub(crate) fn use_predefined(&mut self, id: u16) {
        if self.predefined.contains_key(&id) {
            self.in_use.insert(id);
        }
    }

    /// The identifier of a topic that the device registers. Fails if the device has too many topics.
    pub(crate) fn register(&mut self, name: &str) -> Result<u16, Full> {
        if let Some(entry) = self.names.get_mut(name) {
            (entry.known, entry.ours) = (true, false);
            return Ok(entry.id);
        }
        self.add(name, Entry { id: 0, known: true, ours: false })
    }

    /// Returns the name for this topic in a message to the device. Fails if there is no room to register it.
    pub(crate) fn naming(&mut self, name: &str) -> Result<Naming, Full> {
        let predefined = self.in_use.iter().find(|id| self.predefined(**id) == Some(name));
        if let Some(id) = predefined {
            return Ok(Naming::Known(TopicRef::Predefined(*id)));
        }
        if let Ok(short) = <[u8; 2]>::try_from(name.as_bytes()) {
            return Ok(Naming::Known(TopicRef::Short(short)));
        }
        self.numbered(name)
    }

    /// The same, always with a registered identifier.
    pub(crate) fn numbered(&mut self, name: &str) -> Result<Naming, Full> {
        match self.names.get(name) {
            Some(entry) if entry.known => Ok(Naming::Known(TopicRef::Normal(entry.id))),
            Some(entry) => Ok(Naming::Unknown(entry.id)),
            None => self.add(name, Entry { id: 0, known: false, ours: true }).map(Naming::Unknown),
        }
    }

    /// The device has acknowledged the identifier, or rejected it as unknown.
    pub(crate) fn set_known(&mut self, id: u16, known: bool) {
        let entry = self.ids.get(&id).and_then(|name| self.names.get_mut(name));
        if let Some(entry) = entry {
            entry.known = known;
        }
    }

    /// The device has a new connection: it may have forgotten the gateway's registrations.
    pub(crate) fn forget_told(&mut self) {
        self.names.values_mut().for_each(|entry| entry.known = false);
    }

    fn add(&mut self, name: &str, entry: Entry) -> Result<u16, Full> {
        while self.names.len() >= self.max_topics || self.bytes + name.len() > self.max_bytes {
            self.make_room()?;
        }
        let id = self.free_id();
        self.bytes += name.len();
        self.ids.insert(id, name.into());
        self.names.insert(name.into(), Entry { id, ..entry });
        Ok(id)
    }

    /// Frees one identifier that the gateway has registered. If it is used again, it is registered again.
    fn make_room(&mut self) -> Result<(), Full> {
        // The next identifiers are the oldest, because they are used in rotation.
        let newer = self.ids.range(..=self.last_id);
        let older = self.ids.range((Excluded(self.last_id), Unbounded));
        let ours = |name: &str| self.names.get(name).is_some_and(|entry| entry.ours);
        let old = older.chain(newer).find(|(_, name)| ours(name));
        let (id, name) = old.map(|(id, name)| (*id, name.clone())).ok_or(Full)?;
        self.ids.remove(&id);
        self.names.remove(&name);
        self.bytes -= name.len();
        Ok(())
    }

    /// Not one that was freed a moment ago. There are fewer topics than identifiers.
    fn free_id(&mut self) -> u16 {
        loop {
            self.last_id = if self.last_id >= LAST_ID { 1 } else { self.last_id + 1 };
            if !self.ids.contains_key(&self.last_id) {
                return self.last_id;
            }
        }
    }
}

/// A short name as a topic name; `None` if it is invalid.
pub(crate) fn short_name(name: [u8; 2]) -> Option<String> {
    let name = String::from_utf8(name.to_vec()).ok()?;
    check_name(&name).ok().map(|()| name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn topics(max_topics: usize) -> Topics {
        let predefined = BTreeMap::from([(7, "meters/7".into()), (8, "meters/8".into())]);
        Topics::new(Arc::new(predefined), max_topics, 100)
    }

    #[test]
    fn each_kind_of_identifier_stands_for_its_own() {
        let mut topics = topics(4);
        let id = topics.register("a/b").unwrap();
        assert_eq!(topics.register("a/b").unwrap(), id);
        assert_eq!(topics.resolve(TopicRef::Normal(id)).as_deref(), Some("a/b"));
        assert_eq!(topics.resolve(TopicRef::Predefined(7)).as_deref(), Some("meters/7"));
        assert_eq!(topics.resolve(TopicRef::Short(*b"hi")).as_deref(), Some("hi"));
        for nothing in [
            TopicRef::Normal(7),
            TopicRef::Normal(0),
            TopicRef::Predefined(id),
            TopicRef::Short(*b"a+"),
            TopicRef::Short([0xFF, 0]),
        ] {
            assert!(topics.resolve(nothing).is_none(), "{nothing:?}");
        }
    }

    #[test]
    fn messages_go_by_what_the_device_knows() {
        let mut topics = topics(4);
        assert_eq!(topics.naming("hi").unwrap(), Naming::Known(TopicRef::Short(*b"hi")));
        assert!(matches!(topics.naming("meters/7"), Ok(Naming::Unknown(_))));
        topics.use_predefined(7);
        topics.use_predefined(9);
        assert_eq!(topics.naming("meters/7").unwrap(), Naming::Known(TopicRef::Predefined(7)));
        let Ok(Naming::Unknown(id)) = topics.naming("a/b") else { panic!("not yet known") };
        topics.set_known(id, true);
        assert_eq!(topics.naming("a/b").unwrap(), Naming::Known(TopicRef::Normal(id)));
        topics.forget_told();
        assert_eq!(topics.naming("a/b").unwrap(), Naming::Unknown(id));
    }

    #[test]
    fn only_what_the_gateway_named_makes_room() {
        let mut topics = topics(3);
        let asked = topics.register("asked").unwrap();
        topics.naming("first").unwrap();
        topics.naming("second").unwrap();
        assert!(topics.naming("third").is_ok());
        assert!(topics.names.contains_key("second") && !topics.names.contains_key("first"));
        assert_eq!(topics.resolve(TopicRef::Normal(asked)).as_deref(), Some("asked"));
        topics.register("mine").unwrap();
        topics.register("mine too").unwrap();
        assert!(topics.register("no more").is_err() && topics.naming("nor that").is_err());
        assert!(topics.register(&"long".repeat(30)).is_err());
    }
}

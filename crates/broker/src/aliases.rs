//! Topic aliases towards a client that allows them (MQTT 5.0, sections 3.1.2.11.5 and 3.3.2.3.4).
//!
//! An alias is set by the second message of a topic and stands for it from the third on, so that topics
//! that come once cost neither bytes nor memory. When all are set, one that has not been used for a
//! while is set anew. Like a client's, aliases hold on one stream: streams overtake each other.

use std::hash::Hasher;

use rustc_hash::FxHasher;

/// Maximum number of aliases on one stream, whatever the client allows.
pub(crate) const MAX_ALIASES: u16 = 16;

/// Shortest topic, in bytes, that gets one. An alias takes 3, once beside the topic and then instead of it:
/// from here on its first use saves more than setting it took.
const MIN_TOPIC_BYTES: usize = 7;

/// Longest topic, in bytes, that gets one: those of a stream remember 4 KiB.
const MAX_TOPIC_BYTES: usize = 256;

/// Topics without an alias that are remembered, each by its hash.
const SEEN: usize = 32;

/// Form in which a PUBLISH names its topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Naming {
    /// In full.
    #[default]
    Topic,
    /// In full, and this alias stands for it from now on.
    Set(u16),
    /// By this alias alone.
    Alias(u16),
}

impl Naming {
    /// Topic name and alias of the packet.
    pub(crate) fn resolve(self, topic: &str) -> (&str, Option<u16>) {
        match self {
            Naming::Topic => (topic, None),
            Naming::Set(alias) => (topic, Some(alias)),
            Naming::Alias(alias) => ("", Some(alias)),
        }
    }
}

/// The aliases that the broker has set on one stream.
#[derive(Debug, Default)]
pub(crate) struct SentAliases {
    /// Hashes of topics that have come once, or 0. One topic taken for another gets its alias a message too
    /// early.
    seen: [u32; SEEN],
    /// Decides which of them the next one replaces. Were it always the oldest, none of many topics that come
    /// in turn would be found again.
    dice: u32,
    /// The alias of each is its place, from 1.
    set: Vec<Meaning>,
    /// Alias that is considered next for another topic.
    hand: usize,
}

#[derive(Debug)]
struct Meaning {
    hash: u32,
    /// It has been used since it was considered last.
    used: bool,
    topic: Box<str>,
}

/// Whether a topic of this length can get an alias.
pub(crate) fn is_worth_one(topic: &str) -> bool {
    (MIN_TOPIC_BYTES..=MAX_TOPIC_BYTES).contains(&topic.len())
}

impl SentAliases {
    /// Form in which the next message of `topic` names it, with aliases up to `most`. A new alias applies once
    /// [`SentAliases::set`] is called.
    pub(crate) fn choose(&mut self, topic: &str, most: u16) -> Naming {
        let hash = hash(topic);
        let mut set = (1..).zip(&mut self.set);
        if let Some((alias, meaning)) =
            set.find(|(_, meaning)| meaning.hash == hash && *meaning.topic == *topic)
        {
            meaning.used = true;
            return Naming::Alias(alias);
        }
        if self.seen.contains(&hash) {
            return self.vacant(most).map_or(Naming::Topic, Naming::Set);
        }
        let free = self.seen.iter().position(|seen| *seen == 0);
        self.dice = self.dice.wrapping_mul(0x9E37_79B1).wrapping_add(hash);
        self.seen[free.unwrap_or((self.dice >> 16) as usize % SEEN)] = hash;
        Naming::Topic
    }

    /// An alias for another topic: a new one, or one that is out of use. Each call considers one, so that
    /// those in use stay when there are more topics than aliases.
    fn vacant(&mut self, most: u16) -> Option<u16> {
        let next = u16::try_from(self.set.len() + 1).ok().filter(|next| *next <= most);
        if next.is_some() {
            return next;
        }
        let at = self.hand;
        let used = std::mem::take(&mut self.set.get_mut(at)?.used);
        self.hand = (at + 1) % self.set.len();
        if used { None } else { u16::try_from(at + 1).ok() }
    }

    /// A packet that sets `alias` to `topic` was queued for sending.
    pub(crate) fn set(&mut self, alias: u16, topic: &str) {
        let meaning = Meaning { hash: hash(topic), used: true, topic: topic.into() };
        if let Some(seen) = self.seen.iter_mut().find(|seen| **seen == meaning.hash) {
            *seen = 0;
        }
        match self.set.get_mut(usize::from(alias) - 1) {
            Some(place) => *place = meaning,
            None => self.set.push(meaning),
        }
    }
}

fn hash(topic: &str) -> u32 {
    let mut hasher = FxHasher::default();
    hasher.write(topic.as_bytes());
    // Zero stands for none.
    (hasher.finish() >> 32) as u32 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends the next message of a topic.
    fn send(aliases: &mut SentAliases, topic: &str, most: u16) -> Naming {
        let naming = aliases.choose(topic, most);
        if let Naming::Set(alias) = naming {
            aliases.set(alias, topic);
        }
        naming
    }

    fn topic(number: usize) -> String {
        format!("plant/{number:03}")
    }

    #[test]
    fn the_second_message_sets_an_alias_and_the_third_uses_it() {
        let mut aliases = SentAliases::default();
        let wanted = [Naming::Topic, Naming::Set(1), Naming::Alias(1), Naming::Alias(1)];
        assert_eq!(wanted.map(|_| send(&mut aliases, "plant/001", 16)), wanted);
        let wanted = [Naming::Topic, Naming::Set(2), Naming::Alias(2)];
        assert_eq!(wanted.map(|_| send(&mut aliases, "plant/002", 16)), wanted);
    }

    #[test]
    fn an_alias_whose_packet_was_not_sent_is_not_set() {
        let mut aliases = SentAliases::default();
        send(&mut aliases, "plant/001", 16);
        for _ in 0..3 {
            assert_eq!(aliases.choose("plant/001", 16), Naming::Set(1));
        }
        assert!(aliases.set.is_empty());
    }

    #[test]
    fn topics_that_come_once_get_none() {
        let mut aliases = SentAliases::default();
        let named = (0..1000).filter(|n| send(&mut aliases, &topic(*n), 16) == Naming::Topic);
        assert_eq!(named.count(), 1000);
    }

    #[test]
    fn no_alias_is_above_the_maximum_and_those_in_use_stay() {
        for most in 1..=MAX_ALIASES {
            let mut aliases = SentAliases::default();
            for _ in 0..20 {
                for number in 0..usize::from(most) {
                    send(&mut aliases, &topic(number), most);
                }
            }
            let mut used = 0;
            for _ in 0..20 {
                for number in 0..usize::from(most) {
                    used += usize::from(matches!(
                        send(&mut aliases, &topic(number), most),
                        Naming::Alias(alias) if alias <= most
                    ));
                }
                // One too many.
                let naming = send(&mut aliases, "another/topic", most);
                assert_eq!(naming, Naming::Topic, "{most}");
            }
            assert_eq!(used, 20 * usize::from(most), "{most}");
            assert_eq!(aliases.set.len(), usize::from(most));
        }
    }

    #[test]
    fn many_topics_in_turn_do_not_keep_each_other_from_aliases() {
        let mut aliases = SentAliases::default();
        // Those before them go out of use.
        for _ in 0..3 {
            for number in 0..16 {
                send(&mut aliases, &topic(number), 16);
            }
        }
        for _ in 0..20 {
            for number in 100..200 {
                send(&mut aliases, &topic(number), 16);
            }
        }
        let used = (100..200)
            .filter(|number| matches!(send(&mut aliases, &topic(*number), 16), Naming::Alias(_)));
        assert!(used.count() > 10);
    }

    #[test]
    fn an_alias_that_is_out_of_use_is_set_anew() {
        let mut aliases = SentAliases::default();
        for number in [0, 0, 1, 1] {
            send(&mut aliases, &topic(number), 2);
        }
        let namings: Vec<_> = (0..6).map(|_| send(&mut aliases, "another/topic", 2)).collect();
        assert!(namings.contains(&Naming::Set(1)), "{namings:?}");
        assert_eq!(namings[5], Naming::Alias(1));
        assert_ne!(send(&mut aliases, &topic(0), 2), Naming::Alias(1));
    }

    #[test]
    fn short_and_long_topics_are_not_worth_one() {
        let lengths = [6, 7, 256, 257].map(|length| is_worth_one(&"t".repeat(length)));
        assert_eq!(lengths, [false, true, true, false]);
    }
}

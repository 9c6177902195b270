//! Reads retained messages without a subscription, for protocols such as CoAP in which a client requests a topic's last
//! value. The access rules for a subscription to the topic apply.

use std::sync::Arc;

use crate::access::{Action, Subject};
use crate::broker::Broker;
use crate::message::Message;
use crate::time::Timestamp;

/// A client that reads; the broker has authenticated it.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// Its user; `None` for an anonymous client.
    pub user: Option<&'a str>,
    /// Its client identifier.
    pub client_id: &'a str,
}

/// Topics that a reader may read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readable {
    /// In order.
    pub topics: Vec<Box<str>>,
    /// There may be more: the limit of topics to examine was reached.
    pub cut_short: bool,
}

/// Topics copied while the store is locked. Access rules are checked for them when it is unlocked again.
const SLICE: usize = 256;

/// The access rules keep the topic from the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied;

impl Broker {
    /// The topic's retained message, if it has one that has not expired.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn read(
        &self,
        reader: Reader<'_>,
        topic: &str,
        now: Timestamp,
    ) -> Result<Option<Arc<Message>>, Denied> {
        if !self.lets_read(reader, topic) {
            return Err(Denied);
        }
        let message = self.retained().read().get(topic).map(Arc::clone);
        Ok(message.filter(|message| !message.is_expired(now)))
    }

    /// At most `most` topics with a retained message that the reader may read, without the broker's own (`$`). Examines
    /// at most `visits` topics.
    #[must_use]
    pub fn readable_topics(&self, reader: Reader<'_>, most: usize, visits: usize) -> Readable {
        let (mut readable, mut left) = (Readable::default(), visits);
        let mut after = Box::<str>::default();
        loop {
            let (slice, more): (Vec<Box<str>>, bool) = {
                let retained = self.retained().read();
                let mut topics = retained.topics_after(&after);
                let slice = topics.by_ref().take(SLICE.min(left)).map(Box::from).collect();
                (slice, topics.next().is_some())
            };
            left -= slice.len();
            after = slice.last().cloned().unwrap_or_default();
            for topic in slice {
                if self.lets_read(reader, &topic) {
                    readable.topics.push(topic);
                }
                if readable.topics.len() >= most {
                    return readable;
                }
            }
            if !more || left == 0 {
                readable.cut_short = more;
                return readable;
            }
        }
    }

    fn lets_read(&self, reader: Reader<'_>, topic: &str) -> bool {
        let subject = Subject { username: reader.user, client_id: reader.client_id };
        self.access_control().allows(subject, Action::Subscribe, topic) && !self.keeps_back(topic)
    }
}

#[cfg(test)]
mod tests {
    use fulmar_mqtt::QoS;

    use super::*;
    use crate::auth::AccessControl;
    use crate::limits::Limits;
    use crate::message::{MessageId, MessageParts};
    use crate::storage::{NoStorage, Restored};
    use crate::{BrokerConfig, ClientFigures};

    fn message(topic: &str) -> Arc<Message> {
        let (payload, properties) = (&b"x"[..], &[][..]);
        let (qos, retain, expires_at) = (QoS::AtMostOnce, true, None);
        let parts =
            MessageParts { topic, properties, payload, qos, retain, expires_at, publisher: 0 };
        Message::new(MessageId(0), &parts)
    }

    fn broker(topics: &[String]) -> Arc<Broker> {
        let retained = topics.iter().map(|topic| message(topic)).collect();
        let restored = Restored { retained, ..Restored::default() };
        let (access_control, client_figures) = (AccessControl::default(), ClientFigures::Nobody);
        let limits = Limits::default();
        let config =
            BrokerConfig { workers: 1, limits, access_control, sys_interval_s: 0, client_figures };
        Broker::new(config, Arc::new(NoStorage), restored, Timestamp(1))
    }

    #[test]
    fn topics_are_listed_in_order_without_the_brokers_own() {
        let numbered = |prefix: &'static str, count| {
            (0..count).map(move |number| format!("{prefix}{number:04}"))
        };
        let own = numbered("$SYS/", SLICE);
        // As many before the broker's own, and behind them, as end a slice there or not.
        for (before, behind) in [(0, 3), (3, 0), (SLICE, SLICE), (SLICE - 1, 2 * SLICE + 1)] {
            let others: Vec<String> =
                numbered("!", before).chain(numbered("%", behind)).chain(["~".into()]).collect();
            let broker = broker(&own.clone().chain(others.clone()).collect::<Vec<_>>());
            let reader = Reader { user: None, client_id: "c" };
            let expected: Vec<Box<str>> =
                others.iter().map(|topic| topic.as_str().into()).collect();
            for visits in [0, 1, SLICE, expected.len() - 1, expected.len(), usize::MAX] {
                let found = broker.readable_topics(reader, usize::MAX, visits);
                let seen = visits.min(expected.len());
                assert_eq!(found.topics, expected[..seen], "{before} {behind} {visits}");
                assert_eq!(found.cut_short, seen < expected.len(), "{before} {behind} {visits}");
            }
            let first = broker.readable_topics(reader, 1, usize::MAX);
            assert_eq!((&first.topics[..], first.cut_short), (&expected[..1], false));
        }
    }
}

//! Reads retained messages without a subscription, for protocols such as CoAP in which a client requests a topic's last
//! value. The access rules for a subscription to the topic apply.

use std::sync::Arc;

use fulmar_auth::access::{Action, Subject};
use fulmar_auth::{Timestamp, User};

use crate::broker::Broker;
use crate::message::Message;

/// A client that reads; the broker has authenticated it.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// Its user; `None` for an anonymous client.
    pub user: Option<&'a User>,
    /// Its client identifier.
    pub client_id: &'a str,
}

/// Topics that a reader may read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readable {
    /// Sorted.
    pub topics: Vec<Box<str>>,
    /// Whether there may be more: the limit of topics to examine was reached.
    pub truncated: bool,
}

/// Topics copied while the store is locked. Access rules are checked for them when it is unlocked again.
const SLICE: usize = 256;

/// The access rules deny the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied;

impl Broker {
    /// The topic's retained message, if it has one that has not expired.
    ///
    /// # Errors
    /// [`Denied`] if the access rules deny the topic.
    pub fn read(
        &self,
        reader: Reader<'_>,
        topic: &str,
        now: Timestamp,
    ) -> Result<Option<Arc<Message>>, Denied> {
        if !self.may_read(reader, topic) {
            return Err(Denied);
        }
        Ok(self.retained_message(topic, now))
    }

    /// At most `max_topics` topics with a retained message that the reader may read, without the broker's own (`$`).
    /// Examines at most `max_examined` topics.
    #[must_use]
    pub fn readable_topics(
        &self,
        reader: Reader<'_>,
        max_topics: usize,
        max_examined: usize,
    ) -> Readable {
        let (mut readable, mut left) = (Readable::default(), max_examined);
        let mut after = Box::<str>::default();
        loop {
            let (slice, more): (Vec<Box<str>>, bool) = {
                let retained = self.retained.read();
                let mut topics = retained.topics_after(&after);
                let slice = topics.by_ref().take(SLICE.min(left)).map(Box::from).collect();
                (slice, topics.next().is_some())
            };
            left -= slice.len();
            after = slice.last().cloned().unwrap_or_default();
            for topic in slice {
                if self.may_read(reader, &topic) {
                    readable.topics.push(topic);
                }
                if readable.topics.len() >= max_topics {
                    return readable;
                }
            }
            if !more || left == 0 {
                readable.truncated = more;
                return readable;
            }
        }
    }

    fn may_read(&self, reader: Reader<'_>, topic: &str) -> bool {
        let subject = Subject { user: reader.user, client_id: reader.client_id };
        let access_control = self.access_control();
        let may = |action| access_control.allows(subject, action, topic);
        may(Action::Subscribe) && may(Action::Receive) && !self.is_hidden(topic)
    }
}

#[cfg(test)]
mod tests {
    use fulmar_mqtt::QoS;

    use super::*;
    use crate::limits::Limits;
    use crate::message::{MessageId, MessageParts};
    use crate::storage::{NoStorage, Restored};
    use crate::{BrokerConfig, ClientStatistics};
    use fulmar_auth::AccessControl;

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
        let (access_control, client_statistics) =
            (AccessControl::default(), ClientStatistics::Nobody);
        let limits = Limits::default();
        let config = BrokerConfig {
            workers: 1,
            limits,
            access_control,
            sys_interval_s: 0,
            client_statistics,
            internal_sessions: Vec::new(),
        };
        Broker::new(config, Arc::new(NoStorage), restored, Timestamp(1))
    }

    #[test]
    fn topics_are_listed_in_order_without_the_brokers_own() {
        let numbered = |prefix: &'static str, count| {
            (0..count).map(move |number| format!("{prefix}{number:04}"))
        };
        let own = numbered("$SYS/", SLICE);
        // Numbers of topics before and after the broker's own, so that a slice ends between them or not.
        for (before, after) in [(0, 3), (3, 0), (SLICE, SLICE), (SLICE - 1, 2 * SLICE + 1)] {
            let others: Vec<String> =
                numbered("!", before).chain(numbered("%", after)).chain(["~".into()]).collect();
            let broker = broker(&own.clone().chain(others.clone()).collect::<Vec<_>>());
            let reader = Reader { user: None, client_id: "c" };
            let expected: Vec<Box<str>> =
                others.iter().map(|topic| topic.as_str().into()).collect();
            for max_examined in [0, 1, SLICE, expected.len() - 1, expected.len(), usize::MAX] {
                let found = broker.readable_topics(reader, usize::MAX, max_examined);
                let seen = max_examined.min(expected.len());
                assert_eq!(found.topics, expected[..seen], "{before} {after} {max_examined}");
                assert_eq!(
                    found.truncated,
                    seen < expected.len(),
                    "{before} {after} {max_examined}"
                );
            }
            let first = broker.readable_topics(reader, 1, usize::MAX);
            assert_eq!((&first.topics[..], first.truncated), (&expected[..1], false));
        }
    }
}

//! Bounds the work for `GET /ps`, the list of topics. Access rules are checked for each topic, and may deny nearly all
//! of them: with 21 rules, 16,384 topics took 12 ms of the only CoAP thread (release build, one core).
//!
//! For an address that is not validated, few topics are examined; if there are more, the client must first validate its
//! address. All validated clients together have a share of the thread's time.

use std::time::{Duration, Instant};

use fulmar_broker::{Broker, Reader};

use super::share::Share;

/// Topics in a list.
const MAX_LISTED: usize = 256;
/// Topics examined for one list, and for one whose client's address is not validated.
const VISITS: usize = 16_384;
const UNPROVEN_VISITS: usize = 256;
/// Lists may take one `PART`th of the time; at most `MAX_SAVED` of it accumulates.
const PART: u32 = 4;
const MAX_SAVED: Duration = Duration::from_millis(100);

/// The time used by lists.
#[derive(Debug)]
pub(super) struct Listing(Share);

/// The result of a request for a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// The topics.
    Topics(Vec<Box<str>>),
    /// The client must first validate its address.
    Unproven,
    /// No time is left for it now.
    Busy,
}

impl Listing {
    pub(super) fn new(now: Instant) -> Listing {
        Listing(Share::new(PART, MAX_SAVED, now))
    }

    /// Topics with a retained message that the reader may read. `proven` is true if its address is validated.
    pub(super) fn topics(
        &mut self,
        broker: &Broker,
        reader: Reader<'_>,
        proven: bool,
        now: Instant,
    ) -> Listed {
        if !proven {
            let found = broker.readable_topics(reader, MAX_LISTED, UNPROVEN_VISITS);
            return if found.truncated { Listed::Unproven } else { Listed::Topics(found.topics) };
        }
        if !self.0.has_time(now) {
            return Listed::Busy;
        }
        let begun = Instant::now();
        let found = broker.readable_topics(reader, MAX_LISTED, VISITS);
        self.0.spend(begun.elapsed());
        Listed::Topics(found.topics)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use fulmar_broker::access::{AccessRules, Action, Rule, Who};
    use fulmar_broker::auth::AccessControl;
    use fulmar_broker::message::{Message, MessageId, MessageParts};
    use fulmar_broker::storage::{NoStorage, Restored};
    use fulmar_broker::{BrokerConfig, ClientStatistics, Limits, Timestamp};
    use fulmar_mqtt::QoS;

    use super::*;

    const READER: Reader<'static> = Reader { user: None, client_id: "c" };

    /// A broker that retains these topics and denies those below `secret`.
    fn broker(topics: impl Iterator<Item = String>) -> Arc<Broker> {
        let retained = topics.enumerate().map(|(number, topic)| message(number as u64, &topic));
        let restored = Restored { retained: retained.collect(), ..Restored::default() };
        let deny = Rule {
            allow: false,
            who: Who::Anyone,
            action: Some(Action::Subscribe),
            filter: "secret/#".into(),
            exact: false,
        };
        let rules = AccessRules::new(vec![deny], true).unwrap();
        let config = BrokerConfig {
            workers: 1,
            limits: Limits::default(),
            access_control: AccessControl { rules, ..AccessControl::default() },
            sys_interval_s: 0,
            client_statistics: ClientStatistics::Rules,
            internal_sessions: Vec::new(),
        };
        Broker::new(config, Arc::new(NoStorage), restored, Timestamp(0))
    }
    fn message(number: u64, topic: &str) -> Arc<Message> {
        let parts = MessageParts {
            topic,
            properties: &[],
            payload: b"21.5",
            qos: QoS::AtMostOnce,
            retain: true,
            expires_at: None,
            publisher: 0,
        };
        Message::new(MessageId(number), &parts)
    }

    fn secrets(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|number| format!("secret/{number:05}"))
    }

    #[test]
    fn few_topics_are_looked_at_for_who_has_not_proven_its_address() {
        let now = Instant::now();
        let mut listing = Listing::new(now);
        let few = broker(secrets(UNPROVEN_VISITS - 1).chain(["there".to_owned()]));
        let there = || Listed::Topics(vec!["there".into()]);
        assert_eq!(listing.topics(&few, READER, false, now), there());
        let many = broker(secrets(UNPROVEN_VISITS).chain(["there".to_owned()]));
        assert_eq!(listing.topics(&many, READER, false, now), Listed::Unproven);
        assert_eq!(listing.topics(&many, READER, true, now), there());
        // A full list is the same for all clients.
        let open = broker((0..2 * MAX_LISTED).map(|number| format!("open/{number}")));
        let full = listing.topics(&open, READER, false, now);
        assert!(matches!(&full, Listed::Topics(topics) if topics.len() == MAX_LISTED));
        assert_eq!(listing.topics(&open, READER, true, now), full);
        // No client can have more topics examined.
        let most = broker(secrets(VISITS).chain(["there".to_owned()]));
        assert_eq!(listing.topics(&most, READER, true, now), Listed::Topics(Vec::new()));
    }

    #[test]
    fn lists_have_a_part_of_the_time() {
        let now = Instant::now();
        let mut listing = Listing::new(now);
        let broker = broker(secrets(1));
        listing.0.spend(MAX_SAVED);
        assert_eq!(listing.topics(&broker, READER, true, now), Listed::Busy);
        let few = listing.topics(&broker, READER, false, now);
        assert_eq!(few, Listed::Topics(Vec::new()), "it costs little");
        let later = now + Duration::from_millis(1);
        assert_eq!(listing.topics(&broker, READER, true, later), Listed::Topics(Vec::new()));
    }
}

//! What publishers and subscribers were promised, and what has arrived.

use std::collections::BTreeMap;

use fulmar_client::QoS;

use crate::tables::Rows;

struct Publication {
    publisher: usize,
    qos: QoS,
    /// When the client handed it over.
    at: u64,
    acknowledged: bool,
}

#[derive(Clone, Default)]
struct Subscriber {
    /// Whether it wants the subscription, and the number of its last request.
    wanted: bool,
    request: u64,
    /// When the subscription was acknowledged, if it was and has not been given up since.
    since: Option<u64>,
    /// Number of times that each message has arrived.
    received: BTreeMap<u64, u64>,
    /// Messages in the order of their first arrival.
    order: Vec<u64>,
}

/// All publications and subscribers. A moment is the number of what has happened before.
#[derive(Default)]
pub(crate) struct Ledger {
    moment: u64,
    publications: Vec<Publication>,
    subscribers: Vec<Subscriber>,
    /// Changes of rows, and whether each was acknowledged.
    changes: Vec<bool>,
}

impl Ledger {
    pub(crate) fn new(subscribers: usize) -> Ledger {
        Ledger { subscribers: vec![Subscriber::default(); subscribers], ..Ledger::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.publications.len()
    }

    /// A client publishes; the number of the message.
    pub(crate) fn publish(&mut self, publisher: usize, qos: QoS) -> u64 {
        self.moment += 1;
        let at = self.moment;
        self.publications.push(Publication { publisher, qos, at, acknowledged: false });
        self.publications.len() as u64 - 1
    }

    pub(crate) fn acknowledged(&mut self, number: u64) {
        if let Some(publication) = self.publications.get_mut(number as usize) {
            publication.acknowledged = true;
        }
    }

    /// The number of the next change of a row.
    pub(crate) fn next_change(&self) -> u64 {
        self.changes.len() as u64
    }

    /// It was asked for.
    pub(crate) fn change(&mut self) {
        self.changes.push(false);
    }

    pub(crate) fn change_acknowledged(&mut self, number: u64) {
        if let Some(acknowledged) = self.changes.get_mut(number as usize) {
            *acknowledged = true;
        }
    }

    /// Checks the rows of the node that serves in the end.
    pub(crate) fn check_rows(&self, rows: &Rows) -> Result<(), String> {
        let row = |database, key: &[u8]| rows.get(&(database, key.into()));
        for (number, acknowledged) in (0u64..).zip(&self.changes) {
            if *acknowledged && row(0, &number.to_be_bytes()).is_none() {
                return Err(format!("change {number} was acknowledged and is not there"));
            }
        }
        let number = |bytes: &[u8]| bytes.try_into().map_or(u64::MAX, u64::from_be_bytes);
        let newest = rows.keys().filter(|key| key.0 == 0).map(|key| number(&key.1)).max();
        // Both rows of a change, or none.
        if row(1, b"last").map(|value| number(value)) != newest {
            return Err("half of a change is there, or an older one came later".to_owned());
        }
        Ok(())
    }

    /// A subscriber asks for the opposite of before: the request's number, and whether it is to subscribe.
    pub(crate) fn toggle(&mut self, subscriber: usize) -> (u64, bool) {
        let subscriber = &mut self.subscribers[subscriber];
        subscriber.wanted = !subscriber.wanted;
        subscriber.since = None;
        subscriber.request += 1;
        (subscriber.request, subscriber.wanted)
    }

    /// A request was granted.
    pub(crate) fn granted(&mut self, subscriber: usize, request: u64) {
        self.moment += 1;
        let moment = self.moment;
        let subscriber = &mut self.subscribers[subscriber];
        if subscriber.wanted && subscriber.request == request {
            subscriber.since.get_or_insert(moment);
        }
    }

    /// A message has arrived.
    pub(crate) fn arrive(&mut self, subscriber: usize, payload: &[u8]) -> Result<(), String> {
        let number = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        let number: u64 = number.ok_or("a message that nobody sent")?;
        let publication = self.publications.get(number as usize).ok_or("an unknown message")?;
        let times = self.subscribers[subscriber].received.entry(number).or_insert(0);
        *times += 1;
        let times = *times;
        if times > 1 && publication.qos == QoS::ExactlyOnce {
            return Err(format!("message {number} (QoS 2) arrived twice"));
        }
        // One from before the subscription has no place in the order: a node that did not know it may have sent later
        // ones before it lost the log.
        let since = self.subscribers[subscriber].since;
        if times == 1 && since.is_some_and(|since| publication.at > since) {
            self.subscribers[subscriber].order.push(number);
        }
        Ok(())
    }

    /// Checks all promises at the end.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (index, subscriber) in self.subscribers.iter().enumerate() {
            if let Some(since) = subscriber.since {
                for (number, publication) in (0..).zip(&self.publications) {
                    let due = publication.acknowledged && publication.at > since;
                    if due && !subscriber.received.contains_key(&number) {
                        return Err(format!(
                            "message {number} was acknowledged and has not arrived at subscriber {index}"
                        ));
                    }
                }
            }
            let mut last = BTreeMap::new();
            for number in &subscriber.order {
                let publisher = self.publications[*number as usize].publisher;
                if last.insert(publisher, *number).is_some_and(|before| before > *number) {
                    return Err(format!("message {number} arrived late at subscriber {index}"));
                }
            }
        }
        Ok(())
    }
}

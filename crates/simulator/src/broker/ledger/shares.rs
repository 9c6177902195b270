//! What members of shared subscriptions were promised: one of them gets each message, and another one if its session ends
//! (MQTT 5.0 section 4.8.2).

use std::collections::BTreeMap;

use fulmar_mqtt::QoS;

use super::{Ledger, is_shared, matches};

impl Ledger {
    /// The shared subscriptions of which a member is to get a message of now, each with its group's number.
    pub(super) fn shared_now(&self, topic: usize, qos: QoS) -> Vec<(usize, u64)> {
        let certain = self.readers.iter().flat_map(|reader| &reader.certain);
        let shared = certain.filter(|(filter, own)| {
            own.qos > QoS::AtMostOnce && is_shared(**filter) && matches(**filter, topic)
        });
        let strong = shared.map(|(filter, _)| *filter).filter(|filter| !self.weak.contains(filter));
        let groups: BTreeMap<usize, u64> =
            strong.map(|filter| (filter, self.group(filter, qos))).collect();
        groups.into_iter().collect()
    }

    pub(super) fn group(&self, filter: usize, qos: QoS) -> u64 {
        let count = |counts: &BTreeMap<usize, u64>| counts.get(&filter).copied().unwrap_or(0);
        count(&self.groups) + if qos == QoS::ExactlyOnce { count(&self.ends) } else { 0 }
    }

    /// Messages that a client was to receive through shared subscriptions go to other members, or may be lost.
    pub(super) fn leaves_groups(&mut self, client: usize) {
        for filter in self.readers[client].asked.keys().filter(|filter| is_shared(**filter)) {
            let others = self.readers.iter().enumerate().filter(|(other, _)| *other != client);
            let mut members = others.filter_map(|(_, reader)| reader.certain.get(filter));
            let goes_on = members.any(|own| own.qos > QoS::AtMostOnce);
            let counts = if goes_on { &mut self.ends } else { &mut self.groups };
            *counts.entry(*filter).or_default() += 1;
        }
    }
}

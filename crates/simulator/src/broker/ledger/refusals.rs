//! What refusals mean. The broker refuses only while a batch is overdue, and what it refuses when it reads it has no
//! effect: the publication reaches nobody, the subscription is as before, the session too. So it is with every PUBREC,
//! SUBACK and UNSUBACK that refuses. A PUBACK may also refuse a publication that was accepted and whose batch is overdue:
//! that one may arrive all the same. Other answers that are overdue are not given: the connection ends.

use fulmar_mqtt::QoS;

use super::{Arrived, Certain, Delivery, Lane, Ledger};
use crate::overdue::Tick;

/// A client's subscription before a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    asked: Option<(QoS, Lane)>,
    certain: Option<Certain>,
    changes: u64,
    /// When the request was sent.
    pub(crate) at: Tick,
}

impl Ledger {
    /// Whether a batch was overdue since then, when the broker dealt with the connection on which a client reads now.
    pub(crate) fn may_refuse(&self, since: Tick) -> bool {
        self.stalled_in > since
    }

    /// The broker has refused a publication when it read it.
    pub(crate) fn is_refused(&mut self, publication: u64) {
        self.refused.insert(publication);
    }

    /// Whether it has refused this publication when it read it.
    pub(crate) fn was_refused(&self, publication: u64) -> bool {
        self.refused.contains(&publication)
    }

    /// A publisher has got PUBACK or PUBREC without an error.
    pub(crate) fn check_accepted(&self, message: usize) -> Result<(), String> {
        let (publication, _) = self.sent[message].said;
        match self.refused.contains(&publication) {
            true => Err(format!("message {message} was refused, and acknowledged")),
            false => Ok(()),
        }
    }

    /// A publisher has got PUBACK or PUBREC with the reason of a stall.
    pub(crate) fn message_refused(&mut self, message: usize) -> Result<(), String> {
        let (publication, at) = self.sent[message].said;
        if !self.may_refuse(at) {
            return Err(format!("message {message} was refused, and no batch was overdue"));
        }
        self.refusals += 1;
        if self.sent[message].qos < QoS::ExactlyOnce {
            return Ok(());
        }
        if !self.refused.contains(&publication) {
            return Err(format!("message {message} was refused by PUBREC after it was accepted"));
        }
        self.sent[message].is_refused = true;
        Ok(())
    }

    /// Whether anybody has got a message.
    pub(crate) fn has_arrived(&self, message: usize) -> bool {
        let came = |arrived: &Arrived| arrived.times > 0;
        self.readers.iter().any(|reader| reader.arrived.get(&message).is_some_and(came))
    }

    pub(super) fn check_not_refused(&self, client: usize, got: Delivery) -> Result<(), String> {
        let Delivery { message, publication, .. } = got;
        if self.refused.contains(&publication) || self.sent[message].is_refused {
            return Err(format!(
                "client {client} got message {message} (publication {publication}), which was refused"
            ));
        }
        Ok(())
    }

    pub(super) fn before(&self, client: usize, filter: usize) -> Before {
        let reader = &self.readers[client];
        Before {
            asked: reader.asked.get(&filter).copied(),
            certain: reader.certain.get(&filter).copied(),
            changes: reader.changes,
            at: self.tick,
        }
    }

    /// SUBSCRIBE was refused: the subscription is as it was before. `alone`: no other request for it was under way.
    pub(crate) fn subscription_refused(
        &mut self,
        client: usize,
        filter: usize,
        before: Before,
        alone: bool,
    ) {
        self.refusals += 1;
        let reader = &mut self.readers[client];
        if !alone || reader.changes != before.changes {
            return self.may_be_elsewhere(client, filter);
        }
        match before.asked {
            Some(asked) => drop(reader.asked.insert(filter, asked)),
            None => drop(reader.asked.remove(&filter)),
        }
        if let (Some(own), Some(before)) = (reader.certain.get_mut(&filter), before.certain) {
            // With a new number if it was to be of QoS 0: what was published meanwhile is not owed.
            own.qos = before.qos;
        }
    }

    /// UNSUBSCRIBE was refused: the subscription has lasted. `alone`: no other request for it was under way.
    pub(crate) fn still_subscribed(
        &mut self,
        client: usize,
        filter: usize,
        before: Before,
        alone: bool,
    ) {
        self.refusals += 1;
        let reader = &mut self.readers[client];
        if let (Some(own), true) = (before.certain, alone && reader.changes == before.changes) {
            reader.certain.insert(filter, own);
        }
    }
}

//! Answers to its requests, and what it does when the broker refuses them because storage is stalled: it gives a
//! refused publication up, keeps its subscriptions, and connects again later.

use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::Ack;
use fulmar_mqtt::session::Outbound;
use fulmar_mqtt::{PacketId, ReasonCode};

use super::{Asking, Client, Leaving, StreamBytes};
use crate::broker::ledger::{Lane, Ledger};

/// The reason of refusals because of a stall.
const STALLED: ReasonCode = ReasonCode::ImplementationSpecificError;

/// The SUBACK code of a refusal in 3.1.1.
const FAILURE: u8 = 0x80;

impl Client {
    /// Whether it waits for an answer on this connection.
    pub(crate) fn is_unanswered(&self) -> bool {
        let publishes = |(lane, outbound): (&Lane, &Outbound<usize>)| {
            outbound.in_flight() > 0 && self.has_stream_of(*lane)
        };
        !self.greeted
            || self.asking.values().any(|asking| self.lane_of(asking.key).is_some())
            || !self.leaving.is_empty()
            || self.outbound.iter().any(publishes)
    }

    pub(super) fn connection_refused(
        &mut self,
        reason: ReasonCode,
        ledger: &mut Ledger,
    ) -> Result<Vec<StreamBytes>, String> {
        let stores = self.nature.durable || self.nature.will.is_some();
        let may = stores && ledger.may_refuse(self.connected_at);
        if reason != ReasonCode::ServerUnavailable || !may {
            return Err(format!("client {} was refused: {reason}", self.index));
        }
        self.turned_away = true;
        ledger.refusals += 1;
        Ok(Vec::new())
    }

    /// PUBACK or PUBREC with an error.
    pub(super) fn publication_refused(
        &mut self,
        lane: Lane,
        kind: AckKind,
        ack: &Ack<'_>,
        ledger: &mut Ledger,
    ) -> Result<Vec<StreamBytes>, String> {
        let (who, id) = (self.index, ack.packet_id);
        if ack.reason != STALLED || !self.nature.v5 {
            return Err(format!("client {who} got {kind:?}: {}", ack.reason));
        }
        let window = self.nature.window;
        let outbound = self.outbound.entry(lane).or_insert_with(|| Outbound::new(window));
        let message = match kind {
            AckKind::Puback => outbound.puback(id).map(|message| (false, message)),
            _ => outbound.pubrec_refused(id),
        };
        match message {
            Ok((false, message)) => ledger.message_refused(message)?,
            Ok((true, message)) => {
                return Err(format!("message {message} was refused after PUBREC had accepted it"));
            }
            Err(error) => return Err(format!("client {who} got {kind:?} of {id}: {error}")),
        }
        Ok(Vec::new())
    }

    /// SUBACK.
    pub(super) fn subscribed(
        &mut self,
        id: PacketId,
        codes: &[u8],
        ledger: &mut Ledger,
    ) -> Result<Vec<StreamBytes>, String> {
        let who = self.index;
        let Some(Asking { filter, qos, least, before, alone, .. }) = self.asking.remove(&id.get())
        else {
            return Ok(Vec::new());
        };
        let doubted = self.doubted.remove(&id.get());
        let refusal = if self.nature.v5 { STALLED.as_u8() } else { FAILURE };
        if codes == [refusal] && self.nature.durable && ledger.may_refuse(before.at) {
            ledger.subscription_refused(who, filter, before, alone && !doubted);
        } else if codes != [qos as u8] {
            return Err(format!("client {who} got SUBACK {codes:?}"));
        } else if !doubted {
            ledger.subscribed(who, filter, least);
        }
        Ok(Vec::new())
    }

    /// UNSUBACK.
    pub(super) fn unsubscribed(
        &mut self,
        id: PacketId,
        codes: &[u8],
        ledger: &mut Ledger,
    ) -> Result<Vec<StreamBytes>, String> {
        let who = self.index;
        let Some(Leaving { filter, before, alone }) = self.leaving.remove(&id.get()) else {
            return Ok(Vec::new());
        };
        if codes == [STALLED.as_u8()] && self.nature.durable && ledger.may_refuse(before.at) {
            ledger.still_subscribed(who, filter, before, alone);
        } else if codes.iter().any(|code| *code >= FAILURE) {
            return Err(format!("client {who} got UNSUBACK {codes:?}"));
        }
        Ok(Vec::new())
    }
}

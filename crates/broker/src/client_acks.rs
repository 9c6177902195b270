//! A client's answers to publications: PUBACK, PUBREC and PUBCOMP (MQTT 5.0 sections 3.4, 3.5 and 3.7). They free packet
//! identifiers, and the flow sends what waited for them.

use fulmar_mqtt::PacketId;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::session::AckError;

use crate::session::{Session, SessionState};
use crate::storage::{FlowId, Op, Progress};
use crate::turn::Turn;

impl SessionState {
    /// PUBACK, PUBCOMP, or PUBREC with an error from the client: the exchange is over ([MQTT-4.3.3-4]).
    pub(crate) fn handle_last_ack(
        &mut self,
        session: &Session,
        turn: &mut Turn,
        flow: FlowId,
        kind: AckKind,
        packet_id: PacketId,
    ) -> Result<(), AckError> {
        let Some(index) = self.flow_index(flow) else { return Ok(()) };
        let outbound = &mut self.flows[index].outbound;
        let (released, outgoing) = match kind {
            AckKind::Puback => (false, outbound.puback(packet_id)?),
            AckKind::Pubcomp => (true, outbound.pubcomp(packet_id)?),
            AckKind::Pubrec | AckKind::Pubrel => outbound.pubrec_refused(packet_id)?,
        };
        if outgoing.traced && kind != AckKind::Pubrec {
            turn.trace_acknowledged(session, &outgoing);
        }
        // Otherwise an earlier PUBREC has already removed it from storage.
        if !released || self.flows[index].is_stored() {
            self.forget(session, turn, index, &outgoing);
        }
        // The window has room again: the connection's worker refills the outbox.
        self.announce_more(turn, index);
        self.unblock(turn);
        Ok(())
    }

    /// PUBREC from the client. True when PUBREL must wait for storage.
    pub(crate) fn handle_pubrec(
        &mut self,
        session: &Session,
        turn: &mut Turn,
        flow: FlowId,
        packet_id: PacketId,
    ) -> Result<bool, AckError> {
        let Some(index) = self.flow_index(flow) else { return Ok(false) };
        let flow = &mut self.flows[index];
        let outgoing = flow.outbound.pubrec(packet_id)?;
        let position = outgoing.position;
        if self.durable {
            let (session, flow) = (session.key(), flow.stored_as());
            // The message has arrived. The rest of the exchange has no meaning without its stream.
            turn.op(if self.flows[index].is_stored() {
                Op::Advance { session, flow, position, progress: Progress::Released(packet_id) }
            } else {
                Op::Dequeue { session, flow, position }
            });
        }
        Ok(self.durable)
    }
}

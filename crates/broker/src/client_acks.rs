//! A client's answers to publications: PUBACK, PUBREC and PUBCOMP (MQTT 5.0 sections 3.4, 3.5 and 3.7). They free packet
//! identifiers, and the flow sends what waited for them.

use fulmar_mqtt::PacketId;
use fulmar_mqtt::session::AckError;

use crate::session::{Session, SessionState};
use crate::storage::{FlowId, Op, Progress};
use crate::turn::Turn;

impl SessionState {
    /// PUBACK from the client.
    pub(crate) fn handle_puback(
        &mut self,
        session: &Session,
        turn: &mut Turn,
        flow: FlowId,
        packet_id: PacketId,
    ) -> Result<(), AckError> {
        let Some(index) = self.flow_index(flow) else { return Ok(()) };
        let outgoing = self.flows[index].outbound.puback(packet_id)?;
        if outgoing.traced {
            turn.trace_acknowledged(session, &outgoing);
        }
        self.forget(session, turn, index, &outgoing);
        self.room_made(turn, index);
        Ok(())
    }

    /// PUBREC with an error from the client: the exchange is over ([MQTT-4.3.3-4]).
    pub(crate) fn handle_pubrec_error(
        &mut self,
        session: &Session,
        turn: &mut Turn,
        flow: FlowId,
        packet_id: PacketId,
    ) -> Result<(), AckError> {
        let Some(index) = self.flow_index(flow) else { return Ok(()) };
        let (released, outgoing) = self.flows[index].outbound.pubrec_refused(packet_id)?;
        // Otherwise an earlier PUBREC has already removed it from storage.
        if !released || self.flows[index].is_stored() {
            self.forget(session, turn, index, &outgoing);
        }
        self.room_made(turn, index);
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

    /// PUBCOMP from the client.
    pub(crate) fn handle_pubcomp(
        &mut self,
        session: &Session,
        turn: &mut Turn,
        flow: FlowId,
        packet_id: PacketId,
    ) -> Result<(), AckError> {
        let Some(index) = self.flow_index(flow) else { return Ok(()) };
        let outgoing = self.flows[index].outbound.pubcomp(packet_id)?;
        if outgoing.traced {
            turn.trace_acknowledged(session, &outgoing);
        }
        // Otherwise PUBREC has already removed it from storage.
        if self.flows[index].is_stored() {
            self.forget(session, turn, index, &outgoing);
        }
        self.room_made(turn, index);
        Ok(())
    }

    /// The window has room again: the connection's worker refills the outbox.
    fn room_made(&mut self, turn: &mut Turn, index: usize) {
        let attachment = self.attachment;
        let flow = &mut self.flows[index];
        if let Some(attachment) = attachment
            && flow.has_more()
        {
            flow.announce(turn, attachment);
        }
        self.unblock(turn);
    }
}

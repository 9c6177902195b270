//! The order of a topic's messages while its subscription moves from one flow to another, as when a
//! client that is back subscribes again on a stream (MQTT 5.0 section 4.6).
//!
//! Streams do not wait for each other. So the new flow keeps what comes after the move until what the
//! old one was owed before is acknowledged. Messages wait only behind earlier ones, so that flows
//! cannot wait for each other for ever.

use crate::session::{Flow, Owed, SessionState};
use crate::shard::Turn;
use crate::storage::{FlowId, Position};
use fulmar_mqtt::session::Replay;

impl SessionState {
    /// A subscription moves: what comes from now on stays behind what `from` is owed, and behind what
    /// that waits for.
    pub(crate) fn keep_order(&mut self, from: FlowId, to: FlowId) {
        let Some(flow) = self.flow_mut(from).filter(|_| from != to) else { return };
        let mut owed: Owed = flow.rare.as_ref().map_or_else(Owed::new, |rare| rare.behind.clone());
        owed.extend(flow.last_owed().map(|last| (from, last)));
        let Some(flow) = self.flow_mut(to) else { return };
        for (id, last) in owed.into_iter().filter(|(id, _)| *id != to) {
            flow.stay_behind(id, last);
        }
    }

    /// Whether the message at `position` of this flow has to wait for another flow.
    pub(crate) fn is_behind(&mut self, index: usize, position: Position) -> bool {
        let behind = match &mut self.flows[index].rare {
            Some(rare) if !rare.behind.is_empty() => std::mem::take(&mut rare.behind),
            _ => return false,
        };
        let owed = |(id, last): &(FlowId, Position)| {
            let flow = self.flow_index(*id).map(|index| &self.flows[index]);
            flow.is_some_and(|flow| flow.stream.is_some() && flow.owes(*last))
        };
        let behind: Owed = behind.into_iter().filter(owed).collect();
        let waits = behind.iter().any(|(_, last)| *last < position);
        self.flows[index].rare().behind = behind;
        waits
    }

    /// Something was acknowledged or has ended: flows that waited for it look again.
    pub(crate) fn unblock(&mut self, turn: &mut Turn) {
        let Some(attachment) = self.attachment.filter(|_| self.flows.len() > 1) else { return };
        for flow in &mut self.flows {
            let blocked = flow.rare.as_mut().and_then(|rare| rare.blocked.take());
            if blocked.is_some() && flow.has_more() {
                flow.announce(turn, attachment);
            }
        }
    }

    /// What `ended` was owed is the control flow's now, with what it waited for itself; who waited for
    /// it waits for that.
    pub(crate) fn wait_for_control(&mut self, ended: &mut Flow) {
        let behind = ended.rare.as_mut().map(|rare| std::mem::take(&mut rare.behind));
        for (id, last) in behind.into_iter().flatten().filter(|(id, _)| *id != FlowId::CONTROL) {
            self.flows[0].stay_behind(id, last);
        }
        for flow in &mut self.flows {
            let Some(rare) = &mut flow.rare else { continue };
            let Some(at) = rare.behind.iter().position(|(id, _)| *id == ended.id) else { continue };
            let (_, last) = rare.behind.remove(at);
            if flow.id != FlowId::CONTROL {
                flow.stay_behind(FlowId::CONTROL, last);
            }
        }
    }
}

impl Flow {
    fn stay_behind(&mut self, id: FlowId, last: Position) {
        let behind = &mut self.rare().behind;
        match behind.iter_mut().find(|(known, _)| *known == id) {
            Some((_, known)) => *known = last.max(*known),
            None => behind.push((id, last)),
        }
    }

    /// Place of the last message that has not arrived for certain.
    fn last_owed(&self) -> Option<Position> {
        // The queue is in order.
        self.under_way().chain(self.queue.back().map(|held| held.position)).max()
    }

    /// Whether a message up to `last` has not arrived for certain.
    fn owes(&self, last: Position) -> bool {
        let waits = self.queue.front().is_some_and(|held| held.position <= last);
        waits || self.under_way().any(|position| position <= last)
    }

    fn under_way(&self) -> impl Iterator<Item = Position> {
        self.outbound.replay().filter_map(|replay| match replay {
            Replay::Publish { message, .. } => Some(message.position),
            Replay::Pubrel { .. } => None,
        })
    }
}

//! The queues of a session within its limits: what gives way when they are full, or has expired in them.

use std::sync::Arc;

use fulmar_auth::{Timestamp, text_of};
use fulmar_mqtt::session::give_back;

use crate::deliver::enqueue_op;
use crate::event::BrokerEvent;
use crate::limits::DropPolicy;
use crate::message::Message;
use crate::session::{Outgoing, Session, SessionState};
use crate::storage::{Op, Progress};
use crate::turn::{MEMORY_FULL, Turn};

impl SessionState {
    /// Queues a message, within the session's limits.
    pub(crate) fn enqueue(
        &mut self,
        session: &Arc<Session>,
        turn: &mut Turn,
        index: usize,
        mut outgoing: Outgoing,
    ) -> bool {
        let size = outgoing.message.size();
        let policy = turn.limits().drop_policy;
        loop {
            let has_memory = self.has_memory_for(&outgoing.message);
            if has_memory && self.queued.has_room(size, turn.limits()) {
                break;
            }
            if self.queue_expires_at <= turn.now {
                self.drop_expired(session, turn);
                continue;
            }
            turn.metrics().messages_dropped_queue.add(1);
            if has_memory {
                let who = (session.client_id(), self.user.as_ref());
                let what = format_args!("message dropped");
                turn.log_bound("max_queued_messages or max_queued_bytes", who, what);
            } else {
                self.refused_memory(session, turn, "message not queued");
            }
            if policy == DropPolicy::Disconnect
                && let Some(at) = self.attachment
            {
                turn.notify(at, BrokerEvent::Overflowed);
            }
            if policy != DropPolicy::Oldest || !self.drop_oldest(session, turn, index) {
                return false;
            }
        }
        self.queued.add(size);
        self.note_expiry(&outgoing.message);
        outgoing.kept = self.keep(&outgoing.message);
        let flow = &mut self.flows[index];
        if self.durable {
            let op = enqueue_op(session, flow.stored_as(), &outgoing, Progress::Queued);
            outgoing.stamp = turn.move_after(outgoing.stamp, op);
        }
        flow.queue.push_back(outgoing);
        true
    }

    /// A message has found no room because of the owner's share of the memory.
    pub(crate) fn refused_memory(&self, session: &Session, turn: &mut Turn, what: &str) {
        turn.metrics().memory_refused.add(1);
        turn.memory_refused = true;
        if let Some(times) = turn.occurred(MEMORY_FULL) {
            tracing::warn!(
                client = session.client_id(),
                user = text_of(self.user.as_ref()),
                times,
                "{what}: the user's sessions have their share of [limits] memory"
            );
        }
    }

    /// A message is queued that may expire there.
    pub(crate) fn note_expiry(&mut self, message: &Message) {
        let at = message.expires_at().unwrap_or(Timestamp::NEVER);
        self.queue_expires_at = self.queue_expires_at.min(at);
    }

    /// Drops what has expired in the queues of all flows.
    fn drop_expired(&mut self, session: &Session, turn: &mut Turn) {
        self.queue_expires_at = Timestamp::NEVER;
        for index in 0..self.flows.len() {
            for outgoing in std::mem::take(&mut self.flows[index].queue) {
                if outgoing.message.is_expired(turn.now) {
                    turn.metrics().messages_expired.add(1);
                    self.queued.remove(outgoing.message.size());
                    self.forget(session, turn, index, &outgoing);
                } else {
                    self.note_expiry(&outgoing.message);
                    self.flows[index].queue.push_back(outgoing);
                }
            }
        }
        self.unblock(turn);
    }

    fn drop_oldest(&mut self, session: &Session, turn: &mut Turn, index: usize) -> bool {
        match self.flows[index].queue.pop_front() {
            Some(old) => {
                give_back(&mut self.flows[index].queue);
                self.queued.remove(old.message.size());
                self.forget(session, turn, index, &old);
                self.unblock(turn);
                true
            }
            None => false,
        }
    }

    pub(crate) fn forget(
        &self,
        session: &Session,
        turn: &mut Turn,
        index: usize,
        outgoing: &Outgoing,
    ) {
        if self.durable {
            let (session, flow, position) =
                (session.key(), self.flows[index].stored_as(), outgoing.position);
            turn.op_after(outgoing.stamp, Op::Dequeue { session, flow, position });
        }
    }
}

//! What a worker's event loop calls besides its connections: events of connections, and deadlines.

use crate::event::BrokerEvent;
use crate::fan_out::WILLS;
use crate::flows;
use crate::housekeeping;
use crate::peer::Token;
use crate::shard::Shard;
use crate::turn::{Turn, Waiter};

impl Shard {
    /// Appends the events of this worker's connections: pass each to [`crate::Connection::on_event`], then flush that
    /// connection. Call it until it appends nothing.
    pub fn take_events(&mut self, out: &mut Vec<(Token, BrokerEvent)>) {
        self.turn.see_storage();
        release_durable(&mut self.turn);
        self.turn.wake_waiting();
        match self.turn.fan_out.call() {
            Some(WILLS) => housekeeping::go_on(self),
            Some(token) => self.turn.notify_own(token, BrokerEvent::Ready),
            None => {}
        }
        self.turn.take_events(out);
    }

    /// Does what is due: finds storage stalled, has long waits logged, and the housekeeping of session expiry, delayed wills, `$SYS`.
    pub fn on_deadline(&mut self) {
        if self.turn.is_overdue() {
            release_durable(&mut self.turn);
            self.turn.find_overdue();
        }
        self.turn.announce_long_waits();
        if self.turn.index == 0 {
            housekeeping::run(self);
        }
    }
}

/// Lets go what waited for commits that have happened.
fn release_durable(turn: &mut Turn) {
    turn.see_commits();
    while let Some((number, waiter)) = turn.next_durable() {
        match waiter {
            Waiter::Acknowledge(token) => turn.notify_own(token, BrokerEvent::Durable),
            Waiter::Send(session, flow, packet_id, position) => {
                session.lock().release(&session, turn, flow, packet_id, position);
            }
            Waiter::Resend(session, flow) => {
                flows::resend(&mut session.lock(), turn, flow, number);
            }
            Waiter::Trace(number) => turn.trace_durable(number),
        }
    }
}

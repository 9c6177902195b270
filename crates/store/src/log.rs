//! The writer's side of a log: a group becomes one or more records, one append at a time; the database follows later.
//!
//! What a group leaves for the database is merged with what earlier groups left. A message delivered within a second
//! therefore costs the log a record and the database nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::inbox::Inbox;
use crate::journal::{Append, AppendError, Journal, LogPosition, RecordKind, encode, record};
use crate::lease::Lease;
use crate::options::Options;
use crate::tables::Tables;
use crate::writer::Shared;

/// Longest time that the database is behind the log, while it can be written.
const BEHIND: Duration = Duration::from_secs(1);
/// After this many operations and KiB of messages that remain, the database is written sooner: meanwhile nothing is
/// appended.
const BEHIND_WEIGHT: usize = 16_384;
/// With this many, nothing is appended until the database is written.
const MAX_BEHIND_WEIGHT: usize = 32 * BEHIND_WEIGHT;
/// Pause before the database is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// Records of strangers at places of ours in a row, after which there is a pause.
const MAX_IN_A_ROW: u32 = 64;
const STRANGERS: &str =
    "another program writes to the cluster's log; give NATS credentials that only nodes have";

/// A log with this process as its writer.
pub(crate) struct Log {
    journal: Box<dyn Journal>,
    /// The last record that the log is known to have.
    tail: LogPosition,
    behind: Group,
    /// When `behind` is written to the database.
    due_at: Option<Instant>,
    /// Whether there is so much that the database is written sooner.
    much: bool,
    /// Whether the last attempt failed.
    failed: bool,
    /// Records of others that were at the place of one of ours.
    passed_over: u64,
    body: Vec<u8>,
    bytes: Vec<u8>,
}

impl Log {
    /// Continues behind `tail`, in its epoch.
    pub(crate) fn new(journal: Box<dyn Journal>, tail: LogPosition) -> Log {
        Log {
            journal,
            tail,
            behind: Group::default(),
            due_at: None,
            much: false,
            failed: false,
            passed_over: 0,
            body: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Appends `group`, trying until the log has it. `report` is called with each failure. Fails if the log has refused
    /// it, or the store is being closed and the log does not answer.
    pub(crate) fn append(
        &mut self,
        group: &Group,
        shared: &Shared,
        options: &Options,
        mut report: impl FnMut(&str),
    ) -> Result<(), String> {
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        encode(group.to_ops(), &mut body);
        let mut parts = body.chunks(record::max_body()).peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            let kind = if last { RecordKind::Group(part) } else { RecordKind::Part(part) };
            self.append_record(kind, &shared.inbox, options, &mut report)?;
        }
        if body.capacity() <= 4 * record::max_body() {
            self.body = body;
        }
        self.behind.merge(group);
        let limit = if self.failed { MAX_BEHIND_WEIGHT } else { BEHIND_WEIGHT };
        self.much = self.behind.is_heavy(limit);
        self.due_at.get_or_insert_with(|| Instant::now() + BEHIND);
        Ok(())
    }

    /// Notes in the log that this writer has stopped. Others then need not wait for its lease to end.
    pub(crate) fn release(&mut self, shared: &Shared, options: &Options) {
        let warn = |error: &str| tracing::warn!(error, "log not released");
        // A refusal has no consequence any more.
        let _ = self.append_record(RecordKind::Release, &shared.inbox, options, &mut { warn });
        self.due_at.get_or_insert_with(Instant::now);
    }

    /// The lease on the log.
    pub(crate) fn lease(&self) -> Option<Arc<Lease>> {
        self.journal.lease()
    }

    /// The last record that the log is known to have.
    pub(crate) fn tail(&self) -> LogPosition {
        self.tail
    }

    /// When the database is to be written.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    pub(crate) fn is_due(&self) -> bool {
        let much = !self.failed && self.much;
        self.due_at.is_some_and(|at| much || self.is_full() || at <= Instant::now())
    }

    /// Whether the database must be written before more is appended, so that what it lacks fits the memory.
    pub(crate) fn is_full(&self) -> bool {
        self.behind.weight >= MAX_BEHIND_WEIGHT
    }

    /// Brings the database to the end of the log. If that fails, the database stays where it is, and the next call
    /// tries again: nothing that was acknowledged depends on it.
    pub(crate) fn write_behind(&mut self, tables: &mut Tables<'_>) -> rusqlite::Result<()> {
        if self.due_at.is_none() {
            return Ok(());
        }
        let written = tables.write(&self.behind, Some(self.tail));
        match written {
            Ok(()) => {
                self.behind.clear();
                self.much = false;
                self.due_at = None;
            }
            Err(_) => self.due_at = Some(Instant::now() + RETRY),
        }
        self.failed = written.is_err();
        written
    }

    /// Goes on behind a record of somebody else, which is at the place of ours.
    fn pass_over(&mut self) {
        self.tail = self.tail.passed();
        self.passed_over += 1;
        // Or a stranger could fill the log.
        if self.passed_over.is_power_of_two() {
            let (record, total) = (self.tail.number, self.passed_over);
            tracing::warn!(record, total, "passed over a record of the cluster's log: {STRANGERS}");
        }
    }

    fn append_record(
        &mut self,
        kind: RecordKind<'_>,
        inbox: &Inbox,
        options: &Options,
        report: &mut impl FnMut(&str),
    ) -> Result<(), String> {
        let mut position = self.tail.next(kind, &mut self.bytes);
        let mut pause = options.retry_first;
        let (mut closing, mut in_a_row) = (false, 0);
        loop {
            let append = Append { after: self.tail, position, bytes: &self.bytes };
            match self.journal.append(&append) {
                Ok(()) => break,
                Err(AppendError::Displaced) => {
                    self.pass_over();
                    position = self.tail.next(kind, &mut self.bytes);
                    in_a_row += 1;
                    if in_a_row % MAX_IN_A_ROW == 0 {
                        report(STRANGERS);
                        if closing {
                            return Err(STRANGERS.to_owned());
                        }
                        closing = inbox.pause(Instant::now() + pause);
                    }
                }
                Err(AppendError::Refused(error)) => return Err(error),
                Err(AppendError::Unknown(error)) => {
                    report(&error);
                    if closing {
                        return Err(error);
                    }
                    closing = inbox.pause(Instant::now() + pause);
                    pause = (pause * 2).min(options.retry_last);
                }
            }
        }
        self.tail = position;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use fulmar_broker::message::{Message, MessageId, MessageParts};
    use fulmar_broker::storage::{Delivery, FlowId, Op, Position, Progress, SessionKey};
    use fulmar_mqtt::QoS;

    use super::*;

    const FLOW: FlowId = FlowId::CONTROL;

    struct Accepts;

    impl Journal for Accepts {
        fn append(&mut self, _: &Append<'_>) -> Result<(), AppendError> {
            Ok(())
        }
    }

    fn message(id: u64) -> Arc<Message> {
        let parts = MessageParts {
            topic: "t",
            properties: &[],
            payload: &[],
            qos: QoS::AtLeastOnce,
            retain: false,
            expires_at: None,
            publisher: 0,
        };
        Message::new(MessageId(id), &parts)
    }

    fn enqueue(number: u64) -> Op {
        let delivery = Delivery {
            qos: QoS::AtLeastOnce,
            retain: false,
            identifiers: Box::default(),
            share: 0,
        };
        let (session, position) = (SessionKey(1), Position(number));
        let (message, progress) = (message(number), Progress::Queued);
        Op::Enqueue { session, flow: FLOW, position, message, delivery, progress }
    }

    fn dequeue(number: u64) -> Op {
        Op::Dequeue { session: SessionKey(1), flow: FLOW, position: Position(number) }
    }

    /// Appends a group of operations.
    fn append(log: &mut Log, ops: Vec<Op>) {
        let (mut group, options) = (Group::default(), Options::default());
        let weight = ops.len();
        group.add_all(ops, weight);
        log.append(&group, &Shared::new(&options), &options, |_| {}).unwrap();
    }

    #[test]
    fn delivered_messages_do_not_bring_the_database_forward() {
        let mut log = Log::new(Box::new(Accepts), LogPosition::default());
        let (messages, group) = (4 * BEHIND_WEIGHT as u64, 1_000);
        for first in (0..messages).step_by(group) {
            append(&mut log, (first..first + group as u64).map(enqueue).collect());
            assert!(!log.much, "after message {first}");
            append(&mut log, (first..first + group as u64).map(dequeue).collect());
        }
        for first in (messages..messages + BEHIND_WEIGHT as u64).step_by(group) {
            append(&mut log, (first..first + group as u64).map(enqueue).collect());
        }
        assert!(log.much, "they remain");
    }
}

//! What a node that serves appends: one record after the other, each until its outcome is known.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fulmar_broker::storage::Op;
use fulmar_store::journal::{Append, AppendError, LogPosition, RecordKind, RecordView, encode};

use super::engine::{Appended, Bytes, Request};

/// After this long without an answer, the same record is sent again.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a body; more than that becomes several records.
const BODY: usize = 400;

struct Record {
    after: LogPosition,
    position: LogPosition,
    bytes: Bytes,
    /// The group of which it is the last record.
    ends: Option<(u64, Vec<Op>)>,
    /// Requests with it, and when the last one was sent.
    sent: Vec<u64>,
    sent_at: Option<Instant>,
}

/// Meaning of an answer.
pub(crate) enum AppendOutcome {
    /// A record is in the log, and with it perhaps a group.
    Stored(LogPosition, Option<(u64, Vec<Op>)>),
    /// Another node has claimed the log.
    Refused,
    /// The answer belongs to something else.
    Other,
}

pub(crate) struct Writer {
    tail: LogPosition,
    depth: usize,
    queue: VecDeque<Record>,
}

impl Writer {
    pub(crate) fn new(tail: LogPosition, depth: usize) -> Writer {
        Writer { tail, depth, queue: VecDeque::new() }
    }

    /// Whether another group may be added.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < self.depth
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// The operations of the batches up to `seq`.
    pub(crate) fn add(&mut self, seq: u64, ops: Vec<Op>) {
        let mut body = Vec::new();
        encode(ops.iter().map(std::borrow::Cow::Borrowed), &mut body);
        let parts: Vec<&[u8]> = body.chunks(BODY).collect();
        let Some((last, before)) = parts.split_last() else { return };
        for part in before {
            self.push(RecordKind::Part(part), None);
        }
        self.push(RecordKind::Group(last), Some((seq, ops)));
    }

    pub(crate) fn release(&mut self) {
        self.push(RecordKind::Release, None);
    }

    fn push(&mut self, kind: RecordKind<'_>, ends: Option<(u64, Vec<Op>)>) {
        let mut bytes = Vec::new();
        let after = self.tail;
        let position = after.next(kind, &mut bytes);
        self.tail = position;
        let (bytes, sent) = (bytes.into(), Vec::new());
        self.queue.push_back(Record { after, position, bytes, ends, sent, sent_at: None });
    }

    /// What has not been appended follows this position.
    fn continue_behind(&mut self, mut tail: LogPosition) {
        for record in &mut self.queue {
            let mut bytes = Vec::new();
            if let Ok(RecordView { kind: Some(kind), .. }) = record.after.read(&record.bytes) {
                record.position = tail.next(kind, &mut bytes);
            }
            (record.after, record.bytes) = (tail, bytes.into());
            (record.sent, record.sent_at) = (Vec::new(), None);
            tail = record.position;
        }
        self.tail = tail;
    }

    /// The next request, if one is due.
    pub(crate) fn request(&mut self, id: u64, now: Instant) -> Option<Request> {
        let due = |at: Instant| now.saturating_duration_since(at) >= PATIENCE;
        let mut in_flight = self.queue.iter_mut().take(self.depth);
        let record = in_flight.find(|record| record.sent_at.is_none_or(due))?;
        record.sent.push(id);
        record.sent_at = Some(now);
        Some(Request::Append(record.position, record.bytes.clone()))
    }

    pub(crate) fn answered(&mut self, id: u64, appended: &Appended) -> AppendOutcome {
        let Some(at) = self.queue.iter().position(|record| record.sent.contains(&id)) else {
            return AppendOutcome::Other;
        };
        match appended {
            Appended::Refused => return AppendOutcome::Refused,
            Appended::Displaced(found) => {
                let Record { after, position, bytes, .. } = &self.queue[at];
                let append = Append { after: *after, position: *position, bytes };
                if append.displaced_by(found.as_read()) != AppendError::Displaced || at > 0 {
                    return AppendOutcome::Refused;
                }
                self.continue_behind(append.after.passed());
                return AppendOutcome::Other;
            }
            Appended::Stored => {}
        }
        self.queue.remove(at).map_or(AppendOutcome::Other, |record| {
            AppendOutcome::Stored(record.position, record.ends)
        })
    }
}

//! Writes a group: the prepared statements, and the reference counts that belong to them.
//!
//! A group is one transaction: either all of it is committed, or the tables and the counts are as
//! they were. Nothing here retries.

use std::collections::hash_map::Entry;

use fulmar_broker::Timestamp;
use fulmar_broker::message::{Message, MessageId};
use fulmar_broker::storage::{FlowId, Op, SessionKey, SessionRecord, SubscriptionRecord};
use rusqlite::{Connection, OptionalExtension, Result, Statement, params};

use crate::columns::{get_u64, identifiers_blob, int, moment, progress_columns, qos_number};
use crate::group::{Group, QueueSlot};
use crate::journal::LogPosition;
use crate::restore::Counts;
use crate::rows;
use crate::schema;

/// Highest numbers are written this far ahead, so that they are not written with every message.
/// After a crash up to this many numbers are skipped; there are 2^63.
const RESERVE: u64 = 1 << 16;

/// All statements of the writer, prepared once.
pub(crate) struct Tables<'c> {
    begin: Statement<'c>,
    commit: Statement<'c>,
    rollback: Statement<'c>,
    session_put: Statement<'c>,
    session_remove: [Statement<'c>; 5],
    session_unqueue: Statement<'c>,
    will_put: Statement<'c>,
    will_remove: Statement<'c>,
    flow_put: Statement<'c>,
    flow_remove: [Statement<'c>; 3],
    subscription_put: Statement<'c>,
    subscription_remove: Statement<'c>,
    message_put: Statement<'c>,
    message_remove: Statement<'c>,
    enqueue: Statement<'c>,
    advance: Statement<'c>,
    dequeue: Statement<'c>,
    receive: Statement<'c>,
    release: Statement<'c>,
    retained_find: Statement<'c>,
    retained_put: Statement<'c>,
    retained_remove: Statement<'c>,
    meta_put: Statement<'c>,
    /// Only a database that belongs to a log has the tables.
    rows: Option<[Statement<'c>; 3]>,
    references: References,
    highest_message: Highest,
    highest_session: Highest,
}

impl<'c> Tables<'c> {
    /// Prepares everything; `counts` as restored, `highest_…` as stored.
    pub(crate) fn new(
        connection: &'c Connection,
        counts: Counts,
        highest_message: u64,
        highest_session: u64,
    ) -> Result<Tables<'c>> {
        let sql = |text: &str| connection.prepare(text);
        Ok(Tables {
            begin: sql("BEGIN IMMEDIATE")?,
            commit: sql("COMMIT")?,
            rollback: sql("ROLLBACK")?,
            session_put: sql("INSERT OR REPLACE INTO session VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?,
            session_remove: [
                sql("DELETE FROM session WHERE session = ?1")?,
                sql("DELETE FROM flow WHERE session = ?1")?,
                sql("DELETE FROM subscription WHERE session = ?1")?,
                sql("DELETE FROM inbound WHERE session = ?1")?,
                sql("DELETE FROM will WHERE session = ?1")?,
            ],
            will_put: sql("INSERT OR REPLACE INTO will
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)")?,
            will_remove: sql("DELETE FROM will WHERE session = ?1")?,
            session_unqueue: sql("DELETE FROM queue WHERE session = ?1 RETURNING message")?,
            flow_put: sql("INSERT OR REPLACE INTO flow VALUES (?1, ?2, ?3, ?4)")?,
            flow_remove: [
                sql("DELETE FROM flow WHERE session = ?1 AND flow = ?2")?,
                sql("DELETE FROM subscription WHERE session = ?1 AND flow = ?2")?,
                sql("DELETE FROM inbound WHERE session = ?1 AND flow = ?2")?,
            ],
            subscription_put: sql("INSERT OR REPLACE INTO subscription
                (session, flow, filter, options, identifier, replay)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?,
            subscription_remove: sql(
                "DELETE FROM subscription WHERE session = ?1 AND filter = ?2",
            )?,
            message_put: sql("INSERT INTO message VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?,
            message_remove: sql("DELETE FROM message WHERE id = ?1")?,
            enqueue: sql(
                "INSERT OR REPLACE INTO queue VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?,
            advance: sql("UPDATE queue SET packet_id = ?4, released = ?5
                WHERE session = ?1 AND flow = ?2 AND position = ?3")?,
            dequeue: sql("DELETE FROM queue WHERE session = ?1 AND flow = ?2 AND position = ?3
                RETURNING message")?,
            receive: sql("INSERT OR IGNORE INTO inbound VALUES (?1, ?2, ?3)")?,
            release: sql(
                "DELETE FROM inbound WHERE session = ?1 AND flow = ?2 AND packet_id = ?3",
            )?,
            retained_find: sql("SELECT message FROM retained WHERE topic = ?1")?,
            retained_put: sql("INSERT OR REPLACE INTO retained VALUES (?1, ?2)")?,
            retained_remove: sql("DELETE FROM retained WHERE topic = ?1")?,
            meta_put: sql("UPDATE meta SET value = ?2 WHERE name = ?1")?,
            rows: if rows::exist(connection)? {
                Some([sql(rows::PUT)?, sql(rows::REMOVE)?, sql(rows::NOTE)?])
            } else {
                None
            },
            references: References { counts, undo: Vec::new() },
            highest_message: Highest::new("last_message_id", highest_message),
            highest_session: Highest::new("last_session_key", highest_session),
        })
    }

    /// Writes and commits `group`, and with it `up_to`, the last record of the log that it has. On an error nothing has
    /// changed.
    pub(crate) fn write(&mut self, group: &Group, up_to: Option<LogPosition>) -> Result<()> {
        self.begin.execute([])?;
        let result = self
            .apply(group, up_to)
            .and_then(|()| up_to.map_or(Ok(()), |position| self.put_position(position)))
            .and_then(|()| self.commit.execute([]));
        match result {
            Ok(_) => {
                self.references.undo.clear();
                self.highest_message.committed();
                self.highest_session.committed();
                Ok(())
            }
            Err(error) => {
                // After some errors SQLite has already rolled back; this fails then.
                let _ = self.rollback.execute([]);
                self.references.undo();
                self.highest_message.undo();
                self.highest_session.undo();
                Err(error)
            }
        }
    }

    /// Takes over the reference counts of other statements.
    pub(crate) fn continue_counts(&mut self, counts: Counts) {
        self.references.counts = counts;
    }

    /// The reference counts, to go on with other statements.
    pub(crate) fn into_counts(self) -> Counts {
        self.references.counts
    }

    /// The largest message number and session key that were stored.
    pub(crate) fn highest(&self) -> (u64, u64) {
        (self.highest_message.seen, self.highest_session.seen)
    }

    fn put_position(&mut self, position: LogPosition) -> Result<()> {
        for (name, value) in schema::position_rows(position) {
            self.meta_put.execute(params![name, value])?;
        }
        Ok(())
    }

    /// Writes the exact highest numbers instead of the reserved ones, for a clean end.
    pub(crate) fn write_highest(&mut self) -> Result<()> {
        for highest in [&self.highest_message, &self.highest_session] {
            self.meta_put.execute(params![highest.name, int(highest.seen)])?;
        }
        Ok(())
    }

    fn apply(&mut self, group: &Group, up_to: Option<LogPosition>) -> Result<()> {
        for slot in &group.dequeued {
            self.dequeue(slot)?;
        }
        for slot in &group.released {
            self.release.execute(params![
                int(slot.session.0),
                int(slot.flow.0),
                slot.packet_id.get()
            ])?;
        }
        for (slot, progress) in &group.advanced {
            let (packet_id, released) = progress_columns(*progress);
            self.advance.execute(params![
                int(slot.session.0),
                int(slot.flow.0),
                int(slot.position.0),
                packet_id,
                released
            ])?;
        }
        for op in group.ordered() {
            self.apply_ordered(op)?;
        }
        for (topic, message) in &group.retained {
            self.retain(topic, message.as_deref())?;
        }
        self.write_rows(group, up_to.map_or(0, |position| position.number))?;
        self.highest_message.write(&mut self.meta_put)?;
        self.highest_session.write(&mut self.meta_put)
    }

    /// Writes other parts' rows, and for those who follow them that they have changed up to record `number`.
    fn write_rows(&mut self, group: &Group, number: u64) -> Result<()> {
        let Some([put, remove, note]) = &mut self.rows else { return Ok(()) };
        for ((database, key), value) in &group.rows {
            match value {
                Some(value) => put.execute(params![database, &**key, &**value])?,
                None => remove.execute(params![database, &**key])?,
            };
            if *database >= rows::FOLLOWED {
                note.execute(params![database, &**key, int(number)])?;
            }
        }
        Ok(())
    }

    fn apply_ordered(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::SessionPut(record) => self.put_session(record),
            Op::SessionRemove(session) => self.remove_session(*session),
            Op::FlowPut { session, flow, flags, expiry_s } => {
                let columns = params![int(session.0), int(flow.0), flags, int(*expiry_s)];
                self.flow_put.execute(columns).map(drop)
            }
            Op::FlowRemove { session, flow } => self.remove_flow(*session, *flow),
            Op::SubscriptionPut(record) => self.put_subscription(record),
            Op::SubscriptionRemove { session, filter } => {
                let columns = params![int(session.0), &**filter];
                self.subscription_remove.execute(columns).map(drop)
            }
            Op::Enqueue { .. } => self.enqueue(op),
            Op::InboundReceived { session, flow, packet_id } => {
                let columns = params![int(session.0), int(flow.0), packet_id.get()];
                self.receive.execute(columns).map(drop)
            }
            // The group keeps these apart; see `Group`.
            Op::Advance { .. }
            | Op::Dequeue { .. }
            | Op::InboundReleased { .. }
            | Op::RetainedPut(_)
            | Op::RetainedRemove(_)
            | Op::Row { .. } => Ok(()),
        }
    }

    fn put_session(&mut self, record: &SessionRecord) -> Result<()> {
        self.highest_session.include(record.key.0);
        self.session_put.execute(params![
            int(record.key.0),
            &*record.client_id,
            record.username.as_deref(),
            record.expiry_interval_s,
            moment(record.expires_at),
            record.mqtt_sn
        ])?;
        let Some(will) = &record.will else {
            return self.will_remove.execute([int(record.key.0)]).map(drop);
        };
        let testator = &will.testator;
        self.will_put.execute(params![
            int(record.key.0),
            &*will.topic,
            &*will.properties,
            &*will.payload,
            qos_number(will.qos),
            will.retain,
            will.delay_s,
            will.message_expiry_s,
            moment(record.will_at),
            testator.address.map(|address| address.to_string()),
            moment(Some(testator.until).filter(|until| *until != Timestamp::NEVER)),
            testator.credential.as_deref(),
            testator.certificate.map(int),
            testator.by_login
        ])?;
        Ok(())
    }

    fn put_subscription(&mut self, record: &SubscriptionRecord) -> Result<()> {
        self.subscription_put.execute(params![
            int(record.session.0),
            int(record.flow.0),
            &*record.filter,
            record.options,
            record.identifier,
            record.replay.as_deref()
        ])?;
        Ok(())
    }

    fn remove_session(&mut self, session: SessionKey) -> Result<()> {
        for statement in &mut self.session_remove {
            statement.execute([int(session.0)])?;
        }
        let mut rows = self.session_unqueue.query([int(session.0)])?;
        while let Some(row) = rows.next()? {
            self.references.release(get_u64(row, 0)?, &mut self.message_remove)?;
        }
        Ok(())
    }

    fn remove_flow(&mut self, session: SessionKey, flow: FlowId) -> Result<()> {
        let key = [int(session.0), int(flow.0)];
        self.flow_remove.iter_mut().try_for_each(|statement| statement.execute(key).map(drop))
    }

    fn enqueue(&mut self, op: &Op) -> Result<()> {
        let Op::Enqueue { session, flow, position, message, delivery, progress } = op else {
            return Ok(());
        };
        self.refer(message)?;
        let (packet_id, released) = progress_columns(*progress);
        self.enqueue.execute(params![
            int(session.0),
            int(flow.0),
            int(position.0),
            int(message.id().0),
            qos_number(delivery.qos),
            delivery.retain,
            identifiers_blob(&delivery.identifiers),
            packet_id,
            released,
            (delivery.share != 0).then_some(delivery.share)
        ])?;
        Ok(())
    }

    fn dequeue(&mut self, slot: &QueueSlot) -> Result<()> {
        let key = [int(slot.session.0), int(slot.flow.0), int(slot.position.0)];
        let message = self.dequeue.query_row(key, |row| get_u64(row, 0)).optional()?;
        match message {
            Some(id) => self.references.release(id, &mut self.message_remove),
            None => Ok(()),
        }
    }

    fn retain(&mut self, topic: &str, message: Option<&Message>) -> Result<()> {
        let before = self.retained_find.query_row([topic], |row| get_u64(row, 0)).optional()?;
        match message {
            Some(message) => {
                self.refer(message)?;
                self.retained_put.execute(params![topic, int(message.id().0)])?;
            }
            None => {
                self.retained_remove.execute([topic])?;
            }
        }
        match before {
            Some(id) => self.references.release(id, &mut self.message_remove),
            None => Ok(()),
        }
    }

    /// Counts one more reference to `message` and stores it with the first.
    fn refer(&mut self, message: &Message) -> Result<()> {
        if !self.references.add(message.id()) {
            return Ok(());
        }
        self.highest_message.include(message.id().0);
        self.message_put.execute(params![
            int(message.id().0),
            message.topic(),
            message.properties(),
            message.payload(),
            qos_number(message.qos()),
            message.retain(),
            moment(message.expires_at()),
            int(message.publisher())
        ])?;
        Ok(())
    }
}

/// Number of rows that refer to each stored message. Changes can be undone up to the last commit.
struct References {
    counts: Counts,
    /// Counts before the changes of this transaction, oldest first; 0 for absent.
    undo: Vec<(MessageId, u32)>,
}

impl References {
    /// Adds a reference; true if it is the first.
    fn add(&mut self, id: MessageId) -> bool {
        let count = self.counts.entry(id).or_insert(0);
        self.undo.push((id, *count));
        *count += 1;
        *count == 1
    }

    /// Removes a reference, and with the last one the message.
    fn release(&mut self, id: u64, remove: &mut Statement<'_>) -> Result<()> {
        if let Entry::Occupied(mut entry) = self.counts.entry(MessageId(id)) {
            self.undo.push((MessageId(id), *entry.get()));
            if *entry.get() > 1 {
                *entry.get_mut() -= 1;
            } else {
                entry.remove();
                remove.execute([int(id)])?;
            }
        }
        Ok(())
    }

    fn undo(&mut self) {
        while let Some((id, before)) = self.undo.pop() {
            if before == 0 {
                self.counts.remove(&id);
            } else {
                self.counts.insert(id, before);
            }
        }
    }
}

/// The largest number of a kind ever stored, written ahead in steps of [`RESERVE`].
struct Highest {
    name: &'static str,
    seen: u64,
    committed: u64,
    written: u64,
}

impl Highest {
    fn new(name: &'static str, stored: u64) -> Highest {
        Highest { name, seen: stored, committed: stored, written: stored }
    }

    fn include(&mut self, number: u64) {
        self.seen = self.seen.max(number);
    }

    fn write(&mut self, meta_put: &mut Statement<'_>) -> Result<()> {
        if self.seen > self.written {
            let ahead = self.seen.saturating_add(RESERVE);
            meta_put.execute(params![self.name, int(ahead)])?;
            self.written = ahead;
        }
        Ok(())
    }

    fn committed(&mut self) {
        self.committed = self.written;
    }

    /// The largest number is kept, because the same group is written again.
    fn undo(&mut self) {
        self.written = self.committed;
    }
}

//! Messages for the upstream broker, on disk until it has acknowledged them.
//!
//! [`Outbox::store`] stores several messages and returns when all of them would survive a power cut: one transaction, one
//! fsync. A message that is or was stored already, recognised by its identifier or as a device's repetition, is not
//! stored again. The operator sets the bounds; beyond them messages are dropped by a policy and counted, or refused.
//! Times are the program's, which shows the system's clock at the start and goes on by itself ([`Outbox::keep_clock`]).
//! The caller chooses the thread; [`crate::uplink_scheduler`] decides which message is sent next.

mod schema;
#[cfg(test)]
mod tests;
mod types;

use std::path::{Path, PathBuf};

use fulmar_mirror::{ClockRecord, Clocks, CommitError, Mirror, Rows, Shared};
use fulmar_mqtt::QoS;
use rusqlite::{Connection, OptionalExtension as _, Result as SqlResult, Row, Transaction, params};

pub use schema::check_owner;
pub use types::{Bounds, Dropped, Item, Page, Policy, Stored, StoredCounts, Totals};

use crate::error::Error;
use crate::identity::key_of_id;
use crate::mapping::Priority;

/// Bytes that a message counts besides topic, payload and properties: its row, its entry in the index, and the hashes
/// that are kept to recognise a repetition.
pub const ROW_BYTES: usize = 160;
/// Number of later messages after which a repetition is not recognised any more.
const REMEMBERED: u64 = 32_768;
/// Remembered messages are forgotten in steps of this many, because that reads the whole list.
const FORGET_EVERY: u64 = 8_192;

/// Tables that nodes of a cluster share.
const TABLES: [&str; 3] = ["message", "seen", "meta"];

/// The outbox.
#[derive(Debug)]
pub struct Outbox {
    connection: Connection,
    /// With which other nodes of a cluster get every change.
    mirror: Option<Mirror>,
    clock: Option<ClockRecord>,
    path: PathBuf,
    bounds: Bounds,
    messages: u64,
    bytes: u64,
    forgotten_to: u64,
    dropped: Dropped,
}

impl Outbox {
    /// Opens or creates the file at `path`, whose folder must exist.
    ///
    /// # Errors
    /// The file is in use, damaged, another program's, or cannot be written.
    pub fn open(path: &Path, bounds: Bounds) -> Result<Outbox, Error> {
        let connection = schema::open(path, bounds.max_file_bytes)?;
        Outbox::with(connection, None, path, bounds)
    }

    /// Opens that of a node that has taken over, with everything that is shared and nothing else. Every change is shared
    /// before it is made.
    ///
    /// # Errors
    /// As [`Outbox::open`].
    pub fn open_shared(path: &Path, bounds: Bounds, shared: Shared) -> Result<Outbox, Error> {
        let mut connection = schema::open(path, bounds.max_file_bytes)?;
        let mirror = Mirror::attach(&mut connection, &TABLES, shared);
        let mirror = mirror.map_err(|error| Error::from_sqlite(path, error))?;
        Outbox::with(connection, Some(mirror), path, bounds)
    }

    /// Everything that nodes of a cluster would share of it.
    ///
    /// # Errors
    /// SQLite's.
    pub fn rows(&self) -> Result<Rows, Error> {
        let rows = fulmar_mirror::read_rows(&self.connection, &TABLES);
        rows.map_err(|error| Error::from_sqlite(&self.path, error))
    }

    /// Makes what nodes have shared everything in the file at `path`.
    ///
    /// # Errors
    /// As [`Outbox::open`].
    pub fn replace(path: &Path, rows: &Rows) -> Result<(), Error> {
        let mut connection = schema::open(path, None)?;
        let replaced = fulmar_mirror::replace(&mut connection, &TABLES, rows);
        replaced.map_err(|error| Error::from_sqlite(path, error))
    }

    fn with(
        connection: Connection,
        mirror: Option<Mirror>,
        path: &Path,
        bounds: Bounds,
    ) -> Result<Outbox, Error> {
        let totals = "SELECT count(*), coalesce(sum(size), 0) FROM message";
        let read = connection.query_row(totals, [], |row| Ok((number(row, 0)?, number(row, 1)?)));
        let (messages, bytes) = read.map_err(|error| Error::from_sqlite(path, error))?;
        Ok(Outbox {
            connection,
            mirror,
            clock: None,
            path: path.to_owned(),
            bounds,
            messages,
            bytes,
            forgotten_to: 0,
            dropped: Dropped::default(),
        })
    }

    /// Moves the messages' moments to the program's time, if the system's clock was set since the outbox was last open, and
    /// records what clocks show from now on. Returns by how many milliseconds.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn keep_clock(&mut self, clocks: &Clocks) -> Result<Option<i64>, Error> {
        let moments = [("message", "entered"), ("message", "expires")];
        let begun = ClockRecord::begin(&self.connection, clocks, &moments);
        let (clock, moved) = begun.map_err(|error| Error::from_sqlite(&self.path, error))?;
        self.clock = Some(clock);
        Ok(moved)
    }

    /// A text that is stored with the messages, made by `make` the first time.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn meta(&mut self, name: &str, make: impl FnOnce() -> String) -> Result<String, Error> {
        let failed = |error| Error::from_sqlite(&self.path, error);
        let kept = "SELECT value FROM meta WHERE name = ?1";
        let kept: Option<String> =
            self.connection.query_row(kept, [name], |row| row.get(0)).optional().map_err(failed)?;
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let made = make();
        self.set_meta(name, &made)?;
        Ok(made)
    }

    /// Sets a text that is stored with the messages.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_meta(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let failed = |error| Error::from_sqlite(&self.path, error);
        let transaction = self.connection.unchecked_transaction().map_err(failed)?;
        let set = "INSERT OR REPLACE INTO meta VALUES (?1, ?2)";
        transaction.execute(set, [name, value]).map_err(failed)?;
        self.commit(transaction)
    }

    /// Commits, after other nodes have the changes if there are any.
    fn commit(&self, transaction: Transaction<'_>) -> Result<(), Error> {
        let failed = |error| Error::from_sqlite(&self.path, error);
        let Some(mirror) = &self.mirror else { return transaction.commit().map_err(failed) };
        mirror.commit(transaction).map_err(|error| match error {
            CommitError::NotShared(error) => Error::NotShared(error),
            CommitError::Sqlite(error) => failed(error),
        })
    }

    /// Stores messages, all or none. When it returns they are durable.
    ///
    /// # Errors
    /// The disk is full or fails, or the outbox is full and its policy is to refuse
    /// ([`Error::Full`]): then nothing was stored, and the same messages may be put again later.
    pub fn store(&mut self, items: &[Item], now_ms: u64) -> Result<StoredCounts, Error> {
        self.store_and_remove(items, &[], now_ms)
    }

    /// Does the same as [`Outbox::store`], and removes messages with the same write: of few messages a minute, each costs
    /// the disk half as much.
    ///
    /// # Errors
    /// Those of [`Outbox::store`]; then nothing was removed either.
    pub fn store_and_remove(
        &mut self,
        items: &[Item],
        removed: &[u64],
        now_ms: u64,
    ) -> Result<StoredCounts, Error> {
        let transaction = self.connection.unchecked_transaction();
        let transaction = transaction.map_err(|error| Error::from_sqlite(&self.path, error))?;
        let mut change = Change {
            connection: &transaction,
            bounds: &self.bounds,
            messages: self.messages,
            bytes: self.bytes,
            dropped: self.dropped,
            forgotten_to: self.forgotten_to,
            put: StoredCounts::default(),
        };
        let outcome = change.remove(removed).map_err(Stop::Sql);
        let outcome = outcome
            .and_then(|()| items.iter().try_for_each(|item| change.store_item(item, now_ms)));
        let outcome = outcome.and_then(|()| change.forget().map_err(Stop::Sql));
        let clock = self.clock.as_mut().filter(|clock| outcome.is_ok() && clock.is_due());
        let written = clock.map_or(Ok(()), |clock| clock.write(&transaction));
        let outcome = outcome.and(written.map_err(Stop::Sql));
        let Change { messages, bytes, dropped, forgotten_to, put, .. } = change;
        let outcome = match outcome {
            Ok(()) => self.commit(transaction),
            Err(Stop::Sql(error)) => Err(Error::from_sqlite(&self.path, error)),
            Err(Stop::Full) => Err(Error::Full(self.path.clone())),
        };
        // Dropping the transaction rolls it back.
        outcome?;
        (self.messages, self.bytes, self.dropped) = (messages, bytes, dropped);
        self.forgotten_to = forgotten_to;
        Ok(put)
    }

    /// The messages of a lane after `after`, in order: at most `most`, and at most `most_bytes` in all, except that
    /// the first may be larger.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(
        &self,
        priority: Priority,
        after: u64,
        most: usize,
        most_bytes: usize,
    ) -> Result<Page, Error> {
        let outcome = (|| {
            let mut statement = self.connection.prepare_cached(
                "SELECT seq, topic, payload, properties, qos, retain, id, at, entered, expires \
                 FROM message WHERE priority = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
            )?;
            let (mut found, mut bytes) = (Page::default(), 0);
            let mut rows = statement.query(params![priority as i64, signed(after), most as i64])?;
            while let Some(row) = rows.next()? {
                let message = stored(row)?;
                bytes += message.size();
                if bytes > most_bytes && found.to > 0 {
                    found.more = true;
                    return Ok(found);
                }
                found.to = message.seq;
                found.messages.push(message);
            }
            found.more = found.messages.len() == most;
            Ok(found)
        })();
        outcome.map_err(|error| Error::from_sqlite(&self.path, error))
    }

    /// Removes messages. If a power cut undoes a removal, the message is sent upstream
    /// again with the same identifier.
    ///
    /// # Errors
    /// The disk is full or fails: then nothing was removed.
    pub fn remove(&mut self, seqs: &[u64]) -> Result<(), Error> {
        let failed = |error| Error::from_sqlite(&self.path, error);
        // Without an fsync of its own; the next message's includes it.
        self.connection.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
        let outcome = self.delete(seqs);
        // Also after an error, so that the next messages are durable.
        let full = self.connection.pragma_update(None, "synchronous", "FULL");
        let (messages, bytes) = outcome?;
        full.map_err(failed)?;
        self.messages = self.messages.saturating_sub(messages);
        self.bytes = self.bytes.saturating_sub(bytes);
        Ok(())
    }

    /// Deletes messages; returns how many, and their bytes.
    fn delete(&self, seqs: &[u64]) -> Result<(u64, u64), Error> {
        let failed = |error| Error::from_sqlite(&self.path, error);
        let transaction = self.connection.unchecked_transaction().map_err(failed)?;
        let counts = delete_rows(&transaction, seqs).map_err(failed)?;
        self.commit(transaction)?;
        Ok(counts)
    }

    /// Drops messages that are older than allowed or have expired.
    ///
    /// # Errors
    /// The disk is full or fails: then nothing was dropped.
    pub fn tidy(&mut self, now_ms: u64) -> Result<(), Error> {
        let oldest = self.bounds.max_age_ms.map_or(0, |age| now_ms.saturating_sub(age));
        let mut counts = [(0, 0); 2];
        let failed = |error| Error::from_sqlite(&self.path, error);
        let transaction = self.connection.unchecked_transaction().map_err(failed)?;
        let outcome = (|| {
            for (count, (which, bound)) in counts
                .iter_mut()
                .zip([("entered < ?1", oldest), ("expires IS NOT NULL AND expires <= ?1", now_ms)])
            {
                let sql =
                    format!("SELECT count(*), coalesce(sum(size), 0) FROM message WHERE {which}");
                *count = transaction.query_row(&sql, [signed(bound)], |row| {
                    Ok((number(row, 0)?, number(row, 1)?))
                })?;
                if count.0 > 0 {
                    transaction
                        .execute(&format!("DELETE FROM message WHERE {which}"), [signed(bound)])?;
                }
            }
            Ok(())
        })();
        outcome.map_err(failed)?;
        self.commit(transaction)?;
        let [age, expired] = counts;
        self.dropped.age += age.0;
        self.dropped.expired += expired.0;
        self.messages = self.messages.saturating_sub(age.0 + expired.0);
        self.bytes = self.bytes.saturating_sub(age.1 + expired.1);
        Ok(())
    }

    /// The fill level, and what was dropped.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let oldest = "SELECT entered FROM message ORDER BY seq LIMIT 1";
        let oldest = self.connection.query_row(oldest, [], |row| number(row, 0)).optional();
        Totals {
            messages: self.messages,
            bytes: self.bytes,
            // If it cannot be read now, the next call returns it.
            oldest_ms: oldest.ok().flatten(),
            dropped: self.dropped,
        }
    }
}

/// An open transaction, with the changes that a commit will make to the totals.
struct Change<'a> {
    connection: &'a Connection,
    bounds: &'a Bounds,
    messages: u64,
    bytes: u64,
    dropped: Dropped,
    forgotten_to: u64,
    put: StoredCounts,
}

enum Stop {
    Full,
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Stop {
        Stop::Sql(error)
    }
}

/// Deletes messages; returns how many, and their bytes.
fn delete_rows(connection: &Connection, seqs: &[u64]) -> SqlResult<(u64, u64)> {
    let (mut messages, mut bytes) = (0, 0);
    let mut delete =
        connection.prepare_cached("DELETE FROM message WHERE seq = ?1 RETURNING size")?;
    for seq in seqs {
        let size = delete.query_row([signed(*seq)], |row| number(row, 0)).optional()?;
        messages += u64::from(size.is_some());
        bytes += size.unwrap_or(0);
    }
    Ok((messages, bytes))
}

impl Change<'_> {
    fn remove(&mut self, seqs: &[u64]) -> SqlResult<()> {
        let (messages, bytes) = delete_rows(self.connection, seqs)?;
        self.messages = self.messages.saturating_sub(messages);
        self.bytes = self.bytes.saturating_sub(bytes);
        Ok(())
    }

    fn store_item(&mut self, item: &Item, now_ms: u64) -> Result<(), Stop> {
        if self.is_known(item)? {
            self.put.known += 1;
            return Ok(());
        }
        let size =
            (item.topic.len() + item.payload.len() + item.properties.len() + ROW_BYTES) as u64;
        if self.bytes + size > self.bounds.max_bytes {
            match self.bounds.policy {
                Policy::Refuse => return Err(Stop::Full),
                Policy::DropOldest if size <= self.bounds.max_bytes => self.make_room(size)?,
                Policy::DropOldest | Policy::DropNewest => {
                    self.dropped.full += 1;
                    return Ok(());
                }
            }
        }
        self.insert(item, size, now_ms)?;
        self.messages += 1;
        self.bytes += size;
        self.put.taken[item.priority as usize] += 1;
        Ok(())
    }

    fn is_known(&self, item: &Item) -> SqlResult<bool> {
        let mut seen = self.connection.prepare_cached("SELECT 1 FROM seen WHERE mark = ?1")?;
        if seen.exists([signed(key_of_id(&item.id))])? {
            return Ok(true);
        }
        match item.origin {
            Some((origin, true)) => seen.exists([signed(origin)]),
            _ => Ok(false),
        }
    }

    fn insert(&self, item: &Item, size: u64, now_ms: u64) -> SqlResult<()> {
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO message (priority, topic, payload, properties, qos, retain, id, at, \
             entered, expires, size) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?;
        let seq = insert.insert(params![
            item.priority as i64,
            item.topic,
            item.payload,
            item.properties,
            item.qos as i64,
            item.retain,
            item.id,
            item.at,
            signed(now_ms),
            item.expires_ms.map(signed),
            signed(size),
        ])?;
        let mut seen =
            self.connection.prepare_cached("INSERT OR REPLACE INTO seen VALUES (?1, ?2)")?;
        seen.execute([signed(key_of_id(&item.id)), seq])?;
        if let Some((origin, _)) = item.origin {
            seen.execute([signed(origin), seq])?;
        }
        Ok(())
    }

    /// Drops the oldest messages until `size` more bytes fit.
    fn make_room(&mut self, size: u64) -> SqlResult<()> {
        let mut oldest = self.connection.prepare_cached(
            "DELETE FROM message WHERE seq = \
             (SELECT seq FROM message ORDER BY priority DESC, seq LIMIT 1) RETURNING size",
        )?;
        while self.bytes + size > self.bounds.max_bytes {
            let Some(freed) = oldest.query_row([], |row| number(row, 0)).optional()? else { break };
            self.bytes = self.bytes.saturating_sub(freed);
            self.messages = self.messages.saturating_sub(1);
            self.dropped.full += 1;
        }
        Ok(())
    }

    /// Forgets messages that were stored so long ago that no device repeats them.
    fn forget(&mut self) -> SqlResult<()> {
        let newest = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'message'";
        let newest: u64 = self.connection.query_row(newest, [], |row| number(row, 0))?;
        let to = newest.saturating_sub(REMEMBERED);
        if to > self.forgotten_to + FORGET_EVERY {
            self.connection.execute("DELETE FROM seen WHERE seq <= ?1", [signed(to)])?;
            self.forgotten_to = to;
        }
        Ok(())
    }
}

fn stored(row: &Row<'_>) -> SqlResult<Stored> {
    Ok(Stored {
        seq: number(row, 0)?,
        topic: row.get(1)?,
        payload: row.get::<_, Vec<u8>>(2)?.into(),
        properties: row.get(3)?,
        qos: QoS::try_from(row.get::<_, u8>(4)?).unwrap_or(QoS::AtLeastOnce),
        retain: row.get(5)?,
        id: row.get(6)?,
        at: row.get(7)?,
        entered_ms: number(row, 8)?,
        expires_ms: row.get::<_, Option<i64>>(9)?.map(i64::cast_unsigned),
    })
}

fn number(row: &Row<'_>, column: usize) -> SqlResult<u64> {
    Ok(row.get::<_, i64>(column)?.cast_unsigned())
}

/// SQLite's integers are signed; numbers that are not compared may use the sign bit.
fn signed(number: u64) -> i64 {
    number.cast_signed()
}

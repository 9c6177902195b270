//! A connection whose transactions are shared before they are committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, OptionalExtension as _, Result, Transaction, params_from_iter};

use crate::codec::{Key, Value, encode};
use crate::copy::set_position;
use crate::rows::{self, Table, columns, sequence};
use crate::{NotShared, RowChange, Share, Shared};

/// Columns of a primary key at most.
const MAX_KEY: usize = 4;
/// Bytes of the changes of one transaction at most: nodes have all of them in memory.
const MAX_BYTES: usize = 256 << 20;

/// Why a transaction is not committed. It is rolled back.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The changes are not shared.
    #[error(transparent)]
    NotShared(#[from] NotShared),
    /// SQLite's.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

/// A database of this node, whose rows are shared.
#[derive(Debug)]
pub struct Mirror {
    tables: Vec<Table>,
    with: Arc<dyn Share>,
    /// Whether the database knows its position in the log.
    is_copy: bool,
    /// Changes are shared that the database does not have.
    lags_behind: AtomicBool,
}

impl Mirror {
    /// Replaces what these tables have by the shared rows, and follows the connection's changes from now on. All changes
    /// of these tables must be committed with [`Mirror::commit`].
    ///
    /// # Errors
    /// SQLite's; the rows are of a newer version's tables.
    pub fn attach(
        connection: &mut Connection,
        tables: &[&'static str],
        shared: Shared,
    ) -> Result<Mirror> {
        rows::replace(connection, tables, &shared.rows)?;
        Mirror::start(connection, tables, shared.with, false)
    }

    /// Follows the changes of a database that was a [`crate::Copy`] up to the end of the log. All changes of its tables
    /// must be committed with [`Mirror::commit_open`].
    ///
    /// # Errors
    /// SQLite's.
    pub fn follow(
        connection: &Connection,
        tables: &[&'static str],
        with: Arc<dyn Share>,
    ) -> Result<Mirror> {
        Mirror::start(connection, tables, with, true)
    }

    fn start(
        connection: &Connection,
        tables: &[&'static str],
        with: Arc<dyn Share>,
        is_copy: bool,
    ) -> Result<Mirror> {
        // A row that makes room for another one with the same contents of a unique column is a change, too.
        connection.pragma_update(None, "recursive_triggers", true)?;
        connection.execute_batch("CREATE TEMP TABLE changed (in_table, a, b, c, d)")?;
        let tables: Vec<Table> =
            tables.iter().map(|name| Table::read(connection, name)).collect::<Result<_>>()?;
        for (number, table) in tables.iter().enumerate() {
            connection.execute_batch(&triggers(number, table))?;
        }
        Ok(Mirror { tables, with, is_copy, lags_behind: AtomicBool::new(false) })
    }

    /// Commits a transaction when its changes are shared; one without changes at once.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub fn commit(&self, transaction: Transaction<'_>) -> std::result::Result<(), CommitError> {
        let shared = self.share(&transaction)?;
        self.committed(transaction.commit(), shared)
    }

    /// The same for the transaction that is open at this connection. After an error it may still be open.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub fn commit_open(&self, connection: &Connection) -> std::result::Result<(), CommitError> {
        let shared = self.share(connection)?;
        self.committed(connection.execute_batch("COMMIT"), shared)
    }

    /// Shares what the open transaction has changed; returns the record, if there are changes.
    fn share(&self, connection: &Connection) -> std::result::Result<Option<u64>, CommitError> {
        let changes = self.changes(connection)?;
        if changes.is_empty() {
            return Ok(None);
        }
        if self.lags_behind.load(Ordering::Relaxed) {
            return Err(NotShared("this node ends".to_owned()).into());
        }
        let bytes =
            |(key, value): &RowChange| key.len() + value.as_ref().map_or(0, |value| value.len());
        let bytes: usize = changes.iter().map(bytes).sum();
        if bytes > MAX_BYTES {
            let text = format!(
                "the change is too large for the cluster's log ({bytes} bytes, at most {MAX_BYTES})"
            );
            return Err(NotShared(text).into());
        }
        let number = self.with.share(changes)?;
        if self.is_copy {
            set_position(connection, number).inspect_err(|error| self.lag_behind(error))?;
        }
        Ok(Some(number))
    }

    fn committed(
        &self,
        outcome: Result<()>,
        shared: Option<u64>,
    ) -> std::result::Result<(), CommitError> {
        if let Some(number) = shared {
            match &outcome {
                Ok(()) if self.is_copy => self.with.stored(number),
                Ok(()) => {}
                Err(error) => self.lag_behind(error),
            }
        }
        Ok(outcome?)
    }

    fn lag_behind(&self, error: &rusqlite::Error) {
        self.lags_behind.store(true, Ordering::Relaxed);
        self.with.lags_behind(&error.to_string());
    }

    /// Returns the rows that this transaction has changed. The notes are removed with it.
    fn changes(&self, transaction: &Connection) -> Result<Vec<RowChange>> {
        let mut changes = Vec::new();
        for (number, table) in self.tables.iter().enumerate() {
            let before = changes.len();
            let sql = "SELECT DISTINCT a, b, c, d FROM temp.changed WHERE in_table = ?1";
            let mut noted = transaction.prepare_cached(sql)?;
            let mut noted = noted.query([number as i64])?;
            let sql = format!("SELECT * FROM \"{}\" WHERE {}", table.name, table.has_key());
            let mut find = transaction.prepare_cached(&sql)?;
            while let Some(row) = noted.next()? {
                let value = |at| Value::try_from(row.get_ref(at)?);
                let key: Vec<Value> = (0..table.key.len()).map(value).collect::<Result<_>>()?;
                let now = find.query_row(params_from_iter(&key), columns).optional()?;
                let now = now.map(|columns| encode(&columns)).transpose()?;
                let key = encode(&Key { table: table.name.to_owned(), columns: key })?;
                changes.push((key.into(), now.map(Arc::from)));
            }
            if changes.len() > before
                && let Some((key, columns)) = sequence(transaction, table.name)?
            {
                changes.push((encode(&key)?.into(), Some(encode(&columns)?.into())));
            }
        }
        if !changes.is_empty() {
            transaction.execute("DELETE FROM temp.changed", [])?;
        }
        Ok(changes)
    }
}

/// Triggers that note the keys of the rows of a table that change.
fn triggers(number: usize, table: &Table) -> String {
    let key = |row: &str| {
        let mut columns: Vec<_> =
            table.key.iter().map(|name| format!("{row}.\"{name}\"")).collect();
        columns.resize(MAX_KEY, "NULL".to_owned());
        columns.join(", ")
    };
    let trigger = |event: &str, rows: &[&str]| {
        let notes: String = rows
            .iter()
            .map(|row| format!("INSERT INTO changed VALUES ({number}, {});", key(row)))
            .collect();
        format!(
            "CREATE TEMP TRIGGER changed_{event}_{number} AFTER {event} ON main.\"{}\" BEGIN {notes} END;",
            table.name
        )
    };
    trigger("INSERT", &["NEW"]) + &trigger("UPDATE", &["OLD", "NEW"]) + &trigger("DELETE", &["OLD"])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use parking_lot::Mutex;

    use super::*;
    use crate::Rows;

    const TABLES: [&str; 2] = ["entry", "pair"];
    const SCHEMA: &str = "
        CREATE TABLE entry (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, size REAL, body BLOB);
        CREATE TABLE pair (kind INTEGER, name TEXT, PRIMARY KEY (kind, name)) WITHOUT ROWID;";

    /// Shared rows, and whether more is refused.
    #[derive(Debug, Default)]
    struct Store(Mutex<State>);

    #[derive(Debug, Default)]
    struct State {
        rows: Contents,
        log: Vec<Vec<RowChange>>,
        refuses: bool,
        stored: u64,
        lagging: Option<String>,
    }

    type Contents = BTreeMap<Box<[u8]>, Arc<[u8]>>;

    impl Store {
        fn rows(&self) -> Rows {
            self.0.lock().rows.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
        }
    }

    impl Share for Store {
        fn share(&self, changes: Vec<RowChange>) -> std::result::Result<u64, NotShared> {
            let mut store = self.0.lock();
            if store.refuses {
                return Err(NotShared("another node serves".to_owned()));
            }
            store.log.push(changes.clone());
            for (key, value) in changes {
                match value {
                    Some(value) => drop(store.rows.insert(key, value)),
                    None => drop(store.rows.remove(&key)),
                }
            }
            Ok(store.log.len() as u64)
        }

        fn serves(&self) -> bool {
            !self.0.lock().refuses
        }

        fn stored(&self, number: u64) {
            self.0.lock().stored = number;
        }

        fn lags_behind(&self, why: &str) {
            self.0.lock().lagging = Some(why.to_owned());
        }
    }

    fn open() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        connection
    }

    fn attach(connection: &mut Connection, store: &Arc<Store>) -> Mirror {
        let shared = Shared { rows: store.rows(), with: Arc::clone(store) as _ };
        Mirror::attach(connection, &TABLES, shared).unwrap()
    }

    fn change(
        connection: &mut Connection,
        mirror: &Mirror,
        sql: &str,
    ) -> std::result::Result<(), CommitError> {
        let transaction = connection.transaction().unwrap();
        transaction.execute_batch(sql).unwrap();
        mirror.commit(transaction)
    }

    fn sorted(connection: &Connection) -> Rows {
        let mut all = rows::read_rows(connection, &TABLES).unwrap();
        all.sort();
        all
    }

    #[test]
    fn what_is_committed_is_shared_and_another_node_begins_with_it() {
        let store = Arc::<Store>::default();
        let mut first = open();
        let mirror = attach(&mut first, &store);
        for sql in [
            "INSERT INTO entry (name, size, body) VALUES ('a', 0.1, x'00ff'), ('b', NULL, NULL), ('c', 1e300, '')",
            "INSERT INTO pair VALUES (1, 'x'), (1, 'y')",
            "UPDATE entry SET size = size * 3 WHERE name = 'a'",
            // A row with another key makes room.
            "INSERT OR REPLACE INTO entry (id, name) VALUES (9, 'b')",
            "UPDATE pair SET kind = 2 WHERE name = 'y'",
            "DELETE FROM entry WHERE name = 'c'; INSERT INTO entry (name) VALUES ('d'); DELETE FROM entry WHERE name = 'd'",
        ] {
            change(&mut first, &mirror, sql).unwrap();
            assert_eq!(sorted(&first), store.rows(), "{sql}");
        }
        let mut second = open();
        second
            .execute_batch("INSERT INTO entry (name) VALUES ('z'); INSERT INTO pair VALUES (7, '')")
            .unwrap();
        let mirror = attach(&mut second, &store);
        assert_eq!(sorted(&second), store.rows());
        // Numbers go on where the first node was.
        change(&mut second, &mirror, "INSERT INTO entry (name) VALUES ('e')").unwrap();
        let id: i64 = second.query_row("SELECT max(id) FROM entry", [], |row| row.get(0)).unwrap();
        assert_eq!(id, 11);
        assert_eq!(sorted(&second), store.rows());
    }

    #[test]
    fn what_is_not_shared_is_not_committed() {
        let store = Arc::<Store>::default();
        let mut node = open();
        let mirror = attach(&mut node, &store);
        change(&mut node, &mirror, "INSERT INTO pair VALUES (1, 'x')").unwrap();
        let before = sorted(&node);
        store.0.lock().refuses = true;
        let error = change(&mut node, &mirror, "DELETE FROM pair").unwrap_err();
        assert_eq!(error.to_string(), "another node serves");
        assert_eq!(sorted(&node), before);
        // Without changes, nobody is asked.
        change(&mut node, &mirror, "DELETE FROM entry").unwrap();
        store.0.lock().refuses = false;
        change(&mut node, &mirror, "INSERT INTO pair VALUES (1, 'y')").unwrap();
        assert_eq!(sorted(&node), store.rows());
    }

    #[test]
    fn rows_of_a_newer_version_are_refused() {
        let mut node = open();
        let key = Key { table: "future".to_owned(), columns: vec![Value::Integer(1)] };
        let columns: crate::codec::Columns = vec![("id".to_owned(), Value::Integer(1))];
        let rows = vec![(encode(&key).unwrap(), encode(&columns).unwrap())];
        node.execute_batch("INSERT INTO pair VALUES (1, 'x')").unwrap();
        let error = rows::replace(&mut node, &TABLES, &rows).unwrap_err();
        assert!(error.to_string().contains("future"), "{error}");
        assert_eq!(sorted(&node).len(), 1);
    }

    const LARGE: &str = "
        CREATE TABLE parent (id TEXT PRIMARY KEY, name TEXT UNIQUE) WITHOUT ROWID;
        CREATE TABLE child (
            a INTEGER, b REAL, c TEXT, d INTEGER, parent TEXT REFERENCES parent (id) ON DELETE CASCADE,
            PRIMARY KEY (a, b, c, d)
        ) WITHOUT ROWID;";
    const LARGE_TABLES: [&str; 2] = ["parent", "child"];

    fn copy() -> crate::Copy {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(LARGE).unwrap();
        crate::Copy::new(connection, &LARGE_TABLES).unwrap()
    }

    /// The writer's side of a copy, which keeps no other connection.
    fn follow(store: &Arc<Store>) -> (Connection, Mirror) {
        let connection = copy().connection();
        connection.pragma_update(None, "foreign_keys", true).unwrap();
        let mirror = Mirror::follow(&connection, &LARGE_TABLES, Arc::clone(store) as _).unwrap();
        (connection, mirror)
    }

    fn change_open(
        connection: &Connection,
        mirror: &Mirror,
        sql: &str,
    ) -> std::result::Result<(), CommitError> {
        connection.execute_batch(&format!("BEGIN; {sql}")).unwrap();
        mirror
            .commit_open(connection)
            .inspect_err(|_| connection.execute_batch("ROLLBACK").unwrap())
    }

    #[test]
    fn a_copy_follows_what_changes_and_knows_how_far_it_is() {
        let store = Arc::<Store>::default();
        let (connection, mirror) = follow(&store);
        let mut copy = copy();
        assert_eq!(copy.position().unwrap(), None);
        for (number, sql) in (1..).zip([
            "INSERT INTO parent VALUES ('p', 'x'), ('q', 'y')",
            "INSERT INTO child VALUES (1, -0.0, 'a', 1, 'p'), (1, 0.5, 'a', 1, 'p'), (2, 0.5, 'a', 1, 'q')",
            // Names change places; no order of single rows keeps them apart.
            "UPDATE parent SET name = 'z' WHERE id = 'p'; UPDATE parent SET name = 'x' WHERE id = 'q'; UPDATE parent SET name = 'y' WHERE id = 'p'",
            // What refers to a row goes with it, and zero is zero.
            "DELETE FROM child WHERE b = 0.0; DELETE FROM parent WHERE id = 'q'",
            "DELETE FROM parent; INSERT INTO parent VALUES ('r', 'x')",
        ]) {
            change_open(&connection, &mirror, sql).unwrap();
            assert_eq!(store.0.lock().stored, number);
            let mut changes = copy.change().unwrap();
            for (key, value) in store.0.lock().log.last().unwrap() {
                changes.set(key, value.as_deref()).unwrap();
            }
            changes.commit(number).unwrap();
            assert_eq!(copy.position().unwrap(), Some(number));
            let mut rows = Rows::new();
            copy.for_each_row(&mut |key, value| {
                rows.push((key.to_vec(), value.to_vec()));
                Ok(())
            })
            .unwrap();
            rows.sort();
            assert_eq!(rows, store.rows(), "{sql}");
        }
        // It takes over where it is.
        assert_eq!(copy.position().unwrap(), Some(5));
        copy.start_over().unwrap();
        assert_eq!(copy.position().unwrap(), None);
    }

    #[test]
    fn a_node_whose_file_lags_behind_shares_nothing_more() {
        let store = Arc::<Store>::default();
        let (connection, mirror) = follow(&store);
        let fails = "CREATE TEMP TRIGGER fails BEFORE INSERT ON main.shared_position
                     BEGIN SELECT RAISE(ABORT, 'the disk is full'); END";
        connection.execute_batch(fails).unwrap();
        change_open(&connection, &mirror, "INSERT INTO parent VALUES ('p', 'x')").unwrap_err();
        assert_eq!(store.0.lock().lagging.as_deref(), Some("the disk is full"));
        connection.execute_batch("DROP TRIGGER fails").unwrap();
        let error = change_open(&connection, &mirror, "INSERT INTO parent VALUES ('q', 'y')");
        assert_eq!(error.unwrap_err().to_string(), "this node ends");
        assert_eq!(store.0.lock().log.len(), 1);
    }
}

//! A connection whose transactions are shared before they are committed.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, Result, Transaction, params_from_iter};

use crate::codec::{Key, Value, encode};
use crate::rows::{self, Table, columns, sequence};
use crate::{NotShared, RowChange, Share, Shared};

/// Columns of a primary key at most.
const MAX_KEY: usize = 3;

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
        // A row that makes room for another one with the same contents of a unique column is a change, too.
        connection.pragma_update(None, "recursive_triggers", true)?;
        connection.execute_batch("CREATE TEMP TABLE changed (in_table, a, b, c)")?;
        let tables: Vec<Table> =
            tables.iter().map(|name| Table::of(connection, name)).collect::<Result<_>>()?;
        for (number, table) in tables.iter().enumerate() {
            connection.execute_batch(&triggers(number, table))?;
        }
        Ok(Mirror { tables, with: shared.with })
    }

    /// Commits a transaction when its changes are shared; one without changes at once.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub fn commit(&self, transaction: Transaction<'_>) -> std::result::Result<(), CommitError> {
        let changes = self.changes(&transaction)?;
        if changes.is_empty() {
            return Ok(transaction.commit()?);
        }
        self.with.share(changes)?;
        transaction.commit().inspect_err(|error| self.with.lags_behind(&error.to_string()))?;
        Ok(())
    }

    /// What this transaction has changed. The notes are removed with it.
    fn changes(&self, transaction: &Transaction<'_>) -> Result<Vec<RowChange>> {
        let mut changes = Vec::new();
        for (number, table) in self.tables.iter().enumerate() {
            let before = changes.len();
            let sql = "SELECT DISTINCT a, b, c FROM temp.changed WHERE in_table = ?1";
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

    /// What is shared, and whether more is refused.
    #[derive(Debug, Default)]
    struct Store(Mutex<(Contents, bool)>);

    type Contents = BTreeMap<Box<[u8]>, Arc<[u8]>>;

    impl Store {
        fn rows(&self) -> Rows {
            self.0.lock().0.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
        }
    }

    impl Share for Store {
        fn share(&self, changes: Vec<RowChange>) -> std::result::Result<(), NotShared> {
            let (rows, refuses) = &mut *self.0.lock();
            if *refuses {
                return Err(NotShared("another node serves".to_owned()));
            }
            for (key, value) in changes {
                match value {
                    Some(value) => drop(rows.insert(key, value)),
                    None => drop(rows.remove(&key)),
                }
            }
            Ok(())
        }

        fn lags_behind(&self, why: &str) {
            panic!("{why}");
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
        let mut all = rows::all(connection, &TABLES).unwrap();
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
        store.0.lock().1 = true;
        let error = change(&mut node, &mirror, "DELETE FROM pair").unwrap_err();
        assert_eq!(error.to_string(), "another node serves");
        assert_eq!(sorted(&node), before);
        // Without changes, nobody is asked.
        change(&mut node, &mirror, "DELETE FROM entry").unwrap();
        store.0.lock().1 = false;
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
}

//! SQLite: the database file, its settings, statements and values.

use std::path::Path;
use std::time::Duration;

use fulmar_mirror::{Header, make_durable, prepare_file};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, ToSql, params_from_iter};

use super::row::Columns;
use super::{Begin, DatabaseError, Engine, Result, Value};
use crate::store::schema::MIGRATIONS;

/// Marks the file in SQLite's header ("FULP").
pub(crate) const APPLICATION_ID: i64 = 0x4655_4c50;

/// Time for which `fulmar user` and the server wait for one another.
const PATIENCE: Duration = Duration::from_secs(10);

/// The log's file is cut back to this size when it starts anew.
const WAL_KEEP_BYTES: i64 = 16 << 20;

/// Number of rows that an index has, and of those that are alike in its first columns, as in a utility with a million
/// readings. Without it SQLite takes all conditions to be alike, and may look through all that came by radio for one
/// meter. PostgreSQL counts by itself.
const STATISTICS: &str = "
    ANALYZE sqlite_schema;
    DELETE FROM sqlite_stat1;
    INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
        ('reading', 'sqlite_autoindex_reading_1', '1000000 1000000 1'),
        ('reading', 'reading_at', '1000000 1000000 2 1'),
        ('reading', 'reading_meter', '1000000 1000000 400 1'),
        ('reading', 'reading_method', '1000000 1000000 300000 2 1'),
        ('reading', 'reading_list', '200000 200000 10000 2'),
        ('reading', 'reading_list_at', '200000 200000 10000 2 1'),
        ('reading', 'reading_list_method', '200000 200000 10000 3000 2 1'),
        ('reading', 'reading_contested', '100 100 2 1'),
        ('reading', 'reading_sent', '100 100 2 1');
    ANALYZE sqlite_schema;";

pub(crate) fn open(path: &Path) -> Result<Connection> {
    let refused = |why: &str| DatabaseError::Setting(format!("{}{why}", path.display()));
    // Meters' keys are in it.
    prepare_file(path).map_err(|error| refused(&format!(": {error}")))?;
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(PATIENCE)?;
    let Header { application_id, tables, .. } = Header::read(&connection)?;
    if application_id != APPLICATION_ID && (application_id, tables) != (0, 0) {
        let why = "is another program's database: move it away, or choose another data folder";
        return Err(refused(&format!(" {why}")));
    }
    make_durable(&connection, WAL_KEEP_BYTES)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.set_prepared_statement_cache_capacity(128);
    let transaction = connection.transaction()?;
    let done: usize = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    check_version(path, done)?;
    for migration in MIGRATIONS.iter().skip(done) {
        transaction.execute_batch(migration)?;
    }
    if done < MIGRATIONS.len() {
        Header::write(&transaction, APPLICATION_ID, MIGRATIONS.len() as i64)?;
        transaction.execute_batch(STATISTICS)?;
    }
    transaction.commit()?;
    Ok(connection)
}

/// Refuses a file of a newer version; `done` is what SQLite calls user version, in the header of its file.
pub(crate) fn check_version(path: &Path, done: usize) -> Result<()> {
    if done <= MIGRATIONS.len() {
        return Ok(());
    }
    let text =
        "a newer version of Fulmar has changed its tables: use that version, or a copy from before";
    Err(DatabaseError::Setting(format!("{}: {text}", path.display())))
}

pub(super) fn open_to_read(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

impl Engine for Connection {
    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<usize> {
        Ok(self.prepare_cached(sql)?.execute(params_from_iter(values))?)
    }

    fn for_each_row(
        &self,
        sql: &str,
        values: &[Value<'_>],
        see: &mut dyn FnMut(&dyn Columns) -> Result<bool>,
    ) -> Result<()> {
        let mut statement = self.prepare_cached(sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            if !see(row)? {
                break;
            }
        }
        Ok(())
    }

    fn batch(&self, sql: &str) -> Result<()> {
        Ok(self.execute_batch(sql)?)
    }

    fn begin(&self, kind: Begin) -> Result<()> {
        self.batch(if kind == Begin::Read { "BEGIN" } else { "BEGIN IMMEDIATE" })
    }

    fn commit(&self) -> Result<()> {
        self.batch("COMMIT")
    }

    fn roll_back(&self) -> Result<()> {
        if self.is_autocommit() { Ok(()) } else { self.batch("ROLLBACK") }
    }

    fn is_spoilt(&self) -> bool {
        false
    }

    fn foreign_changes(&self) -> Result<(u64, i64)> {
        Ok((1, self.pragma_query_value(None, "data_version", |row| row.get(0))?))
    }

    fn sqlite(&self) -> Option<&Connection> {
        Some(self)
    }
}

impl Columns for rusqlite::Row<'_> {
    fn value(&self, at: usize) -> Result<Value<'_>> {
        Ok(match self.get_ref(at)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(integer) => Value::Integer(integer),
            ValueRef::Real(real) => Value::Real(real),
            ValueRef::Text(text) => {
                Value::Text(std::str::from_utf8(text).map_err(|_| DatabaseError::Column(at))?)
            }
            ValueRef::Blob(bytes) => Value::Blob(bytes),
        })
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            Value::Id(id) => return Ok(id.to_string().into()),
            Value::Null => ValueRef::Null,
            Value::Integer(integer) => ValueRef::Integer(integer),
            Value::Real(real) => ValueRef::Real(real),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_newer_version_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("platform.db");
        let newer = MIGRATIONS.len() + 1;
        open(&path).unwrap().pragma_update(None, "user_version", newer).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("platform.db: a newer version of Fulmar"), "{error}");
        let found: usize = Connection::open(&path)
            .unwrap()
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap();
        assert_eq!(found, newer);
    }

    #[test]
    fn half_a_file_and_another_programs_are_refused_and_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("platform.db");
        drop(open(&path).unwrap());
        let whole = std::fs::read(&path).unwrap();
        for length in [1, 16, 99, 100, 511, 512, 4096, whole.len() / 2] {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(open(&path).is_err(), "{length} bytes");
            assert_eq!(std::fs::read(&path).unwrap(), whole[..length], "{length} bytes");
        }
        std::fs::write(&path, []).unwrap();
        drop(open(&path).unwrap());
        let theirs = folder.path().join("theirs.db");
        Connection::open(&theirs).unwrap().execute_batch("CREATE TABLE x (y)").unwrap();
        let whole = std::fs::read(&theirs).unwrap();
        let error = open(&theirs).unwrap_err().to_string();
        assert!(error.contains("another program's database: move it away"), "{error}");
        assert_eq!(std::fs::read(&theirs).unwrap(), whole);
    }
}

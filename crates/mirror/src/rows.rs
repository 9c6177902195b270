//! All rows of a database, out of it and into it, and what its tables are.

use rusqlite::{Connection, OptionalExtension as _, Result, Row, params_from_iter};

use crate::Rows;
use crate::codec::{Columns, Key, Value, decode, encode};

/// SQLite's table with the highest number that each table has given out.
pub(crate) const SEQUENCE: &str = "sqlite_sequence";

/// Sees keys and contents of rows.
pub type SeeRow<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// A table, and its primary key.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) key: Vec<String>,
}

impl Table {
    pub(crate) fn read(connection: &Connection, name: &'static str) -> Result<Table> {
        let sql = "SELECT name FROM pragma_table_info(?1) WHERE pk > 0 ORDER BY pk";
        let mut statement = connection.prepare(sql)?;
        let key = statement.query_map([name], |row| row.get(0))?.collect::<Result<_>>()?;
        Ok(Table { name, key })
    }

    /// The condition that a row has a key, whose columns are the parameters.
    pub(crate) fn has_key(&self) -> String {
        let column = |(number, name): (usize, &String)| format!("\"{name}\" IS ?{}", number + 1);
        self.key.iter().enumerate().map(column).collect::<Vec<_>>().join(" AND ")
    }

    fn key_of(&self, columns: &Columns) -> Key {
        let value = |name: &String| columns.iter().find(|column| column.0 == *name);
        let columns = self.key.iter().filter_map(value).map(|column| column.1.clone()).collect();
        Key { table: self.name.to_owned(), columns }
    }
}

pub(crate) fn columns(row: &Row<'_>) -> Result<Columns> {
    let names: Vec<String> = row.as_ref().column_names().map(str::to_owned).collect();
    let column = |(at, name)| Ok((name, Value::try_from(row.get_ref(at)?)?));
    names.into_iter().enumerate().map(column).collect()
}

/// The row of `table` in [`SEQUENCE`], if it gives out numbers.
pub(crate) fn sequence(connection: &Connection, table: &str) -> Result<Option<(Key, Columns)>> {
    let exists = "SELECT 1 FROM sqlite_schema WHERE name = ?1";
    if connection.query_row(exists, [SEQUENCE], |_| Ok(())).optional()?.is_none() {
        return Ok(None);
    }
    let sql = "SELECT name, seq FROM sqlite_sequence WHERE name = ?1";
    let columns = connection.query_row(sql, [table], columns).optional()?;
    let key = Key { table: SEQUENCE.to_owned(), columns: vec![Value::Text(table.to_owned())] };
    Ok(columns.map(|columns| (key, columns)))
}

/// All rows of these tables, as they would be shared.
///
/// # Errors
/// SQLite's.
pub fn read_rows(connection: &Connection, tables: &[&'static str]) -> Result<Rows> {
    let mut all = Rows::new();
    for_each_row(connection, tables, &mut |key, value| {
        all.push((key.to_vec(), value.to_vec()));
        Ok(())
    })?;
    Ok(all)
}

/// Shows each row of these tables, as it would be shared, to `see`.
///
/// # Errors
/// SQLite's, and those of `see`.
pub fn for_each_row(
    connection: &Connection,
    tables: &[&'static str],
    see: SeeRow<'_>,
) -> Result<()> {
    for name in tables {
        let table = Table::read(connection, name)?;
        let mut statement = connection.prepare(&format!("SELECT * FROM \"{name}\""))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let columns = columns(row)?;
            see(&encode(&table.key_of(&columns))?, &encode(&columns)?)?;
        }
        if let Some((key, columns)) = sequence(connection, name)? {
            see(&encode(&key)?, &encode(&columns)?)?;
        }
    }
    Ok(())
}

/// Makes `rows` everything that these tables have, in one transaction.
///
/// # Errors
/// SQLite's; rows of other tables, which a newer version has made; then nothing has changed.
pub fn replace(connection: &mut Connection, tables: &[&'static str], rows: &Rows) -> Result<()> {
    let transaction = connection.transaction()?;
    clear(&transaction, tables)?;
    for (key, value) in rows {
        replace_row(&transaction, tables, key, value)?;
    }
    transaction.commit()
}

/// Beginning of the keys of a table's rows, as they are shared.
///
/// # Errors
/// The name cannot be encoded.
pub fn key_prefix(table: &str) -> Result<Vec<u8>> {
    encode(&table)
}

/// Removes all rows.
pub(crate) fn clear(connection: &Connection, tables: &[&'static str]) -> Result<()> {
    for table in tables {
        connection.execute(&format!("DELETE FROM \"{table}\""), [])?;
    }
    Ok(())
}

/// Stores a row in place of the one with the same key.
pub(crate) fn replace_row(
    connection: &Connection,
    tables: &[&'static str],
    key: &[u8],
    value: &[u8],
) -> Result<()> {
    let (key, columns): (Key, Columns) = (decode(key)?, decode(value)?);
    if key.table == SEQUENCE {
        if !is_sequence(tables, &key, &columns) {
            return Err(unknown(&key));
        }
        let sql = "DELETE FROM sqlite_sequence WHERE name IS ?1";
        connection.prepare_cached(sql)?.execute(params_from_iter(&key.columns))?;
    } else {
        known(tables, &key)?;
    }
    insert(connection, &key.table, &columns)
}

/// Removes the row with a key.
pub(crate) fn remove(connection: &Connection, tables: &[Table], key: &[u8]) -> Result<()> {
    let key: Key = decode(key)?;
    let Some(table) = tables.iter().find(|table| table.name == key.table) else {
        return Err(unknown(&key));
    };
    let sql = format!("DELETE FROM \"{}\" WHERE {}", table.name, table.has_key());
    connection.prepare_cached(&sql)?.execute(params_from_iter(&key.columns)).map(drop)
}

/// Whether this is the highest number that one of the tables has given out.
fn is_sequence(tables: &[&'static str], key: &Key, columns: &Columns) -> bool {
    let [Value::Text(table)] = &key.columns[..] else { return false };
    let [(name, of), (seq, Value::Integer(_))] = &columns[..] else { return false };
    tables.contains(&table.as_str()) && name == "name" && *of == key.columns[0] && seq == "seq"
}

fn known(tables: &[&'static str], key: &Key) -> Result<()> {
    if tables.contains(&key.table.as_str()) { Ok(()) } else { Err(unknown(key)) }
}

fn unknown(key: &Key) -> rusqlite::Error {
    let text = format!("rows of a table {:?}, which this version does not have", key.table);
    rusqlite::Error::ToSqlConversionFailure(text.into())
}

fn insert(connection: &Connection, table: &str, columns: &Columns) -> Result<()> {
    let names: Vec<_> = columns.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let places = vec!["?"; columns.len()].join(", ");
    let sql =
        format!("INSERT OR REPLACE INTO \"{table}\" ({}) VALUES ({places})", names.join(", "));
    let values = columns.iter().map(|(_, value)| value);
    connection.prepare_cached(&sql)?.execute(params_from_iter(values)).map(drop)
}

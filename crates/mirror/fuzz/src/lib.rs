//! Fuzz target of `fulmar-mirror`: rows that another node has shared.

use fulmar_mirror::{Rows, read_rows, replace};
use rusqlite::Connection;

const TABLES: [&str; 2] = ["ban", "note"];
const SCHEMA: &str = "
CREATE TABLE ban (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, until_ms INTEGER NOT NULL) STRICT;
CREATE TABLE note (name TEXT PRIMARY KEY, body BLOB, weight REAL) STRICT;
CREATE TABLE private (secret TEXT) STRICT;
INSERT INTO private VALUES ('stays');
";

/// Keys and contents of rows, the length of each in a byte before it. Either all of them are in the tables, as the same
/// rows, or nothing has changed; other tables never do.
pub fn rows(data: &[u8]) {
    let mut connection = Connection::open_in_memory().expect("memory");
    connection.execute_batch(SCHEMA).expect("a schema");
    let before = shared(&connection);
    let accepted = replace(&mut connection, &TABLES, &parse(data)).is_ok();
    let after = shared(&connection);
    assert!(accepted || before == after, "refused, but changed");
    let private: String =
        connection.query_row("SELECT secret FROM private", [], |row| row.get(0)).expect("a row");
    assert_eq!(private, "stays");
    replace(&mut connection, &TABLES, &after).expect("what was read");
    assert_eq!(shared(&connection), after);
}

fn shared(connection: &Connection) -> Rows {
    read_rows(connection, &TABLES).expect("tables")
}

fn parse(mut data: &[u8]) -> Rows {
    let mut rows = Rows::new();
    let mut next = || {
        let (length, rest) = data.split_first()?;
        let (piece, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        data = rest;
        Some(piece.to_vec())
    };
    while let Some(key) = next() {
        rows.push((key, next().unwrap_or_default()));
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/mirror-rows");
        fulmar_mqtt_fuzz::replay(&folder, rows);
    }
}

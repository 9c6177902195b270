//! What the platform has stored, read from its file.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::Connection;

use crate::bad_disk::{Disk, Folder};

/// The number of measurements by device, quantity and value.
pub(crate) type Stored = BTreeMap<(String, String, u64), u64>;

const MEASUREMENTS: &str = "SELECT s.device, s.quantity, m.value, count(*) FROM measurement m \
                            JOIN series s ON s.seq = m.series GROUP BY 1, 2, 3";

/// Reads the platform's measurements.
pub(crate) fn read(folder: &Folder, disk: Disk) -> Result<Stored, String> {
    folder.mount(&Arc::new(disk));
    let connection = folder.open_sound(fulmar_platform::DATABASE_FILE)?;
    measurements(&connection).map_err(|error| error.to_string())?
}

fn measurements(connection: &Connection) -> rusqlite::Result<Result<Stored, String>> {
    let mut rows = connection.prepare(MEASUREMENTS)?;
    let rows = rows.query_map([], |row| {
        let value: f64 = row.get(2)?;
        Ok(((row.get(0)?, row.get(1)?, value as u64), row.get::<_, i64>(3)?.cast_unsigned()))
    })?;
    let stored = rows.collect::<rusqlite::Result<Stored>>()?;
    let number: u64 = stored.values().sum();
    for table in ["series_hour", "series_day"] {
        let count = format!("SELECT coalesce(sum(count), 0) FROM {table}");
        let count: i64 = connection.query_row(&count, [], |row| row.get(0))?;
        if count.cast_unsigned() != number {
            return Ok(Err(format!("{table} counts {count} of {number} measurements")));
        }
    }
    Ok(Ok(stored))
}

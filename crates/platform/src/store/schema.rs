//! The tables, in the SQL of SQLite; `sql` says them to other engines in theirs.
//!
//! A change of the tables is a new entry at the end of [`MIGRATIONS`]; entries are never edited. In a cluster, rows of a
//! node with the version before arrive after the entry was executed: it must not have to change rows, and new columns need
//! defaults.

use crate::text::strings;

/// Entry n brings version n to version n + 1. Times are milliseconds since 1970.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("schema.sql"),
    include_str!("field.sql"),
    include_str!("monitoring.sql"),
    include_str!("corrections.sql"),
    include_str!("credentials.sql"),
    include_str!("lists.sql"),
    include_str!("removed.sql"),
    include_str!("indexes.sql"),
    include_str!("protection.sql"),
    include_str!("radio.sql"),
    include_str!("exchanges.sql"),
    include_str!("user_store.sql"),
];

/// Everything that nodes of a cluster share.
pub(super) const TABLES: &[&str] = &strings![
    account alert alert_rule alert_state command counter credential frame_seen home instance measurement
    measurement_id member meter meter_exchange photo reading reading_change reading_conflict removed_series sensor
    series series_day series_hour session task telemetry twin user_store webhook webhook_event work_list
];

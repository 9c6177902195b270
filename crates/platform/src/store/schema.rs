//! The tables, in the SQL of SQLite; `sql` says them to other engines in theirs.
//!
//! A change of the tables is a new entry at the end of [`MIGRATIONS`]; entries are never edited.

/// Entry n brings version n to version n + 1. Times are milliseconds since 1970.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("schema.sql"),
    include_str!("field.sql"),
    include_str!("monitoring.sql"),
    include_str!("corrections.sql"),
    include_str!("credentials.sql"),
    include_str!("lists.sql"),
];

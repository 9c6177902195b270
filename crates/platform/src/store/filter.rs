//! Conditions of a query, and columns of a change, that depend on the request.

use uuid::Uuid;

use super::TwinDb;
use super::sql::{FromRow, FromSql, Mismatch, Result, Row, ToSql, Value};
use crate::measurements::Quantity;
use crate::number::{Bounds, Place};
use crate::readings::types::Flag;

/// Conditions joined by AND, and their values.
#[derive(Default)]
pub(crate) struct Filter<'a> {
    sql: String,
    values: Vec<Box<dyn ToSql + 'a>>,
}

impl<'a> Filter<'a> {
    /// Without conditions yet, for a statement that begins with a value of its own, `?1`.
    pub(crate) fn behind(value: impl ToSql + 'a) -> Filter<'a> {
        Filter { sql: String::new(), values: vec![Box::new(value)] }
    }

    /// Adds a condition; its placeholders `?` stand for `values`.
    pub(crate) fn and<const N: usize>(
        &mut self,
        condition: &str,
        values: [Box<dyn ToSql + 'a>; N],
    ) -> &mut Self {
        self.sql.push_str(if self.sql.is_empty() { " WHERE " } else { " AND " });
        self.sql.push_str(condition);
        self.values.extend(values);
        self
    }

    /// Adds a condition if there is a value.
    pub(crate) fn and_if<T: ToSql + 'a>(&mut self, condition: &str, value: Option<T>) -> &mut Self {
        match value {
            Some(value) => self.and(condition, [Box::new(value)]),
            None => self,
        }
    }

    /// Adds the condition that the columns `lat` and `lon` are within an area, if there is one.
    pub(crate) fn within(&mut self, bounds: Option<Bounds>) -> &mut Self {
        let Some(Bounds { west, south, east, north }) = bounds else { return self };
        self.and("lat BETWEEN ? AND ?", [Box::new(south), Box::new(north)]);
        if west <= east {
            self.and("lon BETWEEN ? AND ?", [Box::new(west), Box::new(east)])
        } else {
            // Across the 180th meridian.
            self.and("(lon >= ? OR lon <= ?)", [Box::new(west), Box::new(east)])
        }
    }

    /// Adds the condition that one of these columns contains the words, if there are any, ignoring the case of ASCII letters.
    pub(crate) fn contain<const N: usize>(&mut self, columns: [&str; N], words: Option<&str>) {
        let Some(words) = words.filter(|words| !words.is_empty()) else { return };
        let words = words.to_ascii_lowercase();
        let escaped = words.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        let like = columns.map(|column| format!("lower({column}) LIKE ? ESCAPE '\\'"));
        let values = columns.map(|_| Box::new(format!("%{escaped}%")) as Box<dyn ToSql>);
        self.and(&format!("({})", like.join(" OR ")), values);
    }

    /// Up to `limit` of the rows that `select` has with these conditions, in this order.
    pub(crate) fn list<T: FromRow>(
        &self,
        db: TwinDb<'_>,
        select: &str,
        order: &str,
        limit: usize,
    ) -> Result<Vec<T>> {
        db.list(&self.sql(select, order), self.values(&limit))
    }

    /// The values of the statement.
    pub(crate) fn values<'b>(&'b self, limit: &'b usize) -> Vec<Value<'b>> {
        self.values.iter().map(|value| value.to_sql()).chain([limit.to_sql()]).collect()
    }

    /// The statement.
    pub(crate) fn sql(&self, select: &str, order: &str) -> String {
        format!("{select}{} ORDER BY {order} LIMIT ?", self.sql)
    }
}

/// A column's value, if it is to change.
pub(super) fn given<T: ToSql>(value: &Option<T>) -> Option<&dyn ToSql> {
    value.as_ref().map(|value| value as &dyn ToSql)
}

/// Changes the columns that have a value, of the twin's row with this identifier, and increments its revision.
pub(super) fn change(
    db: TwinDb<'_>,
    table: &str,
    id: &dyn ToSql,
    columns: &[(&str, Option<&dyn ToSql>)],
) -> Result<()> {
    let (mut set, mut values) = (String::new(), vec![db.twin.to_sql(), id.to_sql()]);
    for (column, value) in columns {
        if let Some(value) = value {
            values.push(value.to_sql());
            set += &format!("{column} = ?{}, ", values.len());
        }
    }
    let sql =
        format!("UPDATE {table} SET {set}revision = revision + 1 WHERE twin = ?1 AND id = ?2");
    db.execute(&sql, values).map(drop)
}

/// A column and its value.
pub(super) type Column<'a> = (&'a str, &'a dyn ToSql);

/// Columns that have the names and values of fields, or a value of their own.
macro_rules! columns {
    ($of:expr; $($name:ident $(= $value:expr)?),+ $(,)?) => {
        &[$((stringify!($name), columns!(@ $of, $name $(, $value)?) as &dyn ToSql)),+]
    };
    (@ $of:expr, $field:ident) => { &$of.$field };
    (@ $of:expr, $field:ident, $value:expr) => { &$value };
}
pub(super) use columns;

/// The same of a change: columns without a value stay as they are.
macro_rules! changes {
    ($of:expr; $($name:ident $(= $value:expr)?),+ $(,)?) => {
        &[$((stringify!($name), $crate::store::filter::given(columns!(@ $of, $name $(, $value)?)))),+]
    };
}
pub(super) use changes;

/// Inserts a row of the twin.
pub(super) fn insert(db: TwinDb<'_>, table: &str, columns: &[Column<'_>]) -> Result<()> {
    let columns = [&[("twin", &db.twin as &dyn ToSql)], columns].concat();
    db.execute(&insert_sql(table, &columns), values(&columns)).map(drop)
}

/// Inserts a row of the twin with the revision 1; if one has the same first column, sets its other columns and what
/// `besides` says, and increments its revision.
pub(super) fn upsert(
    db: TwinDb<'_>,
    table: &str,
    columns: &[Column<'_>],
    besides: &str,
) -> Result<()> {
    let [(key, _), others @ ..] = columns else { return Ok(()) };
    let set: String =
        others.iter().map(|(column, _)| format!("{column} = excluded.{column}, ")).collect();
    let twin = ("twin", &db.twin as &dyn ToSql);
    let columns = [&[twin, ("revision", &1_i64)], columns].concat();
    let sql = format!(
        "{} ON CONFLICT (twin, {key}) DO UPDATE SET {set}{besides} revision = {table}.revision + 1",
        insert_sql(table, &columns)
    );
    db.execute(&sql, values(&columns)).map(drop)
}

fn insert_sql(table: &str, columns: &[Column<'_>]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let places = vec!["?"; names.len()].join(", ");
    format!("INSERT INTO {table} ({}) VALUES ({places})", names.join(", "))
}

fn values<'a>(columns: &'a [Column<'_>]) -> Vec<Value<'a>> {
    columns.iter().map(|(_, value)| value.to_sql()).collect()
}

/// A place's columns.
impl FromRow for Option<Place> {
    fn from_row(row: &mut Row<'_>) -> Result<Self> {
        Ok(row.read::<Option<_>>()?.map(|(lat, lon)| Place { lat, lon }))
    }
}

/// Lists that are stored as words of one text, or as null if they are empty. Words of a later version are left out.
macro_rules! word_lists {
    ($($item:ty: $parse:expr),+) => {$(
        impl FromSql for Vec<$item> {
            fn from_sql(value: Value<'_>) -> std::result::Result<Self, Mismatch> {
                let words = Option::<String>::from_sql(value)?.unwrap_or_default();
                Ok(words.split_whitespace().filter_map($parse).collect())
            }
        }
    )+};
}
word_lists!(Uuid: |id| id.parse().ok(), Quantity: |name| name.parse().ok(), Flag: Flag::from_word);

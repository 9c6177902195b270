//! Conditions of a query, and columns of a change, that depend on the request.

use super::Db;
use super::sql::{Result, Row, ToSql, params, params_from_iter};

/// An area of the map, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) west: f64,
    pub(crate) south: f64,
    pub(crate) east: f64,
    pub(crate) north: f64,
}

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
        let Some(words) = words else { return };
        let words = words.to_ascii_lowercase();
        let escaped = words.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        let like = columns.map(|column| format!("lower({column}) LIKE ? ESCAPE '\\'"));
        let values = columns.map(|_| Box::new(format!("%{escaped}%")) as Box<dyn ToSql>);
        self.and(&format!("({})", like.join(" OR ")), values);
    }

    /// Up to `limit` of the rows that `select` has with these conditions, in this order.
    pub(crate) fn list<T>(
        &self,
        db: &Db,
        select: &str,
        order: &str,
        limit: usize,
        read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let values = self.values.iter().map(|value| &**value).chain([&limit as &dyn ToSql]);
        let mut rows = db.prepare_cached(&self.sql(select, order))?;
        rows.query_map(params_from_iter(values), read)?.collect()
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

/// Sets the columns that have a value, of the row with this twin and identifier.
pub(super) fn set_given(
    db: &Db,
    table: &str,
    (twin, id): (&str, &str),
    values: &[(&str, Option<&dyn ToSql>)],
) -> Result<()> {
    for (column, value) in values {
        let Some(value) = value else { continue };
        let sql = format!("UPDATE {table} SET {column} = ?3 WHERE twin = ?1 AND id = ?2");
        db.prepare_cached(&sql)?.execute(params![twin, id, value])?;
    }
    Ok(())
}

//! Conditions of a query that depend on the request.

use super::sql::ToSql;

/// A pattern for `lower(column) LIKE ? ESCAPE '\\'`: matches text that contains this one, ignoring the case of ASCII
/// letters.
pub(crate) fn containing(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    let escaped = text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
    format!("%{escaped}%")
}

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
    /// Adds a condition; its placeholders `?` stand for `values`.
    pub(crate) fn and<const N: usize>(
        &mut self,
        condition: &'static str,
        values: [Box<dyn ToSql + 'a>; N],
    ) -> &mut Self {
        self.sql.push_str(if self.sql.is_empty() { " WHERE " } else { " AND " });
        self.sql.push_str(condition);
        self.values.extend(values);
        self
    }

    /// Adds a condition if there is a value.
    pub(crate) fn and_if<T: ToSql + 'a>(
        &mut self,
        condition: &'static str,
        value: Option<T>,
    ) -> &mut Self {
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

    /// The conditions.
    pub(crate) fn sql(&self) -> &str {
        &self.sql
    }

    /// The values, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &(dyn ToSql + 'a)> {
        self.values.iter().map(|value| &**value)
    }
}

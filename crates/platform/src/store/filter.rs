//! Conditions of a query that depend on what was asked for.

use super::sql::ToSql;

/// A pattern for `lower(column) LIKE ? ESCAPE '\\'`: whatever contains this text, big letters of ASCII like small
/// ones.
pub(crate) fn containing(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    let escaped = text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
    format!("%{escaped}%")
}

/// Conditions that all must hold, and their values.
#[derive(Default)]
pub(crate) struct Filter<'a> {
    sql: String,
    values: Vec<Box<dyn ToSql + 'a>>,
}

impl<'a> Filter<'a> {
    /// Adds a condition; each `?` in it stands for the next of `values`.
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

    /// Adds it where there is a value.
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

    /// The conditions.
    pub(crate) fn sql(&self) -> &str {
        &self.sql
    }

    /// The values, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &(dyn ToSql + 'a)> {
        self.values.iter().map(|value| &**value)
    }
}

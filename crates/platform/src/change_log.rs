//! Callers that change accounts, twins and exchanges of meters through the API, for the log of changes of the server.

use std::sync::OnceLock;

use fulmar_identity::{ChangeLog, NewEntry};

use crate::problem::{Problem, Result};

/// The log, once the server has one.
#[derive(Default)]
pub(crate) struct ChangeLogSlot(OnceLock<Box<dyn ChangeLog>>);

fulmar_text::opaque_debug!(ChangeLogSlot);

impl ChangeLogSlot {
    pub(crate) fn set(&self, log: Box<dyn ChangeLog>) {
        drop(self.0.set(log));
    }

    /// Adds a change that is about to be made; returns what [`ChangeLogSlot::end`] gets.
    pub(crate) fn begin(&self, change: NewEntry) -> Result<Option<i64>> {
        let Some(log) = self.0.get() else { return Ok(None) };
        let ids = log.begin(&[change]).map_err(|error| Problem::unavailable(&error))?;
        Ok(ids.first().copied())
    }

    /// Adds the result of a change, once it is durable.
    pub(crate) fn end<T>(&self, id: i64, made: &Result<T>) {
        if let Some(log) = self.0.get() {
            log.end(&[(id, made.as_ref().map_or_else(Problem::detail, |_| "ok"))]);
        }
    }
}

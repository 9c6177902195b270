//! Callers that change accounts, twins and exchanges of meters through the API, for the log of changes of the server.

use std::sync::OnceLock;

use serde_json::Value;

use crate::problem::{Problem, Result};

/// A change that is about to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct RosterChange {
    /// The account.
    pub who: String,
    /// The caller's address.
    pub from: String,
    /// Such as `user.add`.
    pub action: &'static str,
    /// The account, twin or meter that is changed.
    pub object: String,
    /// Further details, without secrets.
    pub detail: Value,
}

/// Has changes before they are made, and then their results.
pub trait ChangeLog: Send + Sync {
    /// Adds a change; returns what [`ChangeLog::end`] gets.
    ///
    /// # Errors
    /// It cannot be logged, so it must not be made.
    fn begin(&self, change: RosterChange) -> Result<i64, String>;

    /// Adds the result: `ok`, or why it was refused.
    fn end(&self, id: i64, result: &str);
}

/// The log, once the server has one.
#[derive(Default)]
pub(crate) struct ChangeLogSlot(OnceLock<Box<dyn ChangeLog>>);

fulmar_text::opaque_debug!(ChangeLogSlot);

impl ChangeLogSlot {
    pub(crate) fn set(&self, log: Box<dyn ChangeLog>) {
        drop(self.0.set(log));
    }

    /// Adds a change that is about to be made; returns what [`ChangeLogSlot::end`] gets.
    pub(crate) fn begin(&self, change: RosterChange) -> Result<Option<i64>> {
        let Some(log) = self.0.get() else { return Ok(None) };
        log.begin(change).map(Some).map_err(|error| Problem::unavailable(&error))
    }

    /// Adds the result of a change, once it is durable.
    pub(crate) fn end<T>(&self, id: i64, made: &Result<T>) {
        if let Some(log) = self.0.get() {
            log.end(id, made.as_ref().map_or_else(Problem::detail, |_| "ok"));
        }
    }
}

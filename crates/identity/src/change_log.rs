//! The log of changes, for those who make them.

/// A change that is about to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// The user or client.
    pub who: String,
    /// The caller's address, or `local`.
    pub from: String,
    /// Such as `user.add`.
    pub action: &'static str,
    /// The name of what is changed, such as a user, role or meter.
    pub object: String,
    /// Further details, without secrets.
    pub detail: String,
}

impl NewEntry {
    /// An entry of a change that was not asked for over the network.
    pub fn local(who: &str, action: &'static str, object: &str, detail: String) -> NewEntry {
        let from = "local".to_owned();
        NewEntry { who: who.to_owned(), from, action, object: object.to_owned(), detail }
    }
}

/// Has changes before they are made, and then their results.
pub trait ChangeLog: Send + Sync {
    /// Adds changes that are about to be made; returns what [`ChangeLog::end`] gets of each.
    ///
    /// # Errors
    /// They cannot be logged, so they must not be made.
    fn begin(&self, changes: &[NewEntry]) -> Result<Vec<i64>, String>;

    /// Adds the results: `ok`, or why a change was refused.
    fn end(&self, results: &[(i64, &str)]);
}

/// None.
impl ChangeLog for () {
    fn begin(&self, changes: &[NewEntry]) -> Result<Vec<i64>, String> {
        Ok(vec![0; changes.len()])
    }

    fn end(&self, _: &[(i64, &str)]) {}
}

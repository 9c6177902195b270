//! Work lists: which meters must be read, the reader, the due date, and the progress.

pub(crate) mod handlers;
pub(crate) mod types;

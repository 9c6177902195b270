//! Work lists: which meters are to be read, by whom, until when, and how far that is.

pub(crate) mod handlers;
pub(crate) mod types;

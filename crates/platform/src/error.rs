//! Why the platform cannot start, or a command on its data fails.

use crate::store::sql::DatabaseError;

/// Why the platform cannot start, or a command on its data fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The secret that signs tokens.
    #[error("secret of the platform's tokens, {path}: {source}")]
    Secret {
        /// Path of the file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The database.
    #[error("the platform's database: {0}")]
    Database(#[from] DatabaseError),
    /// The request cannot be carried out.
    #[error("{0}")]
    Refused(String),
}

impl From<crate::problem::Problem> for Error {
    fn from(problem: crate::problem::Problem) -> Error {
        Error::Refused(problem.detail().to_owned())
    }
}

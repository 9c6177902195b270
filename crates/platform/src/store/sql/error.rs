//! Errors of a database.

/// Why the platform's database cannot be used, or did not do something.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The database file.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The file that is or would be the database.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// Error that the PostgreSQL server answered.
    #[error("PostgreSQL: {text}")]
    Postgres {
        /// Kind of failure: an SQLSTATE.
        state: String,
        /// The server's words.
        text: String,
    },
    /// The PostgreSQL server cannot be reached, or was lost.
    #[error("PostgreSQL cannot be reached ({0}): {1}")]
    Away(String, String),
    /// Another server uses it.
    #[error(
        "another Fulmar server uses this database: stop that one, or give this one a database of its own \
         ([platform] database)"
    )]
    Taken,
    /// This node of a cluster has not shared a change with the others.
    #[error(transparent)]
    NotShared(#[from] fulmar_mirror::NotShared),
    /// Something about it has to be set otherwise.
    #[error("{0}")]
    Setting(String),
    /// A column has an invalid value: the database is another program's or damaged.
    #[error("column {0} has an unexpected value")]
    Column(usize),
    /// Text with the character U+0000, which not every database can hold.
    #[error("text with the character U+0000 cannot be stored")]
    ZeroCharacter,
    /// One row was asked for and there is none.
    #[error("there is no such row")]
    NoRow,
    /// Something could not be put into the form in which it is stored.
    #[error("{0}")]
    Form(#[from] serde_json::Error),
}

impl From<fulmar_mirror::CommitError> for DatabaseError {
    fn from(error: fulmar_mirror::CommitError) -> DatabaseError {
        match error {
            fulmar_mirror::CommitError::NotShared(error) => error.into(),
            fulmar_mirror::CommitError::Sqlite(error) => error.into(),
        }
    }
}

/// Result of a use of the database.
pub(crate) type Result<T> = std::result::Result<T, DatabaseError>;

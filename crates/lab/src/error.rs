//! What can go wrong in the lab, and what to do about it.

use std::io;

use crate::link::ConfigError;
use crate::profile::ProfileError;

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A link that cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A profile that there is not.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// This machine lacks something that links need.
    #[error("{what}; {remedy}")]
    Missing {
        /// What is missing or forbidden.
        what: String,
        /// What helps.
        remedy: String,
    },
    /// The system refused something.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Wraps what the system answered when something was tried.
    pub(crate) fn when<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Error {
        let doing = doing.into();
        move |source| Error::System { doing, source: source.into() }
    }
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Error {
        Error::System { doing: "the system refused".to_owned(), source }
    }
}

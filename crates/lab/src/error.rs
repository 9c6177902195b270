//! The errors of the lab, and how to fix them.

use std::io;

use crate::link::ConfigError;
use crate::profile::ProfileError;

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An impossible link.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An unknown profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// This machine lacks something that links need.
    #[error("{what}; {remedy}")]
    Missing {
        /// Thing that is missing or forbidden.
        what: String,
        /// Remedy for the user.
        remedy: String,
    },
    /// The system refused something.
    #[error("{doing}: {source}")]
    System {
        /// Operation that was tried.
        doing: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Wraps the system's error with what was tried.
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

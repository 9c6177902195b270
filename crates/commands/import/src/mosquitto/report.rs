//! What the person who imports has to know: lines that were not translated, and why.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub(super) use fulmar_command::terminal::printable as plain;

/// A line of a file, from 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceLine {
    /// The file.
    pub file: Arc<Path>,
    /// 0 for the file as a whole.
    pub line: usize,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        if self.line == 0 { write!(f, "{file}") } else { write!(f, "{file}:{}", self.line) }
    }
}

/// Result for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It has no effect in Fulmar.
    NotTranslated,
    /// It was translated, but works differently.
    Differs,
    /// Fulmar does without it.
    NotNeeded,
}

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Kind::NotTranslated => "not translated",
            Kind::Differs => "differs",
            Kind::NotNeeded => "not needed",
        }
    }
}

/// An entry of the report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// Position of the line.
    pub place: SourceLine,
    /// Option of the line, or another subject.
    pub option: String,
    /// Result for the line.
    pub kind: Kind,
    /// Why, and what to do instead.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Note { place, option, kind, text } = self;
        f.write_str(&plain(&format!("{place}: {option}: {}: {text}", kind.text())))
    }
}

/// All entries.
#[derive(Clone, Debug, Default)]
pub struct Report {
    notes: Vec<Note>,
}

impl Report {
    /// Adds an entry.
    pub(super) fn add(
        &mut self,
        place: &SourceLine,
        option: &str,
        kind: Kind,
        text: impl Into<String>,
    ) {
        let (place, option, text) = (place.clone(), option.to_owned(), text.into());
        let note = Note { place, option, kind, text };
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    pub(super) fn not_translated(
        &mut self,
        place: &SourceLine,
        option: &str,
        text: impl Into<String>,
    ) {
        self.add(place, option, Kind::NotTranslated, text);
    }

    pub(super) fn differs(&mut self, place: &SourceLine, option: &str, text: impl Into<String>) {
        self.add(place, option, Kind::Differs, text);
    }

    /// By file and line.
    pub(super) fn sort(&mut self) {
        self.notes.sort();
    }

    /// The entries.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

/// Why a configuration cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A line is malformed.
    #[error("{place}: {text}")]
    Malformed {
        /// Position of the fault.
        place: SourceLine,
        /// Fault found there.
        text: String,
    },
    /// A file cannot be read.
    #[error("{path}: {text}")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// Why, and what to do.
        text: String,
    },
}

impl Error {
    pub(super) fn malformed(place: &SourceLine, text: impl Into<String>) -> Error {
        Error::Malformed { place: place.clone(), text: text.into() }
    }
}

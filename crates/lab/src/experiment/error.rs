//! Mistakes in an experiment file: where, which key, and what is allowed instead.

use std::fmt;
use std::ops::Range;

use crate::words;

/// Replaces serde's term for lists with TOML's.
const LISTS: [(&str, &str); 1] = [("expected a sequence", "expected a list, in [ ]")];

/// A mistake at a place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file as it was named.
    pub file: String,
    /// Line and column, both from 1; `None` if the mistake is the file itself.
    pub place: Option<(usize, usize)>,
    /// The line.
    pub shown: String,
    /// Description of the mistake, and of what is allowed.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some((line, column)) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)?;
        if !self.shown.is_empty() {
            write!(f, "\n  {}", self.shown)?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistake {}

/// A file's text, to turn spans into places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    pub(super) fn mistake(&self, span: Range<usize>, message: impl Into<String>) -> Mistake {
        let at = words::place(self.text, span.start);
        let place = Some((at.line, at.column));
        Mistake { file: self.file.to_owned(), place, shown: at.shown, message: message.into() }
    }

    pub(super) fn syntax(&self, error: &toml::de::Error) -> Mistake {
        self.mistake(error.span().unwrap_or(0..0), words::explain(error.message(), &LISTS))
    }
}

//! Mistakes in an experiment file: where, which key, and what is allowed instead.

use std::fmt;
use std::ops::Range;

/// How alike two keys must be (Jaro-Winkler, 0 to 1) for one to be offered for the other.
const ALIKE: f64 = 0.7;

/// A mistake at a place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file as it was named.
    pub file: String,
    /// Line and column, both from 1; `None` if the mistake is the file itself.
    pub place: Option<(usize, usize)>,
    /// The line.
    pub shown: String,
    /// What is wrong and what is allowed.
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
        let at = span.start.min(self.text.len());
        let before = self.text.get(..at).unwrap_or_default();
        let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
        let place = Some((before.matches('\n').count() + 1, at - begin + 1));
        let shown = self.text[begin..].lines().next().unwrap_or_default().trim().to_owned();
        Mistake { file: self.file.to_owned(), place, shown, message: message.into() }
    }

    pub(super) fn syntax(&self, error: &toml::de::Error) -> Mistake {
        self.mistake(error.span().unwrap_or(0..0), explain(error.message()))
    }
}

/// Serde's words for a person: the nearest key for one that does not exist, ranges for types.
fn explain(message: &str) -> String {
    let mut words = message.trim_end().to_owned();
    for (kind, range) in [
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected u64", "expected a whole number from 0"),
        ("expected f64", "expected a number"),
        ("expected a sequence", "expected a list, in [ ]"),
        ("invalid type: sequence", "invalid type: list"),
        ("missing field", "missing key"),
    ] {
        words = words.replace(kind, range);
    }
    for (kind, prefix) in [("key", "unknown field `"), ("value", "unknown variant `")] {
        if let Some(unknown) = words.strip_prefix(prefix) {
            // The rest is "NAME`, expected one of `A`, `B`" or "…, expected `A` or `B`".
            let name = unknown.split('`').next().unwrap_or_default();
            let known: Vec<&str> = unknown.split('`').skip(2).step_by(2).collect();
            return no_such(kind, name, &known);
        }
    }
    words
}

/// "unknown KIND `NAME`; did you mean …? known here: …"
pub(super) fn no_such(kind: &str, name: &str, known: &[&str]) -> String {
    let nearest = nearest(name, known).map(|near| format!("did you mean `{near}`? "));
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    format!("unknown {kind} `{name}`; {}known here: {known}", nearest.unwrap_or_default())
}

fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known.iter().map(|key| (strsim::jaro_winkler(name, key), *key));
    let (likeness, key) = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness > ALIKE).then_some(key)
}

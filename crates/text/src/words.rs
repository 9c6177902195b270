//! Mistakes in a TOML file in words for a person: which line, which key, and what is allowed instead.
//!
//! Experiment files and the program's own configuration speak alike; what is said of either beside is
//! theirs.

/// Least similarity of two names (Jaro-Winkler, 0 to 1) for one to be offered for the other.
const ALIKE: f64 = 0.7;

/// Serde's names of types, and the text shown instead.
const TYPES: [(&str, &str); 7] = [
    ("expected u16", "expected a whole number from 0 to 65535"),
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected u64", "expected a whole number from 0"),
    ("expected usize", "expected a whole number from 0"),
    ("expected f64", "expected a number"),
    ("invalid type: sequence", "invalid type: list"),
    ("missing field", "missing key"),
];

/// A place of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPosition {
    /// From 1.
    pub line: usize,
    /// From 1, in bytes.
    pub column: usize,
    /// The line, without blanks around it.
    pub shown: String,
}

/// Where the byte `at` of a text is.
#[must_use]
pub fn place(text: &str, at: usize) -> TextPosition {
    let at = at.min(text.len());
    let before = text.get(..at).unwrap_or_default();
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    TextPosition {
        line: before.matches('\n').count() + 1,
        column: at - begin + 1,
        shown: text[begin..].lines().next().unwrap_or_default().trim().to_owned(),
    }
}

/// Serde's words for a person: ranges for types, the nearest key or value for one that does not
/// exist. `further` replaces more of them.
#[must_use]
pub fn explain(message: &str, further: &[(&str, &str)]) -> String {
    let mut words = message.trim_end().to_owned();
    for (theirs, ours) in TYPES.iter().chain(further) {
        words = words.replace(theirs, ours);
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
#[must_use]
pub fn no_such(kind: &str, name: &str, known: &[&str]) -> String {
    let nearest = nearest(name, known).map(|near| format!("did you mean `{near}`? "));
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    format!("unknown {kind} `{name}`; {}known here: {known}", nearest.unwrap_or_default())
}

fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known.iter().map(|key| (strsim::jaro_winkler(name, key), *key));
    let (likeness, key) = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness > ALIKE).then_some(key)
}

//! Text with placeholders: `{name}` is replaced, `{{` and `}}` are braces.

/// Text cut at its placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Placeholder(String),
}

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Template, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
            } else if brace == "}" {
                return Err("`}` without `{`; write `}}` for a brace".to_owned());
            } else {
                let named = rest.split_once('}').filter(|(name, _)| is_name(name));
                let (name, after) =
                    named.ok_or("`{` begins no placeholder; write `{{` for a brace")?;
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(Part::Placeholder(name.to_owned()));
                rest = after;
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Template(parts))
    }

    /// Replaces the placeholders. The error is the name of the first one without a value.
    pub(crate) fn fill(&self, value: impl Fn(&str) -> Option<String>) -> Result<String, String> {
        let mut filled = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Placeholder(name) => {
                    filled.push_str(&value(name).ok_or_else(|| name.clone())?);
                }
            }
        }
        Ok(filled)
    }
}

/// A host, and how often its address has changed: `broker.2` of `{addr.broker.2}`.
pub(crate) fn host_and_changes(name: &str) -> (&str, u32) {
    let numbered = name.rsplit_once('.').and_then(|(host, n)| Some((host, n.parse().ok()?)));
    numbered.unwrap_or((name, 0))
}

/// Longest name of a placeholder in characters.
const MAX_NAME: usize = 64;

fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.is_empty() && name.len() < MAX_NAME && name.chars().all(allowed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn fill(text: &str) -> Result<String, String> {
        Template::parse(text)?.fill(|name| (name != "none").then(|| name.to_uppercase()))
    }

    #[test]
    fn placeholders_are_replaced_and_doubled_braces_are_braces() {
        assert_eq!(fill("a{b}c{addr.d-1}").unwrap(), "aBcADDR.D-1");
        assert_eq!(fill(r#"{{"x": {y}}}"#).unwrap(), r#"{"x": Y}"#);
        assert_eq!(fill("").unwrap(), "");
    }

    #[test]
    fn what_is_no_placeholder_is_refused() {
        for text in ["{", "{}", "{a b}", "}", "x{unfinished"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
        assert_eq!(fill("{none}").unwrap_err(), "none");
    }
}

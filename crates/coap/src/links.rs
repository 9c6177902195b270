//! The list of resources in the link format of RFC 6690, for `/.well-known/core`.

use std::fmt::Write as _;

/// Content-Format of the link format (RFC 7252 section 12.3).
pub const CONTENT_FORMAT: u16 = 40;

/// A resource in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Path of the resource, percent-encoded, with the leading slash.
    pub path: String,
    /// Attributes and their values; one with an empty value is written without it.
    pub attributes: Vec<(&'static str, String)>,
}

/// The document, of those links that match every query (RFC 6690 section 4.1): `rt=VALUE`, `href=PATH` and so
/// on, where a `*` at the end matches any text. Queries without `=` are ignored, like unknown ones.
#[must_use]
pub fn document(links: &[Link], queries: &[String]) -> String {
    let wanted = |link: &&Link| {
        let asked = queries.iter().filter_map(|query| query.split_once('='));
        asked.into_iter().all(|(name, pattern)| link.has(name, pattern))
    };
    let mut out = String::new();
    for link in links.iter().filter(wanted) {
        if !out.is_empty() {
            out.push(',');
        }
        // Writing to a string does not fail.
        let _ = write!(out, "<{}>", link.path);
        for (name, value) in &link.attributes {
            let number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let _ = match value.as_str() {
                "" => write!(out, ";{name}"),
                _ if number => write!(out, ";{name}={value}"),
                _ => write!(out, ";{name}=\"{value}\""),
            };
        }
    }
    out
}

impl Link {
    fn has(&self, name: &str, pattern: &str) -> bool {
        let is = |value: &str| match pattern.strip_suffix('*') {
            Some(start) => value.starts_with(start),
            None => value == pattern,
        };
        if name == "href" {
            return is(&self.path);
        }
        // Values of rt, if and rel are lists.
        let mut values = self.attributes.iter().filter(|(other, _)| *other == name);
        values.any(|(_, value)| value.split(' ').any(is))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_written_and_found() {
        let links = [
            Link {
                path: "/ps".into(),
                attributes: vec![("rt", "core.ps".into()), ("ct", "40".into())],
            },
            Link {
                path: "/ps/a".into(),
                attributes: vec![("rt", "core.ps.data".into()), ("obs", String::new())],
            },
        ];
        let all = "</ps>;rt=\"core.ps\";ct=40,</ps/a>;rt=\"core.ps.data\";obs";
        let with = |query: &str| document(&links, &[query.to_owned()]);
        assert_eq!(document(&links, &[]), all);
        assert_eq!(with("rt=core.ps*"), all);
        assert_eq!(with("rt=core.ps"), "</ps>;rt=\"core.ps\";ct=40");
        assert_eq!(with("href=/ps/*"), "</ps/a>;rt=\"core.ps.data\";obs");
        assert_eq!(with("if=x"), "");
    }
}

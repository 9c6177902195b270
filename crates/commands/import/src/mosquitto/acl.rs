//! mosquitto's ACL file: `user`, `topic` and `pattern` lines.

use std::path::Path;

use fulmar_mqtt::topic::check_filter;

use super::files;
use super::report::{Error, SourceLine};

/// Whom an entry is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Whom {
    /// Clients without a user name: `topic` lines before the first `user`.
    Anonymous,
    /// A `topic` line after this user's.
    User(String),
    /// A `pattern` line: everybody.
    Everybody,
}

/// Permission that an entry gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Neither, whatever other entries say.
    Deny,
    /// To receive.
    Read,
    /// To publish.
    Write,
    /// Both.
    ReadWrite,
}

/// A `topic` or `pattern` line.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Where.
    pub place: SourceLine,
    /// Whom it is about.
    pub whom: Whom,
    /// Permission that it gives.
    pub access: Access,
    /// Topic filter; with placeholders if it is a pattern.
    pub filter: String,
}

/// The entries of a file, in its order.
///
/// # Errors
/// A line is malformed; mosquitto does not start with such a file either.
pub fn parse(file: &Path, text: &str) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    let mut topics_of = Whom::Anonymous;
    for (place, line) in files::lines(file, text) {
        let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let rest = rest.trim();
        let whom = match word {
            "user" if rest.is_empty() => {
                return Err(Error::malformed(&place, "user without a name"));
            }
            "user" => {
                topics_of = Whom::User(rest.to_owned());
                continue;
            }
            "topic" => topics_of.clone(),
            "pattern" => Whom::Everybody,
            other => {
                let text = format!("{other:?}: expected user, topic or pattern");
                return Err(Error::malformed(&place, text));
            }
        };
        let (access, filter) = access_and_filter(rest, &place)?;
        check_filter(filter)
            .map_err(|error| Error::malformed(&place, format!("topic {filter:?}: {error}")))?;
        entries.push(Entry { place, whom, access, filter: filter.to_owned() });
    }
    Ok(entries)
}

fn access_and_filter<'a>(rest: &'a str, place: &SourceLine) -> Result<(Access, &'a str), Error> {
    if rest.is_empty() {
        return Err(Error::malformed(place, "expected a topic"));
    }
    let Some((word, filter)) = rest.split_once(' ') else { return Ok((Access::ReadWrite, rest)) };
    let access = match word {
        "read" => Access::Read,
        "write" => Access::Write,
        "readwrite" => Access::ReadWrite,
        "deny" => Access::Deny,
        other => {
            let text = format!("{other:?}: expected read, write, readwrite or deny before a topic");
            return Err(Error::malformed(place, text));
        }
    };
    Ok((access, filter.trim()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn entries_belong_to_the_user_before_them_and_patterns_to_everybody() {
        let text = "topic read news\n# comment\nuser ann b\ntopic a/#\ntopic deny  with space\npattern write %u/x\n";
        let entries = parse(Path::new("acl"), text).unwrap();
        let ann = Whom::User("ann b".into());
        let seen: Vec<_> = entries
            .iter()
            .map(|entry| (&entry.whom, entry.access, entry.filter.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                (&Whom::Anonymous, Access::Read, "news"),
                (&ann, Access::ReadWrite, "a/#"),
                (&ann, Access::Deny, "with space"),
                (&Whom::Everybody, Access::Write, "%u/x"),
            ]
        );
        assert_eq!(entries[3].place.to_string(), "acl:6");
    }

    #[test]
    fn malformed_lines_are_named() {
        for (text, error) in [
            ("\nfoo bar", "acl:2: \"foo\": expected user"),
            ("topic", "acl:1: expected a topic"),
            ("topic foo bar", "acl:1: \"foo\": expected read"),
            ("pattern read a/#/b", "acl:1: topic \"a/#/b\""),
            ("user", "acl:1: user without a name"),
        ] {
            let got = parse(Path::new("acl"), text).unwrap_err().to_string();
            assert!(got.starts_with(error), "{got}");
        }
    }
}

//! mosquitto's password file: `USER:HASH` lines.

use std::path::Path;

use fulmar_broker::auth::check_hash;

use super::files;
use super::report::{Report, SourceLine};

/// A user.
#[derive(Clone, Debug, PartialEq)]
pub struct User {
    /// Where it comes from.
    pub place: SourceLine,
    /// The name.
    pub name: String,
    /// In a form that Fulmar's password file accepts.
    pub hash: String,
}

/// The users of a file. Like mosquitto, leaves out lines without a usable hash; the report has them.
pub fn parse(file: &Path, text: &str, report: &mut Report) -> Vec<User> {
    let mut users: Vec<User> = Vec::new();
    for (place, line) in files::lines(file, text) {
        let Some((name, hash)) = line.split_once(':').filter(|(name, _)| !name.is_empty()) else {
            report.not_translated(
                &place,
                "user",
                "the line has no colon; mosquitto ignores it, too",
            );
            continue;
        };
        // Further fields are ignored.
        let hash = hash.split(':').next().unwrap_or_default().trim();
        match check_hash(hash) {
            Ok(()) => {
                users.push(User { place, name: name.to_owned(), hash: hash.to_owned() });
            }
            Err(error) => {
                let text = format!("{name} has no usable hash ({error}): `fulmar passwd {name}`");
                report.not_translated(&place, "user", text);
            }
        }
    }
    users
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_and_unusable_lines_reported() {
        let hash = format!("$6$c2FsdA==${}==", "A".repeat(86));
        let text = format!("# users\n\nann:{hash}\nbob:plain\nnobody\n eve:{hash}:more\n:x\n");
        let mut report = Report::default();
        let users = parse(Path::new("p"), &text, &mut report);
        let names: Vec<_> =
            users.iter().map(|user| (user.name.as_str(), user.place.line)).collect();
        assert_eq!(names, [("ann", 3), ("eve", 6)]);
        assert!(users.iter().all(|user| user.hash == hash));
        let lines: Vec<_> = report.notes().iter().map(|note| note.place.line).collect();
        assert_eq!(lines, [4, 5, 7]);
    }
}

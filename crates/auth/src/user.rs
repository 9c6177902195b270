//! A client's user: the name, and who vouches for it.
//!
//! What a name means is decided by who vouches for it, never by how it is spelled. Every source of the operator's names
//! (a service, tokens, certificates, files, the identity store, CONNECT) passes [`User::named`]. Only the program
//! calls [`User::program`], and only the part of it that has external users [`User::external`].

use std::fmt;

/// Longest name of a user, in bytes.
pub const MAX_USER_NAME_BYTES: usize = 512;

/// Beginning of the text of the program and of external users. The text of no other user does.
const PREFIX: &str = "platform:";

/// Why a name cannot be a user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserNameError {
    /// It is empty.
    #[error("a user name must not be empty")]
    Empty,
    /// It is too long.
    #[error("a user name must have at most {MAX_USER_NAME_BYTES} bytes")]
    TooLong,
    /// It has a control character.
    #[error("a user name must not contain control characters")]
    Control,
    /// It begins like those of external users.
    #[error("user names that begin with {PREFIX} are reserved for the platform")]
    Reserved,
}

/// A client's user. It takes as much memory as its name.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct User(Box<str>);

/// A user's name with the one that vouches for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vouched<'a> {
    /// It is the program itself.
    Program,
    /// The part of the program that has external users; this is the name there.
    External(&'a str),
    /// The operator: this is the name.
    Named(&'a str),
}

impl User {
    /// One of the operator's names, from any source.
    ///
    /// # Errors
    /// It cannot be a name.
    pub fn named(name: &str) -> Result<User, UserNameError> {
        User::check_name(name).map(|()| User(name.into()))
    }

    /// Whether this can be one of the operator's names.
    ///
    /// # Errors
    /// Why not.
    pub fn check_name(name: &str) -> Result<(), UserNameError> {
        match name {
            "" => Err(UserNameError::Empty),
            _ if name.len() > MAX_USER_NAME_BYTES => Err(UserNameError::TooLong),
            _ if name.contains(char::is_control) => Err(UserNameError::Control),
            _ if name.starts_with(PREFIX) => Err(UserNameError::Reserved),
            _ => Ok(()),
        }
    }

    /// An external user; `None` if the name is empty or too long. Only for [`crate::ExternalUsers`] and their logins.
    #[must_use]
    pub fn external(name: &str) -> Option<User> {
        (1..=MAX_USER_NAME_BYTES)
            .contains(&name.len())
            .then(|| User(format!("{PREFIX}{name}").into()))
    }

    /// The program itself.
    #[must_use]
    pub fn program() -> User {
        User(PREFIX.into())
    }

    /// The user of a text that [`User::text`] made: in storage, and where an administrator names one. Never for a name
    /// that a client or a service sends.
    #[must_use]
    pub fn from_text(text: impl Into<Box<str>>) -> User {
        User(text.into())
    }

    /// An unambiguous text: the operator's name, or another one's behind a prefix that no such name has.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The name with the one that vouches for it.
    #[must_use]
    pub fn vouched(&self) -> Vouched<'_> {
        match self.0.strip_prefix(PREFIX) {
            Some("") => Vouched::Program,
            Some(name) => Vouched::External(name),
            None => Vouched::Named(&self.0),
        }
    }

    /// The name, if it is one of the operator's.
    #[must_use]
    pub fn operators(&self) -> Option<&str> {
        match self.vouched() {
            Vouched::Named(name) => Some(name),
            Vouched::Program | Vouched::External(_) => None,
        }
    }

    /// Whether this is the program itself.
    pub fn is_program(user: Option<&User>) -> bool {
        user.is_some_and(|user| user.vouched() == Vouched::Program)
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.vouched().fmt(f)
    }
}

/// The text of a user, if there is one: for logs and storage.
pub fn text_of(user: Option<&User>) -> Option<&str> {
    user.map(User::text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn no_name_that_is_sent_is_the_programs_or_an_external_users() {
        let long = "a".repeat(MAX_USER_NAME_BYTES + 1);
        for (name, error) in [
            ("", UserNameError::Empty),
            (&*long, UserNameError::TooLong),
            ("a\0", UserNameError::Control),
            ("a\u{85}", UserNameError::Control),
            (PREFIX, UserNameError::Reserved),
            ("platform:ann", UserNameError::Reserved),
        ] {
            assert_eq!(User::named(name), Err(error), "{name}");
        }
        for name in ["platform", "Platform:", "$SYS", "#", "%c", "a/b", "\u{202e}x", &long[1..]] {
            let user = User::named(name).unwrap();
            assert_eq!(user.vouched(), Vouched::Named(name));
            assert_eq!(User::from_text(user.text()), user);
        }
    }

    #[test]
    fn texts_are_unambiguous() {
        assert_eq!(User::external(""), None);
        let users = ["ann", ":", PREFIX].map(|name| User::external(name).unwrap());
        for user in users.into_iter().chain([User::program()]) {
            assert_eq!(User::from_text(user.text()), user);
            assert!(User::named(user.text()).is_err() && user.operators().is_none());
        }
        assert!(User::is_program(Some(&User::program())));
        assert!(!User::is_program(User::external("ann").as_ref()) && !User::is_program(None));
    }

    #[test]
    fn who_vouches_takes_no_memory() {
        assert_eq!(size_of::<Option<User>>(), size_of::<Option<Box<str>>>());
    }
}

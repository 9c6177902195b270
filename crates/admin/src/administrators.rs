//! Where administrative users are, and what their logins are: the server answers this for the API.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

pub use fulmar_identity::AdministrationRole as Role;

/// An administrative user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The name.
    pub name: String,
    /// Role of the user.
    pub role: Role,
}

/// Credentials of a request's sender.
#[derive(Clone, Copy)]
pub enum Credentials<'a> {
    /// `Authorization: Bearer TOKEN`.
    Token(&'a str),
    /// `Authorization: Basic`.
    Password {
        /// The name.
        user: &'a str,
        /// The password.
        password: &'a str,
    },
}

/// Why credentials do not make an administrative user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// They are wrong.
    Wrong,
    /// They belong to a user without such a role.
    NoRole,
    /// There were too many attempts, or the server is busy: later.
    TooOften,
}

/// An accepted login.
#[derive(Clone)]
pub struct Login {
    /// Whose it is.
    pub principal: Principal,
    /// Role of its user at a later time; `None` once the credentials are no longer valid. Answers from memory.
    pub holds: Holds,
}

/// Role that the user of a login has now.
pub type Holds = Arc<dyn Fn() -> Option<Role> + Send + Sync>;

fulmar_text::opaque_debug!(Login { principal });

/// An answer that may take the time of a hash.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Login, Refused>> + Send + 'a>>;

/// Where administrative users are.
pub trait Administrators: Send + Sync {
    /// To whom the credentials of a request from this address belong.
    fn log_in<'a>(&'a self, credentials: Credentials<'a>, from: IpAddr) -> Answer<'a>;
}

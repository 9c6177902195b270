//! A service of the operator's that decides about logins by name and password or by certificate, and about rights.
//!
//! Asking takes time, so it happens elsewhere and the answer comes as an event. Rights come with a login, and are
//! decided from memory afterwards.

use std::fmt;
use std::sync::Arc;

use crate::access::AccessRules;
use crate::decision::Decision;
use crate::logins::Applicant;
use crate::user::User;

/// A login about which the service is asked.
pub struct HookLogin<'a> {
    /// The user that it says it is.
    pub user: User,
    /// The password; `None` if a verified certificate has the name.
    pub password: Option<&'a [u8]>,
    /// The client identifier.
    pub client_id: &'a str,
    /// Address of the client, and the way of the answer to it.
    pub applicant: Applicant,
}

// Never the password.
fulmar_text::opaque_debug!(HookLogin<'_> { user });

/// Asks the service. Called on the workers, so nothing here waits.
pub trait LoginHook: Send + Sync + fmt::Debug {
    /// Whether it is asked about clients with certificates, too.
    fn decides_about_certificates(&self) -> bool;

    /// Decides at once, or sends the decision later.
    fn log_in(&self, login: HookLogin<'_>) -> Decision;

    /// The rules of this client, which came with its last login, if any did.
    fn rules(&self, user: &User, client_id: &str) -> Option<Arc<AccessRules>>;
}

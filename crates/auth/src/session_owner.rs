//! The rule whose a session is.

/// Rule whether sessions belong to users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionOwner {
    /// A client of another user that names an identifier in use is refused.
    #[default]
    User,
    /// Any client that is let in takes over any client identifier. What waited in a session of another
    /// user is dropped, not handed over.
    None,
}

//! What decides whether a client may do something.

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Because {
    /// The rule of this number, counted from 0, is the first that matches.
    Rule(usize),
    /// There are no rules.
    NoRules,
    /// No rule matches.
    Default,
    /// The topic begins with `$`.
    OwnTopics,
    /// The topic is for external users.
    ExternalTopics,
    /// The client is an external user.
    ExternalUser,
    /// A rule that came with the client's login ([`LoginHook`](super::LoginHook)).
    Login,
    /// The client is a part of the program.
    Program,
}

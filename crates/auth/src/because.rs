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
    /// A rule of a role of the identity store ([`IdentityTable`](super::IdentityTable)).
    Role {
        /// Number of the role among those of the client, counted from 0.
        role: usize,
        /// Whether the rule is about subscribing to the same text.
        literal: bool,
        /// Number of the rule among the role's for the action, counted from 0.
        rule: usize,
    },
    /// No rule of the client's roles matches: the store's default.
    RolesDefault,
    /// A rule that came with the client's login ([`LoginHook`](super::LoginHook)).
    Login,
    /// The client is a part of the program.
    Program,
}

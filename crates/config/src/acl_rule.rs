//! An access rule as it is written: in `[acl]`, and in answers of the service of `[auth.http]`.

use fulmar_broker::access::{Action, Rule, Who};
use serde::{Deserialize, Serialize};

/// One access rule; for all clients unless it names a user, a client or anonymous clients.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AclRule {
    allow: bool,
    topic: String,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    client: Option<String>,
    #[serde(default)]
    anonymous: bool,
    #[serde(default)]
    action: RuleAction,
    /// Whether the topic is compared as text.
    #[serde(default)]
    exact: bool,
}

impl AclRule {
    /// Number of subjects that the rule names; more than one is an error.
    pub fn subjects(&self) -> usize {
        let named = [self.user.is_some(), self.client.is_some(), self.anonymous];
        named.into_iter().filter(|&named| named).count()
    }

    /// The broker's form.
    pub fn rule(&self) -> Rule {
        let who = match (&self.user, &self.client) {
            (Some(user), _) => Who::User(user.as_str().into()),
            (None, Some(client)) => Who::Client(client.as_str().into()),
            (None, None) if self.anonymous => Who::Anonymous,
            (None, None) => Who::Anyone,
        };
        let action = match self.action {
            RuleAction::Both => None,
            RuleAction::Publish => Some(Action::Publish),
            RuleAction::Subscribe => Some(Action::Subscribe),
            RuleAction::Receive => Some(Action::Receive),
        };
        let filter = self.topic.as_str().into();
        Rule { allow: self.allow, who, action, filter, exact: self.exact }
    }
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum RuleAction {
    #[default]
    Both,
    Publish,
    Subscribe,
    Receive,
}

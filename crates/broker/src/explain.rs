//! What decides whether a client may do something: the broker's own check, with its reason.

use fulmar_auth::Because;
use fulmar_auth::access::{Action, Subject};

use crate::broker::Broker;
use crate::read::Reader;

/// A decision and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Whether the client may do it.
    pub allowed: bool,
    /// Why.
    pub because: Because,
}

impl Broker {
    /// Whether this client may publish to `topic`, subscribe to it as a filter, or receive what is published there; and
    /// why.
    #[must_use]
    pub fn explain(&self, client: Reader<'_>, action: Action, topic: &str) -> Explanation {
        let subject = Subject { user: client.user, client_id: client.client_id };
        let access_control = self.access_control();
        let (allowed, because) = access_control.explain(subject, action, topic);
        Explanation { allowed, because }
    }
}

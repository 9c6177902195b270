//! What a role allows and denies.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

/// Action and subject of a rule, named as in mosquitto's dynamic security.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AclKind {
    /// Messages that the client publishes.
    PublishClientSend,
    /// Messages that the client receives.
    PublishClientReceive,
    /// Subscriptions to the filter that is the same text.
    SubscribeLiteral,
    /// Subscriptions to filters that the rule's filter includes.
    SubscribePattern,
    /// The end of subscriptions to the filter that is the same text.
    UnsubscribeLiteral,
    /// The end of subscriptions to filters that the rule's filter includes.
    UnsubscribePattern,
}

fulmar_text::names!(
    AclKind:
    PublishClientSend = "publishClientSend",
    PublishClientReceive = "publishClientReceive",
    SubscribeLiteral = "subscribeLiteral",
    SubscribePattern = "subscribePattern",
    UnsubscribeLiteral = "unsubscribeLiteral",
    UnsubscribePattern = "unsubscribePattern",
);

impl AclKind {
    /// The kind with this name, in any case, as mosquitto reads it.
    pub fn from_name(name: &str) -> Option<AclKind> {
        AclKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }
}

/// One rule of a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl {
    /// Action that the rule is about.
    pub kind: AclKind,
    /// Topic filter.
    pub topic: Box<str>,
    /// Among the rules of its kind, the highest that matches decides.
    pub priority: i32,
    /// Whether it allows or denies.
    pub allow: bool,
}

/// Action that a default is about, named as in mosquitto's dynamic security.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// `publishClientSend`.
    PublishClientSend,
    /// `publishClientReceive`.
    PublishClientReceive,
    /// `subscribe`.
    Subscribe,
    /// `unsubscribe`.
    Unsubscribe,
}

fulmar_text::names!(
    AccessKind:
    PublishClientSend = "publishClientSend",
    PublishClientReceive = "publishClientReceive",
    Subscribe = "subscribe",
    Unsubscribe = "unsubscribe",
);

impl AccessKind {
    /// The kind with this name, in any case.
    pub fn from_name(name: &str) -> Option<AccessKind> {
        AccessKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }
}

/// Access where no rule matches. Topics that begin with `$CONTROL` are always denied then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DefaultAccess {
    /// Whether clients may publish.
    pub publish_client_send: bool,
    /// Whether clients receive what their subscriptions bring.
    pub publish_client_receive: bool,
    /// Whether clients may subscribe.
    pub subscribe: bool,
    /// Whether clients may unsubscribe.
    pub unsubscribe: bool,
}

impl Default for DefaultAccess {
    /// Defaults of `mosquitto_ctrl dynsec init`.
    fn default() -> Self {
        DefaultAccess {
            publish_client_send: false,
            publish_client_receive: true,
            subscribe: false,
            unsubscribe: true,
        }
    }
}

impl DefaultAccess {
    /// The default for one kind.
    pub fn get(&self, kind: AccessKind) -> bool {
        match kind {
            AccessKind::PublishClientSend => self.publish_client_send,
            AccessKind::PublishClientReceive => self.publish_client_receive,
            AccessKind::Subscribe => self.subscribe,
            AccessKind::Unsubscribe => self.unsubscribe,
        }
    }

    pub(crate) fn set(&mut self, kind: AccessKind, allow: bool) {
        match kind {
            AccessKind::PublishClientSend => self.publish_client_send = allow,
            AccessKind::PublishClientReceive => self.publish_client_receive = allow,
            AccessKind::Subscribe => self.subscribe = allow,
            AccessKind::Unsubscribe => self.unsubscribe = allow,
        }
    }
}

/// A role of a client or group, or a group of a client, with its rank: the highest priority is asked first, of equal ones
/// the first name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranked {
    /// Name of the role or group.
    pub name: Box<str>,
    /// -1 where none was given, as in mosquitto.
    pub priority: i32,
}

impl Ranked {
    /// One with a priority.
    pub fn new(name: &str, priority: i32) -> Ranked {
        Ranked { name: name.into(), priority }
    }
}

/// Sorts by rank. Of one that is there twice, the first counts.
pub(crate) fn rank(list: &mut Vec<Ranked>) {
    let mut seen = std::collections::BTreeSet::new();
    list.retain(|ranked| seen.insert(ranked.name.clone()));
    list.sort_by(|a, b| (Reverse(a.priority), &a.name).cmp(&(Reverse(b.priority), &b.name)));
}

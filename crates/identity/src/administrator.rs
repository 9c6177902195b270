//! The role of an administrator who may do everything.

use crate::acl::{Acl, AclKind};
use crate::entities::{Role, Texts};

/// A role that allows everything, the store's own commands, `$SYS` and `fulmar/` included.
pub fn administrator_role() -> Role {
    let kinds = [
        AclKind::PublishClientSend,
        AclKind::PublishClientReceive,
        AclKind::SubscribePattern,
        AclKind::UnsubscribePattern,
    ];
    let topics = ["$CONTROL/#", "$SYS/#", "fulmar/#", "#"];
    let acl = |kind, topic: &str| Acl { kind, topic: topic.into(), priority: 0, allow: true };
    let acls = kinds.iter().flat_map(|kind| topics.map(|topic| acl(*kind, topic))).collect();
    Role { name: "admin".into(), texts: Texts::default(), acls }
}

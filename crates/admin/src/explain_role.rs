//! Names the role of the store of identities, and its rule, that decide what a client may do; and what of its user keeps
//! it from connecting.

use fulmar_broker::Because;
use fulmar_broker::access::Action;
use fulmar_identity::{AclKind, Role, State};

/// A role that a client has.
struct Holding<'a> {
    role: &'a Role,
    /// The group through which it has the role.
    group: Option<&'a str>,
}

/// The roles of a user, or of anonymous clients, in the order in which they are asked: [`State::roles_of`] with the
/// groups' names.
fn holdings<'a>(state: &'a State, user: Option<&str>) -> Vec<Holding<'a>> {
    let of_group = |name: &'a str| {
        let roles = state.groups().get(name).into_iter().flat_map(|group| &group.roles);
        roles.map(move |own| (&*own.name, Some(name)))
    };
    let named: Vec<(&str, Option<&str>)> = match user {
        Some(user) => {
            let Some(client) = state.clients().get(user) else { return Vec::new() };
            let own = client.roles.iter().map(|own| (&*own.name, None));
            own.chain(client.groups.iter().flat_map(|group| of_group(&group.name))).collect()
        }
        None => state.anonymous_group().into_iter().flat_map(of_group).collect(),
    };
    let found = named
        .into_iter()
        .filter_map(|(name, group)| state.roles().get(name).map(|role| Holding { role, group }));
    found.collect()
}

/// The role and the rule that `because` is about, in words; `None` if it is about something else, or was changed
/// meanwhile.
pub(crate) fn rule(
    state: &State,
    user: Option<&str>,
    action: Action,
    because: Because,
) -> Option<String> {
    let Because::Role { role, literal, rule } = because else { return None };
    let kind = match (action, literal) {
        (Action::Publish, _) => AclKind::PublishClientSend,
        (Action::Receive, _) => AclKind::PublishClientReceive,
        (Action::Subscribe, false) => AclKind::SubscribePattern,
        (Action::Subscribe, true) => AclKind::SubscribeLiteral,
    };
    let holdings = holdings(state, user);
    let Holding { role, group } = holdings.get(role)?;
    let acl = role.acls.iter().filter(|acl| acl.kind == kind).nth(rule)?;
    let through = group.map(|group| format!(" of group {group:?}")).unwrap_or_default();
    let effect = if acl.allow { "allow" } else { "deny" };
    let verb = match action {
        Action::Publish => "publish",
        Action::Receive => "receive",
        Action::Subscribe => "subscribe",
    };
    Some(format!("role {:?}{through}: {effect} {verb} {}", role.name, acl.topic))
}

/// The part of the user's entry that keeps a client from connecting.
pub(crate) fn refusal(state: &State, user: Option<&str>, client_id: &str) -> Option<String> {
    let name = user?;
    if state.removed().contains_key(name) {
        return Some(format!(
            "the user {name:?} was removed, and is refused: fulmar ctl users remove {name} --forget ends that"
        ));
    }
    let client = state.clients().get(name)?;
    let disabled = client.disabled.then(|| {
        format!("the user {name:?} is disabled, and cannot connect: fulmar ctl users change {name} --enable")
    });
    let own = client.client_id.as_deref().filter(|own| *own != client_id);
    let other = own.map(|own| {
        format!("the user {name:?} can only connect with the client identifier {own:?}")
    });
    disabled.or(other)
}

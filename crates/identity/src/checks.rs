//! What holds for names, texts and rules, whoever sends them.

use std::collections::BTreeSet;

use fulmar_broker::{MAX_USER_NAME_BYTES, User, UserNameError};
use fulmar_mqtt::topic::check_filter;

use crate::acl::{Acl, AclKind, Ranked, rank};
use crate::command::Refused;
use crate::entities::Texts;
use crate::limits::{
    MAX_ACLS_PER_ROLE, MAX_NAME_BYTES, MAX_RANKED, MAX_TEXT_BYTES, MAX_TOPIC_BYTES,
};

pub(crate) fn name(what: &'static str, name: &str) -> Result<(), Refused> {
    let good = (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.contains(char::is_control);
    if good { Ok(()) } else { Err(Refused::Name { what, max: MAX_NAME_BYTES }) }
}

pub(crate) fn username(text: &str) -> Result<(), Refused> {
    User::check_name(text).map_err(|error| match error {
        UserNameError::Reserved => Refused::ReservedName,
        _ => Refused::Name { what: "Username", max: MAX_USER_NAME_BYTES },
    })
}

/// The client identifier; an empty one is none.
pub(crate) fn client_id(id: Option<Box<str>>) -> Result<Option<Box<str>>, Refused> {
    match id {
        Some(id) if id.is_empty() => Ok(None),
        Some(id) => name("Client ID", &id).map(|()| Some(id)),
        None => Ok(None),
    }
}

fn text(what: &'static str, text: Option<&str>) -> Result<(), Refused> {
    let long = text.is_some_and(|text| text.len() > MAX_TEXT_BYTES);
    if long { Err(Refused::TooLong { what, max: MAX_TEXT_BYTES }) } else { Ok(()) }
}

pub(crate) fn texts(texts: &Texts) -> Result<(), Refused> {
    text("the text name", texts.name.as_deref())?;
    text("the text description", texts.description.as_deref())
}

/// Sorts a list by rank, and checks its length.
pub(crate) fn ranked(what: &'static str, list: &mut Vec<Ranked>) -> Result<(), Refused> {
    rank(list);
    if list.len() > MAX_RANKED { Err(Refused::TooMany { what, max: MAX_RANKED }) } else { Ok(()) }
}

pub(crate) fn acl(acl: &Acl) -> Result<(), Refused> {
    if acl.topic.len() > MAX_TOPIC_BYTES {
        return Err(Refused::TooLong { what: "the ACL's topic", max: MAX_TOPIC_BYTES });
    }
    check_filter(&acl.topic).map_err(|_| Refused::AclTopic)
}

/// Sorts a role's rules by kind and falling priority, and checks them. Of two with one topic, the first counts.
pub(crate) fn acls(list: &mut Vec<Acl>) -> Result<(), Refused> {
    let mut seen = BTreeSet::new();
    list.retain(|acl| seen.insert((acl.kind, acl.topic.clone())));
    list.iter().try_for_each(acl)?;
    // Stable: of equal priorities, the older rule comes first, as in mosquitto.
    list.sort_by_key(|acl: &Acl| (acl.kind, std::cmp::Reverse(acl.priority)));
    if list.len() > MAX_ACLS_PER_ROLE {
        return Err(Refused::TooMany { what: "rules in this role", max: MAX_ACLS_PER_ROLE });
    }
    Ok(())
}

/// The place of a rule in a role's list.
pub(crate) fn acl_at(list: &[Acl], kind: AclKind, topic: &str) -> Option<usize> {
    list.iter().position(|acl| acl.kind == kind && &*acl.topic == topic)
}

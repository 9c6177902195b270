//! Commands for roles.

use serde_json::{Map, Value, json};

use super::json::{Fields, Outcome, add_texts, apply, shown};
use crate::acl::{Acl, AclKind};
use crate::command::{Command, Refused, RoleChanges};
use crate::entities::Role;
use crate::service::Desk;

fn name(fields: Fields<'_>) -> Result<&str, String> {
    fields.required("rolename", "rolename")
}

/// The rules of a list; as in mosquitto, what is none is left out.
fn acls(fields: Fields<'_>) -> Option<Vec<Acl>> {
    let acl = |item: &Value| {
        let item = Fields(item.as_object()?);
        let kind = AclKind::from_name(item.text("acltype")?)?;
        Some(acl(item, kind, item.text("topic")?))
    };
    fields.array("acls").map(|list| list.iter().filter_map(acl).collect())
}

fn acl(fields: Fields<'_>, kind: AclKind, topic: &str) -> Acl {
    let allow = fields.bool("allow").unwrap_or(false);
    Acl { kind, topic: topic.into(), priority: fields.priority(0), allow }
}

pub(super) fn create(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = name(fields)?.into();
    let texts = fields.texts()?;
    let acls = acls(fields).unwrap_or_default();
    apply(desk, Command::CreateRole(Role { name, texts, acls }))
}

pub(super) fn delete(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    apply(desk, Command::DeleteRole(name(fields)?.into()))
}

pub(super) fn modify(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = name(fields)?;
    if !desk.read(|state| state.roles().contains_key(name)) {
        return Err("Role does not exist".into());
    }
    let changes = RoleChanges {
        text_name: fields.owned("textname"),
        text_description: fields.owned("textdescription"),
        acls: acls(fields),
    };
    apply(desk, Command::ModifyRole(name.into(), changes))
}

/// The role, and kind and topic of a rule.
fn rule<'a>(desk: &Desk, fields: Fields<'a>) -> Result<(&'a str, AclKind, &'a str), String> {
    let name = name(fields)?;
    if !desk.read(|state| state.roles().contains_key(name)) {
        return Err(Refused::RoleNotFound.to_string());
    }
    let kind = fields.required("acltype", "acltype")?;
    let kind = AclKind::from_name(kind).ok_or("Unknown acltype")?;
    Ok((name, kind, fields.required("topic", "topic")?))
}

pub(super) fn add_acl(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let (name, kind, topic) = rule(desk, fields)?;
    apply(desk, Command::AddRoleAcl(name.into(), acl(fields, kind, topic)))
}

pub(super) fn remove_acl(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let (name, kind, topic) = rule(desk, fields)?;
    apply(desk, Command::RemoveRoleAcl(name.into(), kind, topic.into()))
}

pub(super) fn get(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = name(fields)?;
    let found = desk.read(|state| state.roles().get(name).map(|role| whole(role)));
    let role = found.ok_or_else(|| Refused::RoleNotFound.to_string())?;
    Ok(Some(json!({ "role": role })))
}

pub(super) fn list(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    desk.read(|state| {
        fields.part("roles", state.roles().values(), |role, verbose| {
            shown(role, &role.name, verbose, whole)
        })
    })
}

fn whole(role: &Role) -> Value {
    let mut object = Map::new();
    object.insert("rolename".into(), (*role.name).into());
    add_texts(&mut object, &role.texts);
    let acl = |acl: &Acl| json!({ "acltype": acl.kind.name(), "topic": acl.topic, "priority": acl.priority, "allow": acl.allow });
    object.insert("acls".into(), role.acls.iter().map(acl).collect());
    Value::Object(object)
}

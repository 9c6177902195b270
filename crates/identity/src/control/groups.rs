//! Commands for groups.

use serde_json::{Map, Value, json};

use super::json::{Fields, Outcome, add_texts, apply, ranked, shown};
use crate::acl::Ranked;
use crate::command::{Command, GroupChanges, Refused};
use crate::entities::Group;
use crate::service::Desk;
use crate::state::State;

fn name(fields: Fields<'_>) -> Result<&str, String> {
    fields.required("groupname", "groupname")
}

pub(super) fn create(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = name(fields)?.into();
    let texts = fields.texts()?;
    let roles = fields.roles()?.unwrap_or_default();
    apply(desk, Command::CreateGroup(Group { name, texts, roles }))
}

pub(super) fn delete(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    apply(desk, Command::DeleteGroup(name(fields)?.into()))
}

pub(super) fn modify(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = name(fields)?;
    if !desk.read(|state| state.groups().contains_key(name)) {
        return Err(Refused::GroupNotFound.to_string());
    }
    let clients = fields.clients()?;
    let exists = |client: &Ranked| desk.read(|state| state.clients().contains_key(&client.name));
    if clients.as_ref().is_some_and(|clients| !clients.iter().all(exists)) {
        return Err("'clients' contains an object with a 'username' that does not exist".into());
    }
    let changes = GroupChanges {
        text_name: fields.owned("textname"),
        text_description: fields.owned("textdescription"),
        roles: fields.roles()?,
        clients,
    };
    apply(desk, Command::ModifyGroup(name.into(), changes))
}

pub(super) fn add_client(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let username = fields.required("username", "username")?.into();
    let group = name(fields)?.into();
    let priority = fields.priority(-1);
    apply(desk, Command::AddGroupClient { group, username, priority })
}

pub(super) fn remove_client(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let username = fields.required("username", "username")?.into();
    let group = name(fields)?.into();
    apply(desk, Command::RemoveGroupClient { group, username })
}

pub(super) fn add_role(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let group = name(fields)?.into();
    let role = fields.required("rolename", "rolename")?;
    apply(desk, Command::AddGroupRole(group, Ranked::new(role, fields.priority(-1))))
}

pub(super) fn remove_role(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let group = name(fields)?.into();
    let role = fields.required("rolename", "rolename")?;
    apply(desk, Command::RemoveGroupRole(group, role.into()))
}

pub(super) fn set_anonymous(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    // mosquitto cannot unset it; an empty name, which its answer has when there is none, does.
    let name = Some(name(fields)?).filter(|name| !name.is_empty());
    apply(desk, Command::SetAnonymousGroup(name.map(Into::into)))
}

pub(super) fn get(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = name(fields)?;
    let found = desk.read(|state| state.groups().get(name).map(|group| whole(state, group)));
    let group = found.ok_or_else(|| Refused::GroupNotFound.to_string())?;
    Ok(Some(json!({ "group": group })))
}

pub(super) fn list(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    desk.read(|state| {
        fields.part("groups", state.groups().values(), |group, verbose| {
            shown(group, &group.name, verbose, |group| whole(state, group))
        })
    })
}

fn whole(state: &State, group: &Group) -> Value {
    let mut object = Map::new();
    object.insert("groupname".into(), (*group.name).into());
    add_texts(&mut object, &group.texts);
    let members = state.members(&group.name);
    let clients: Value = members.iter().map(|own| json!({ "username": own.name })).collect();
    object.insert("clients".into(), clients);
    object.insert("roles".into(), ranked(&group.roles, "rolename"));
    Value::Object(object)
}

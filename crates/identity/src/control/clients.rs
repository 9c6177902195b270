//! Commands for clients.

use serde_json::{Map, Value, json};

use super::json::{Fields, Outcome, add_texts, apply, hashed, ranked, shown};
use crate::acl::Ranked;
use crate::command::{ClientChanges, Command, Refused};
use crate::entities::Client;
use crate::service::Desk;

fn username(fields: Fields<'_>) -> Result<&str, String> {
    fields.required("username", "username")
}

/// The name of a client that exists: checked before a password is hashed for nothing.
fn known<'a>(desk: &Desk, fields: Fields<'a>) -> Result<&'a str, String> {
    let name = username(fields)?;
    let known = desk.read(|state| state.clients().contains_key(name));
    if known { Ok(name) } else { Err(Refused::ClientNotFound.to_string()) }
}

pub(super) fn create(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = username(fields)?;
    let password = fields.optional("password", "password")?;
    let client_id = fields.optional("clientid", "client id")?.map(Into::into);
    let texts = fields.texts()?;
    let roles = fields.roles()?.unwrap_or_default();
    let groups = fields.groups()?.unwrap_or_default();
    desk.read(|state| state.check_new_client(name)).map_err(|refused| refused.to_string())?;
    let password = password.map(|password| hashed(desk, password)).transpose()?;
    let username = name.into();
    let client = Client { username, client_id, texts, roles, groups, ..Client::default() };
    apply(desk, Command::CreateClient(client.with_password(password)))
}

pub(super) fn delete(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = username(fields)?.into();
    // Not mosquitto's.
    let forget = fields.bool("forget").unwrap_or(false);
    apply(desk, if forget { Command::ForgetClient(name) } else { Command::DeleteClient(name) })
}

pub(super) fn set_disabled(desk: &mut Desk, fields: Fields<'_>, disabled: bool) -> Outcome {
    let changes = ClientChanges { disabled: Some(disabled), ..ClientChanges::default() };
    apply(desk, Command::ModifyClient(username(fields)?.into(), changes))
}

pub(super) fn set_id(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = username(fields)?;
    let id = fields.optional("clientid", "client ID")?.map(Into::into);
    let changes = ClientChanges { client_id: Some(id), ..ClientChanges::default() };
    apply(desk, Command::ModifyClient(name.into(), changes))
}

pub(super) fn set_password(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    username(fields)?;
    let password = fields.required("password", "password")?;
    if password.is_empty() {
        return Err("Empty password is not allowed".into());
    }
    let name = known(desk, fields)?;
    let password = Some(hashed(desk, password)?);
    let changes = ClientChanges { password, ..ClientChanges::default() };
    apply(desk, Command::ModifyClient(name.into(), changes))
}

pub(super) fn modify(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = known(desk, fields)?;
    let password = fields.text("password").filter(|password| !password.is_empty());
    let groups = fields.groups()?;
    let exists = |group: &Ranked| desk.read(|state| state.groups().contains_key(&group.name));
    if groups.as_ref().is_some_and(|groups| !groups.iter().all(exists)) {
        return Err("'groups' contains an object with a 'groupname' that does not exist".into());
    }
    let changes = ClientChanges {
        client_id: fields.text("clientid").map(|id| Some(id.into())),
        password: password.map(|password| hashed(desk, password)).transpose()?,
        text_name: fields.owned("textname"),
        text_description: fields.owned("textdescription"),
        roles: fields.roles()?,
        groups,
        ..ClientChanges::default()
    };
    apply(desk, Command::ModifyClient(name.into(), changes))
}

pub(super) fn add_role(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = username(fields)?;
    let role = fields.required("rolename", "rolename")?;
    let role = Ranked::new(role, fields.priority(-1));
    known(desk, fields)?;
    apply(desk, Command::AddClientRole(name.into(), role))
}

pub(super) fn remove_role(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = username(fields)?;
    let role = fields.required("rolename", "rolename")?;
    apply(desk, Command::RemoveClientRole(name.into(), role.into()))
}

pub(super) fn get(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let name = username(fields)?;
    let found = desk.read(|state| state.clients().get(name).map(|client| whole(client)));
    let client = found.ok_or_else(|| Refused::ClientNotFound.to_string())?;
    Ok(Some(json!({ "client": client })))
}

pub(super) fn list(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    desk.read(|state| {
        fields.part("clients", state.clients().values(), |client, verbose| {
            shown(client, &client.username, verbose, whole)
        })
    })
}

fn whole(client: &Client) -> Value {
    let mut object = Map::new();
    object.insert("username".into(), (*client.username).into());
    if let Some(id) = &client.client_id {
        object.insert("clientid".into(), (**id).into());
    }
    add_texts(&mut object, &client.texts);
    if client.disabled {
        object.insert("disabled".into(), true.into());
    }
    object.insert("roles".into(), ranked(&client.roles, "rolename"));
    object.insert("groups".into(), ranked(&client.groups, "groupname"));
    Value::Object(object)
}

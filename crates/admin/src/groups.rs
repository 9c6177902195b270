//! Groups of users, whose members have the group's roles.

use std::collections::HashMap;

use fulmar_identity::{Command, Group as Stored, GroupChanges, Ranked, State as Identities, Texts};

use crate::identities::{names, ranked};
use crate::prelude::*;

/// A group of users.
#[derive(Serialize, ToSchema)]
pub(crate) struct Group {
    /// The name.
    name: String,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Roles, in the order in which their rules are asked.
    roles: Vec<String>,
    /// Number of its users.
    size: usize,
    /// Users; only if one group is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<Vec<String>>,
}

/// A page of groups, by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct Groups {
    groups: Vec<Group>,
    /// The next page's `cursor`; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A group to be added.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewGroup {
    /// The name.
    name: String,
    /// For people.
    description: Option<String>,
    /// Roles.
    #[serde(default)]
    roles: Vec<String>,
}

/// Changes of a group; what is absent stays.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupChange {
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// All its roles.
    #[serde(skip_serializing_if = "Option::is_none")]
    roles: Option<Vec<String>>,
    /// All its users.
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<Vec<String>>,
}

fn group(stored: &Stored, size: usize, members: Option<Vec<String>>) -> Group {
    Group {
        name: stored.name.to_string(),
        description: stored.texts.description.as_deref().map(str::to_owned),
        roles: names(&stored.roles),
        size,
        members,
    }
}

/// Groups without their users, whose numbers are counted in one pass: there may be 10,000 groups and 200,000 users.
fn counted<'a>(state: &Identities, stored: impl Iterator<Item = &'a Stored>) -> Vec<Group> {
    let stored: Vec<&Stored> = stored.collect();
    let mut sizes: HashMap<&str, usize> = stored.iter().map(|group| (&*group.name, 0)).collect();
    for own in state.clients().values().flat_map(|client| &client.groups) {
        if let Some(size) = sizes.get_mut(&*own.name) {
            *size += 1;
        }
    }
    stored.into_iter().map(|group_of| group(group_of, sizes[&*group_of.name], None)).collect()
}

fn unknown(name: &str) -> Problem {
    Problem::not_found(format!(
        "there is no group {name:?}; GET /groups, or fulmar ctl groups list, lists them"
    ))
}

/// Groups of users
#[utoipa::path(get, path = "/groups", params(PageQuery), responses((status = 200, body = Groups)))]
pub(crate) async fn list(
    Administrator(app, _): Administrator,
    Paged { page, wanted: Everything {} }: Paged<Everything>,
) -> Result<Json<Groups>> {
    let part = |state: &Identities, after: After<'_>| {
        let stored = state.groups().range::<str, _>(after).take(SLICE);
        counted(state, stored.map(|(_, stored)| &**stored))
    };
    let (groups, next) = app.page_by_name(&page, part, |group| group.name.clone()).await?;
    Ok(Json(Groups { groups, next }))
}

/// One group with its users
#[utoipa::path(get, path = "/groups/{name}", params(("name" = String, Path, description = "Group")), responses((status = 200, body = Group)))]
pub(crate) async fn show(
    Administrator(app, _): Administrator,
    Name(name): Name,
) -> Result<Json<Group>> {
    let found = app.identities.read(|state| {
        let stored = state.groups().get(&*name)?;
        let members = names(&state.members(&name));
        Some(group(stored, members.len(), Some(members)))
    });
    found.map(Json).ok_or_else(|| unknown(&name))
}

/// Add a group
#[utoipa::path(post, path = "/groups", request_body = NewGroup, responses((status = 201, description = "It is added")))]
pub(crate) async fn add(
    Administrator(app, caller): Administrator,
    Json(new): Json<NewGroup>,
) -> Result<StatusCode> {
    let NewGroup { name, description, roles } = new;
    let detail = json!({ "roles": roles });
    let stored = Stored {
        name: name.as_str().into(),
        texts: Texts { name: None, description: description.map(Into::into) },
        roles: ranked(&roles, &[]),
    };
    let change = Change { caller, action: "group.add", object: name, detail };
    app.change_identities(change, Command::CreateGroup(stored)).await?;
    Ok(StatusCode::CREATED)
}

/// Change a group
///
/// At once also for connected clients.
#[utoipa::path(patch, path = "/groups/{name}", request_body = GroupChange, params(("name" = String, Path, description = "Group")), responses((status = 204, description = "It is changed")))]
pub(crate) async fn change(
    Administrator(app, caller): Administrator,
    Name(name): Name,
    Json(new): Json<GroupChange>,
) -> Result<StatusCode> {
    let before = app.identities.read(|state| {
        let stored = state.groups().get(&*name)?;
        Some((stored.roles.clone(), state.members(&name)))
    });
    let (roles, members): (Vec<Ranked>, Vec<Ranked>) = before.ok_or_else(|| unknown(&name))?;
    let detail =
        json!({ "before": { "roles": names(&roles), "members": names(&members) }, "after": new });
    let changes = GroupChanges {
        text_description: new.description.map(Into::into),
        roles: new.roles.map(|own| ranked(&own, &roles)),
        clients: new.members.map(|own| ranked(&own, &members)),
        ..GroupChanges::default()
    };
    let command = Command::ModifyGroup(name.as_str().into(), changes);
    let change = Change { caller, action: "group.change", object: name, detail };
    app.change_identities(change, command).await
}

/// Remove a group
#[utoipa::path(delete, path = "/groups/{name}", params(("name" = String, Path, description = "Group")), responses((status = 204, description = "It is removed")))]
pub(crate) async fn remove(
    Administrator(app, caller): Administrator,
    Name(name): Name,
) -> Result<StatusCode> {
    let command = Command::DeleteGroup(name.as_str().into());
    let change = Change { caller, action: "group.remove", object: name, detail: Value::Null };
    app.change_identities(change, command).await
}

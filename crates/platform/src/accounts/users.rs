//! A twin's users: its members and their roles.
//!
//! Accounts belong to the server, because one person may work for two utilities; a twin's admin creates accounts, and
//! gives and removes roles in this twin. The server's administrator removes accounts (`fulmar user remove`).

use fulmar_auth::User;
use fulmar_http::password_login;
use fulmar_identity::{Account, AccountChange, Command, Membership, NewEntry};
use serde_json::Value;

use super::changes::{PASSWORD_CHARACTERS, hash};
use crate::prelude::*;

/// A member of a twin.
#[derive(Serialize, ToSchema)]
pub(crate) struct TwinUser {
    name: Name,
    display_name: String,
    role: Role,
}

/// A new member.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewUser {
    name: Name,
    display_name: Option<Line>,
    /// For a new account.
    password: Text<8, 200>,
    role: Role,
}

/// A change of a user.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserChange {
    role: Role,
}

/// The twin's users
#[utoipa::path(get, path = "/{twin}/user", tag = "users",
    responses((status = 200, body = Page<TwinUser>)))]
pub(crate) async fn list(Call(app, member): Call, conditions: Conditions) -> Answer {
    member.may(Deed::Manage)?;
    let members = app.account_cache.members(&member.twin);
    let items = members.into_iter().map(|(account, role)| TwinUser {
        name: account.name.clone(),
        display_name: account.display_name.to_string(),
        role,
    });
    conditions.json(&Page { items: items.collect(), next: None })
}

/// Create an account as a member of the twin
#[utoipa::path(post, path = "/{twin}/user", tag = "users", request_body = NewUser,
    responses((status = 201, body = TwinUser)))]
pub(crate) async fn add(Call(app, member): Call, Body(new): Body<NewUser>) -> Answer {
    member.may(Deed::Administer)?;
    debug_assert!(PASSWORD_CHARACTERS.contains(&new.password.chars().count()));
    let password = new.password.to_string();
    let by = User::external(member.name()).ok_or_else(|| Problem::missing("user"))?;
    let hash = password_login::hash(&app.settings.logins, &by, move || hash(&password)).await??;
    let display_name = new.display_name.map_or_else(|| new.name.to_string(), |n| n.to_string());
    let account = Account {
        name: (*new.name).into(),
        display_name: display_name.clone().into(),
        password: Some(hash),
        created_ms: Time::now().0,
        memberships: vec![Membership { twin: (*member.twin).into(), role: new.role.name().into() }],
        ..Account::default()
    };
    let user = TwinUser { name: new.name, display_name, role: new.role };
    let detail = serde_json::json!({ "twin": member.twin, "role": new.role });
    let entry = logged(&member, "user.add", &user.name, detail);
    app.change_account_as(entry, Command::CreateAccount(account)).await?;
    json(StatusCode::CREATED, &user)
}

/// Change a user's role
///
/// The twin's only admin cannot get another role (409), unless an admin of the server gives it.
#[utoipa::path(patch, path = "/{twin}/user/{name}", tag = "users", request_body = UserChange,
    responses((status = 200, body = TwinUser)))]
pub(crate) async fn change(Edit(app, member, name, _, change): Edit<UserChange>) -> Answer {
    member.may(Deed::Administer)?;
    let account = app.account_cache.account(&name).ok_or_else(|| Problem::missing("user"))?;
    if account.role_in(&member.twin).is_none() {
        return Err(Problem::missing("user"));
    }
    let role = change.role;
    let detail = serde_json::json!({ "twin": member.twin, "role": role });
    let entry = logged(&member, "user.change", &name, detail);
    app.change_account_as(entry, membership(&member, &name, Some(role))).await?;
    let (name, display_name) = (account.name.clone(), account.display_name.to_string());
    json(StatusCode::OK, &TwinUser { name, display_name, role })
}

/// Remove a user from the twin
///
/// The twin's only admin cannot be removed (409), except by an admin of the server.
#[utoipa::path(delete, path = "/{twin}/user/{name}", tag = "users", responses((status = 204)))]
pub(crate) async fn remove(Call(app, member): Call, Id(name): Id) -> Answer {
    member.may(Deed::Administer)?;
    let detail = serde_json::json!({ "twin": member.twin });
    let entry = logged(&member, "user.remove", &name, detail);
    app.change_account_as(entry, membership(&member, &name, None)).await?;
    done()
}

fn logged(member: &Member, action: &'static str, user: &Name, detail: Value) -> NewEntry {
    member.caller.change(action, user, detail)
}

/// The change of a user's role in the twin. It is refused if nobody could manage the twin's users afterwards; an admin of
/// the server still can.
fn membership(member: &Member, user: &Name, role: Option<Role>) -> Command {
    let admin = (!member.caller.account.server_admin).then(|| Role::Admin.name().into());
    let (twin, role) = ((*member.twin).into(), role.map(|role| role.name().into()));
    let change = AccountChange::Membership { twin, role, keep: admin };
    Command::ModifyAccount((**user).into(), change)
}

//! Users of the store of identities, some of which have a role in this API, and API tokens.
//!
//! A change that would leave nobody who can undo it is refused by the store ([`fulmar_identity::Refused::LastAdministrator`]).

use std::sync::Arc;

use fulmar_identity::{
    ApiToken, Client, ClientChanges, Command, NewToken as MadeToken, State, StoredPassword,
};

use crate::caller::Role;
use crate::identities::{names, ranked};
use crate::prelude::*;

/// Longest life of a token, in seconds: ten years.
const MAX_FOR_S: u64 = 10 * 366 * 86_400;
const PASSWORD_CHARACTERS: std::ops::RangeInclusive<usize> = 8..=200;

/// An API token, without its secret.
#[derive(Serialize, ToSchema)]
pub(crate) struct Token {
    /// Name.
    name: String,
    /// Role of the user.
    role: Role,
    /// When it was made, in milliseconds since the Unix epoch.
    created_ms: u64,
    /// When it expires; absent if never.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
}

/// All API tokens.
#[derive(Serialize, ToSchema)]
pub(crate) struct Tokens {
    tokens: Vec<Token>,
}

/// A token to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    /// Name, which the log of changes shows.
    name: String,
    /// Role of the user.
    role: Role,
    /// For how many seconds; for ever without this.
    #[schema(minimum = 1, maximum = 316224000)]
    for_s: Option<u64>,
}

/// A token that was made.
#[derive(Serialize, ToSchema)]
pub(crate) struct Secret {
    /// Name.
    name: String,
    /// The token, which is shown once.
    token: String,
}

/// API tokens
#[utoipa::path(get, path = "/tokens", responses((status = 200, body = Tokens)))]
pub(crate) async fn tokens(Administrator(app, _): Administrator) -> Json<Tokens> {
    let tokens = app.identities.read(|state| {
        let token = |token: &Arc<ApiToken>| Token {
            name: token.name.to_string(),
            role: token.role,
            created_ms: token.created_ms,
            expires_ms: token.expires_ms,
        };
        state.tokens().values().map(token).collect()
    });
    Json(Tokens { tokens })
}

/// Make an API token
#[utoipa::path(post, path = "/tokens", request_body = NewToken, responses((status = 201, body = Secret)))]
pub(crate) async fn add_token(
    Administrator(app, caller): Administrator,
    Json(new): Json<NewToken>,
) -> Result<(StatusCode, Json<Secret>)> {
    if !new.for_s.is_none_or(|seconds| (1..=MAX_FOR_S).contains(&seconds)) {
        return Err(Problem::invalid("for_s", format!("expected 1 to {MAX_FOR_S} seconds")));
    }
    let now = app.now_ms().cast_unsigned();
    let expires = new.for_s.map(|seconds| now + seconds * 1000);
    let made = ApiToken::generate(&new.name, new.role, now, expires);
    let MadeToken { row, secret } =
        made.ok_or_else(|| Problem::unavailable("the system has no random numbers"))?;
    let detail = json!({ "role": new.role, "for_s": new.for_s });
    let change = Change { caller, action: "token.add", object: new.name.clone(), detail };
    app.change_identities(change, Command::CreateToken(row)).await?;
    Ok((StatusCode::CREATED, Json(Secret { name: new.name, token: secret })))
}

/// Revoke an API token
#[utoipa::path(delete, path = "/tokens/{name}", params(("name" = String, Path, description = "Name of the token")), responses((status = 204, description = "It is no longer accepted")))]
pub(crate) async fn remove_token(
    Administrator(app, caller): Administrator,
    Name(name): Name,
) -> Result<StatusCode> {
    let command = Command::DeleteToken(name.as_str().into());
    let detail = serde_json::Value::Null;
    let change = Change { caller, action: "token.remove", object: name, detail };
    app.change_identities(change, command).await
}

fulmar_text::mirrors! {
    /// A user.
    #[derive(Serialize, ToSchema)]
    pub(crate) struct User (client: &Client) {
        /// The name.
        name: String = client.username.to_string(),
        /// The only client identifier with which it may connect; absent for any.
        #[serde(skip_serializing_if = "Option::is_none")]
        client_id: Option<String> = client.client_id.as_deref().map(str::to_owned),
        /// Whether it may not log in.
        disabled: bool = client.disabled,
        /// Role in this API; absent if it has none.
        #[serde(skip_serializing_if = "Option::is_none")]
        administration: Option<Role> = client.administration,
        /// Whether it has a password.
        has_password: bool = client.password.is_some(),
        /// Groups.
        groups: Vec<String> = names(&client.groups),
        /// Own roles for topics.
        roles: Vec<String> = names(&client.roles),
    }
}

/// A page of users, by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct Users {
    users: Vec<User>,
    /// Whether other user names are accepted, too, where anonymous clients may connect: there is no user yet that is not only
    /// for administration.
    admits_unknown_names: bool,
    /// The next page's `cursor`; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A user to be added.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewUser {
    /// The name.
    name: String,
    /// 8 to 200 characters.
    password: Option<String>,
    /// Role in this API.
    administration: Option<Role>,
    /// The only client identifier with which it may connect.
    client_id: Option<String>,
    /// Groups.
    #[serde(default)]
    groups: Vec<String>,
    /// Own roles for topics.
    #[serde(default)]
    roles: Vec<String>,
}

/// Changes of a user; what is absent stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserChange {
    /// 8 to 200 characters.
    password: Option<String>,
    /// Whether it may not log in.
    disabled: Option<bool>,
    /// Role in this API; null for none.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Role>)]
    administration: Option<Option<Role>>,
    /// The only client identifier with which it may connect; empty for any.
    client_id: Option<String>,
    /// All its groups.
    groups: Option<Vec<String>>,
    /// All its own roles for topics.
    roles: Option<Vec<String>>,
}

/// A field that is there, perhaps as null.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<Role>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Users in the store of identities
#[utoipa::path(get, path = "/users", params(PageQuery), responses((status = 200, body = Users)))]
pub(crate) async fn users(
    Administrator(app, _): Administrator,
    Paged { page, wanted: Everything {} }: Paged<Everything>,
) -> Result<Json<Users>> {
    let part = |state: &State, after: After<'_>| {
        let stored = state.clients().range::<str, _>(after).take(SLICE);
        stored.map(|(_, client)| User::from(&**client)).collect()
    };
    let (users, next) = app.page_by_name(&page, part, |user: &User| user.name.clone()).await?;
    let admits_unknown_names = app.broker.admits_unknown_names();
    Ok(Json(Users { users, admits_unknown_names, next }))
}

fn unknown(name: &str) -> Problem {
    Problem::not_found(format!(
        "there is no user {name:?}; GET /users, or fulmar ctl users list, lists them"
    ))
}

/// One user
#[utoipa::path(get, path = "/users/{name}", params(("name" = String, Path, description = "User")), responses((status = 200, body = User)))]
pub(crate) async fn user(
    Administrator(app, _): Administrator,
    Name(name): Name,
) -> Result<Json<User>> {
    let found =
        app.identities.read(|state| state.clients().get(&*name).map(|one| User::from(&**one)));
    found.map(Json).ok_or_else(|| unknown(&name))
}

/// A password's hash, made on a thread that may take its time.
async fn hashed(app: &App, password: Option<String>) -> Result<Option<StoredPassword>> {
    let Some(password) = password else { return Ok(None) };
    if !PASSWORD_CHARACTERS.contains(&password.chars().count()) {
        return Err(Problem::invalid("password", "expected 8 to 200 characters"));
    }
    let hasher = Arc::clone(app.identities.hasher());
    let hash = move || hasher.hash(password.as_bytes());
    match tokio::task::spawn_blocking(hash).await {
        Ok(Ok(hash)) => Ok(Some(hash)),
        _ => Err(Problem::unavailable("the password cannot be hashed now")),
    }
}

/// Add a user
#[utoipa::path(post, path = "/users", request_body = NewUser, responses((status = 201, description = "It is added")))]
pub(crate) async fn add_user(
    Administrator(app, caller): Administrator,
    Json(new): Json<NewUser>,
) -> Result<StatusCode> {
    let detail = json!({
        "administration": new.administration, "password": new.password.is_some(), "groups": new.groups,
        "roles": new.roles, "client_id": new.client_id,
    });
    let client = Client {
        username: new.name.as_str().into(),
        administration: new.administration,
        client_id: new.client_id.map(Into::into),
        groups: ranked(&new.groups, &[]),
        roles: ranked(&new.roles, &[]),
        ..Client::default()
    };
    let client = client.with_password(hashed(&app, new.password).await?);
    let change = Change { caller, action: "user.add", object: new.name, detail };
    app.change_identities(change, Command::CreateClient(client)).await?;
    Ok(StatusCode::CREATED)
}

/// Change a user
#[utoipa::path(patch, path = "/users/{name}", request_body = UserChange, params(("name" = String, Path, description = "User")), responses((status = 204, description = "It is changed")))]
pub(crate) async fn change_user(
    Administrator(app, caller): Administrator,
    Name(name): Name,
    Json(new): Json<UserChange>,
) -> Result<StatusCode> {
    let before = app.identities.read(|state| state.clients().get(&*name).map(Arc::clone));
    let before = before.ok_or_else(|| unknown(&name))?;
    let mut after = serde_json::Map::new();
    let mut put = |name: &str, value: Option<serde_json::Value>| {
        if let Some(value) = value {
            after.insert(name.to_owned(), value);
        }
    };
    put("administration", new.administration.map(|role| json!(role)));
    put("disabled", new.disabled.map(Into::into));
    put("client_id", new.client_id.as_deref().map(Into::into));
    put("groups", new.groups.as_ref().map(|groups| json!(groups)));
    put("roles", new.roles.as_ref().map(|roles| json!(roles)));
    let detail = json!({ "before": User::from(&*before), "after": after, "password": new.password.is_some() });
    let changes = ClientChanges {
        password: hashed(&app, new.password).await?,
        disabled: new.disabled,
        administration: new.administration,
        client_id: new.client_id.map(|id| Some(id.into())),
        groups: new.groups.map(|groups| ranked(&groups, &before.groups)),
        roles: new.roles.map(|roles| ranked(&roles, &before.roles)),
        ..ClientChanges::default()
    };
    let command = Command::ModifyClient(name.as_str().into(), changes);
    let change = Change { caller, action: "user.change", object: name, detail };
    app.change_identities(change, command).await
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Removal {
    /// Whether the name, removed now or before, becomes one that the store does not know, instead of one that is refused.
    #[serde(default)]
    forget: bool,
}

/// Remove a user
#[utoipa::path(delete, path = "/users/{name}", params(("name" = String, Path, description = "User"), Removal), responses((status = 204, description = "It is removed; the broker refuses the name, with any credentials, until it is created again or forgotten")))]
pub(crate) async fn remove_user(
    Administrator(app, caller): Administrator,
    Name(name): Name,
    Query(Removal { forget }): Query<Removal>,
) -> Result<StatusCode> {
    let user = name.as_str().into();
    let (command, detail) = match forget {
        true => (Command::ForgetClient(user), json!({ "forget": true })),
        false => (Command::DeleteClient(user), serde_json::Value::Null),
    };
    let change = Change { caller, action: "user.remove", object: name, detail };
    app.change_identities(change, command).await
}

//! Login, logout, and the current user.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use axum::extract::{ConnectInfo, Extension, State};
use fulmar_auth::User as BrokerUser;
use fulmar_http::password_login;
use fulmar_identity::{AccountChange, Command};
use fulmar_text::network::site as network;

use super::account_cache::Account;
use super::caller::Caller;
use super::membership::Membership;
use super::token::NewSession;
use crate::extract::STRANGERS_BYTES;
use crate::prelude::*;

const WRONG: &str = "wrong user name or password";

/// A login.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    /// The account's name.
    user: Text<1, 200>,
    /// Password.
    password: Text<1, 200>,
}

/// The session of a logged-in user.
#[derive(Serialize, ToSchema)]
pub(crate) struct Session {
    /// The token for `Authorization: Bearer …`, and the password for MQTT; shown once.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// When the token expires.
    expires_at: Time,
    /// The session's user.
    user: User,
}

/// An account, as its user sees it.
#[derive(Serialize, ToSchema)]
pub(crate) struct User {
    name: Name,
    display_name: String,
    /// The highest of its roles; null for an account without any.
    role: Option<Role>,
    /// Whether it is an admin of the server.
    server_admin: bool,
    /// The twins it is a member of.
    twins: Vec<Membership>,
}

impl User {
    fn new(app: &App, account: &Account) -> User {
        let twins = app.account_cache.twins_of(account);
        let held = |role: &Role| twins.iter().any(|twin| twin.role == *role);
        let role =
            if account.server_admin { Some(Role::Admin) } else { Role::ALL.into_iter().find(held) };
        User {
            name: account.name.clone(),
            display_name: account.display_name.to_string(),
            role,
            server_admin: account.server_admin,
            twins,
        }
    }
}

/// Log in
#[utoipa::path(post, path = "/session", tag = "session", request_body = Login, security(()),
    responses((status = 201, body = Session)))]
pub(crate) async fn log_in(
    State(app): State<App>,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    Body(login): Body<Login, STRANGERS_BYTES>,
) -> Answer {
    let address = peer.map(|Extension(ConnectInfo(peer))| peer.ip());
    let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    // No user has another name, and names that are remembered are short.
    let Ok(name) = login.user.parse::<Name>() else {
        tracing::info!(user = &*login.user, peer = %address, "login refused");
        return Err(Problem::unauthorized(WRONG));
    };
    let Some(account) = check(&app, name, address, &login.password).await? else {
        tracing::info!(user = &*login.user, peer = %address, "login refused");
        return Err(Problem::unauthorized(WRONG));
    };
    let now = Time::now();
    let session = NewSession {
        id: Uuid::new_v4().to_string(),
        account: account.name.clone(),
        issued_at: now,
        expires_at: now.plus_ms(i64::from(app.settings.token_lifetime_s) * SECOND_MS),
    };
    let token = app.signer.sign(&session)?;
    let expires_at = session.expires_at;
    let begin = AccountChange::BeginSession(fulmar_identity::Session {
        id: session.id.into(),
        issued_ms: now.0,
        expires_ms: expires_at.0,
    });
    app.change_tokens(vec![Command::ModifyAccount((*account.name).into(), begin)]).await?;
    let user = User::new(&app, &account);
    json(StatusCode::CREATED, &Session { token: Some(token), expires_at, user })
}

/// The account, if the password is right: then, or if it could not be checked, this is no failed login. One whose client
/// does not wait for the answer is: that is how a guess looks that was not right at once.
async fn check(app: &App, name: Name, address: IpAddr, password: &str) -> Result<Option<Account>> {
    let user = BrokerUser::external(&name).ok_or_else(|| Problem::unauthorized(WRONG))?;
    let who = (name, network(address));
    app.logins.take_token(who.clone(), Instant::now()).map_err(|seconds| {
        tracing::warn!(user = &*who.0, peer = %address, "too many failed logins");
        Problem::too_often("too many failed logins: wait", seconds)
    })?;
    let checked = password_login::log_in(&app.settings.logins, user, password, address).await;
    if !matches!(checked, Ok(None)) {
        app.logins.give_back(&who);
    }
    let Some(admitted) = checked? else { return Ok(None) };
    // Unless it has changed meanwhile.
    let same = |account: &Account| Some(account.password_credential()) == admitted.credential;
    Ok(app.account_cache.account(&who.0).filter(same))
}

/// The user who is logged in
#[utoipa::path(get, path = "/session", tag = "session", responses((status = 200, body = Session)))]
pub(crate) async fn show(State(app): State<App>, caller: Caller, conditions: Conditions) -> Answer {
    let user = User::new(&app, &caller.account);
    conditions.json(&Session { token: None, expires_at: caller.expires_at, user })
}

/// Log out
///
/// The token is invalid at once, for MQTT too.
#[utoipa::path(delete, path = "/session", tag = "session", responses((status = 204)))]
pub(crate) async fn log_out(State(app): State<App>, caller: Caller) -> Answer {
    end(&app, caller).await
}

/// Log out at a twin's path
///
/// The same as `DELETE /session`, for the meter-reading app.
#[utoipa::path(delete, path = "/{twin}/session", tag = "session", responses((status = 204)))]
pub(crate) async fn log_out_of_twin(Call(app, member): Call) -> Answer {
    end(&app, member.caller).await
}

async fn end(app: &App, caller: Caller) -> Answer {
    let name = (*caller.account.name).into();
    let end = AccountChange::End(caller.session.into());
    app.change_tokens(vec![Command::ModifyAccount(name, end)]).await?;
    done()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::admin::{Admin, UserToAdd};
    use crate::settings::Settings;

    const PASSWORD: &str = "correct horse";

    fn app(folder: &std::path::Path) -> App {
        let identities = crate::accounts::changes::open_identities(folder).unwrap();
        let (app, _) = App::open(folder, Settings::default(), identities, None).unwrap();
        let ann = UserToAdd { name: "ann", display_name: None, server_admin: true, role: None };
        Admin::within(app.clone()).add_user(&ann, PASSWORD).unwrap();
        app
    }

    async fn log_in_as_ann(app: &App) -> String {
        let login = serde_json::json!({"user": "ann", "password": PASSWORD});
        let login = serde_json::from_value(login).unwrap();
        let answer = log_in(State(app.clone()), None, Body(login)).await.unwrap();
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let session: serde_json::Value = serde_json::from_slice(&body).unwrap();
        session["token"].as_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn logins_and_logouts_change_their_session_and_load_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let app = app(folder.path());
        // In memory only: loading forgets it.
        let [twin, device, ann]: [Name; 3] = ["t", "van", "ann"].map(|name| name.parse().unwrap());
        app.account_cache.own(&twin, &device, Some(&ann));
        let token = log_in_as_ann(&app).await;
        let caller = app.caller(&token, Time::now()).unwrap();
        end(&app, caller).await.unwrap();
        assert!(app.caller(&token, Time::now()).is_none(), "logged out");
        assert_eq!(app.account_cache.owner(&twin, &device), Some(ann));
    }

    #[tokio::test]
    async fn a_login_beyond_the_limit_ends_the_oldest_session_at_once() {
        const MAX_SESSIONS: usize = 32;
        let folder = tempfile::tempdir().unwrap();
        let app = app(folder.path());
        let mut tokens = Vec::new();
        for _ in 0..=MAX_SESSIONS {
            tokens.push(log_in_as_ann(&app).await);
        }
        let good = tokens.iter().filter(|token| app.caller(token, Time::now()).is_some());
        assert_eq!(good.count(), MAX_SESSIONS);
        assert_eq!(app.account_cache.account("ann").unwrap().sessions.len(), MAX_SESSIONS);
        assert!(app.caller(&tokens[MAX_SESSIONS], Time::now()).is_some());
    }
}

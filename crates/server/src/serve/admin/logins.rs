//! To whom the credentials of a request to the administration API belong.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use fulmar_admin::{Administrators, Answer, Credentials, Login, Principal, Refused, Role};
use fulmar_broker::auth::MAX_PASSWORD_BYTES;
use fulmar_identity::{API_TOKEN_PREFIX, AdministrationRole, Client, Identities, PasswordHash};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::serve::platform::Platform;

/// Passwords that are checked at once, in 19 MiB each.
const MAX_HASHING: usize = 2;
/// How long a login waits for its turn.
const HASHING_WAIT: Duration = Duration::from_secs(5);

/// The users with an administration role: those of the store of identities, API tokens, and the platform's server admins.
pub(super) struct Users {
    identities: Arc<Identities>,
    platform: Option<Platform>,
    hashing: Arc<Semaphore>,
    remembered: Remembered,
}

/// The last right login of each user, as a keyed digest whose key never leaves the process: a login that is repeated needs
/// no hashing. Only users of the store are remembered, so others cannot fill it.
#[derive(Default)]
struct Remembered {
    keys: [RandomState; 2],
    right: Mutex<HashMap<Box<str>, [u64; 2]>>,
}

impl Remembered {
    /// Of name and password, and of what the store has for them: another password there makes it another digest.
    fn digest(&self, client: &Client, password: &str) -> [u64; 2] {
        let stored = client.password.as_ref().map(PasswordHash::as_str);
        self.keys.each_ref().map(|key| key.hash_one((&client.username, stored, password)))
    }

    fn has(&self, client: &Client, password: &str) -> bool {
        let digest = self.digest(client, password);
        client.password.is_some() && self.right.lock().get(&client.username) == Some(&digest)
    }

    fn add(&self, client: &Client, password: &str) {
        let digest = self.digest(client, password);
        self.right.lock().insert(client.username.clone(), digest);
    }
}

impl Users {
    pub(super) fn new(identities: Arc<Identities>, platform: Option<Platform>) -> Users {
        let hashing = Arc::new(Semaphore::new(MAX_HASHING));
        let remembered = Remembered::default();
        Users { identities, platform, hashing, remembered }
    }

    /// The user of the store with this password; `None` if there is none of this name, so that the platform is asked.
    async fn stored(&self, user: &str, password: &str) -> Option<Result<Login, Refused>> {
        let known = self.identities.read(|state| state.clients().get(user).map(Arc::clone));
        if known.is_none() && self.platform.is_some() {
            return None;
        }
        let remembered = known.as_ref().filter(|client| self.remembered.has(client, password));
        if let Some(client) = remembered {
            let (Some(found), false) = (client.administration, client.disabled) else {
                return Some(Err(Refused::Wrong));
            };
            let name = client.username.clone();
            let found = fulmar_identity::Principal { name, role: found, is_token: false };
            return Some(Ok(self.login(found, Arc::clone(client))));
        }
        // In the order in which they came. Networks whose logins have failed come here seldom: the API has refused them.
        let turn = Arc::clone(&self.hashing).acquire_owned();
        let turn = tokio::time::timeout(HASHING_WAIT, turn).await;
        let Ok(Ok(turn)) = turn else { return Some(Err(Refused::TooOften)) };
        let identities = Arc::clone(&self.identities);
        let (name, given) = (user.to_owned(), password.to_owned());
        let verify = move || {
            // Until the hash ends: an aborted login does not end it, and the next one would hash beside it.
            let _turn = turn;
            identities.verify_password(&name, &given)
        };
        let found = tokio::task::spawn_blocking(verify).await.unwrap_or_default();
        let (Some(found), Some(known)) = (found, known) else { return Some(Err(Refused::Wrong)) };
        self.remembered.add(&known, password);
        Some(Ok(self.login(found, known)))
    }

    fn login(&self, found: fulmar_identity::Principal, known: Arc<Client>) -> Login {
        let identities = Arc::clone(&self.identities);
        // As long as the user has this password.
        let holds = move || {
            identities.read(|state| {
                let now = state.clients().get(&known.username)?;
                let same = !now.disabled && now.password == known.password;
                now.administration.filter(|_| same).map(role)
            })
        };
        Login { principal: principal(found), holds: Arc::new(holds) }
    }

    fn api_token(&self, token: &str) -> Result<Login, Refused> {
        let found = self.identities.verify_token(token).map(principal).ok_or(Refused::Wrong)?;
        let (identities, token) = (Arc::clone(&self.identities), token.to_owned());
        let holds = move || identities.verify_token(&token).map(|found| role(found.role));
        Ok(Login { principal: found, holds: Arc::new(holds) })
    }
}

fn role(role: AdministrationRole) -> Role {
    match role {
        AdministrationRole::Viewer => Role::Viewer,
        AdministrationRole::Operator => Role::Operator,
        AdministrationRole::Administrator => Role::Administrator,
    }
}

fn principal(found: fulmar_identity::Principal) -> Principal {
    let name = if found.is_token { format!("token:{}", found.name) } else { found.name.into() };
    Principal { name, role: role(found.role) }
}

impl Administrators for Users {
    fn log_in<'a>(&'a self, credentials: Credentials<'a>, from: IpAddr) -> Answer<'a> {
        Box::pin(async move {
            if let Credentials::Password { user, password } = credentials
                && user.len().max(password.len()) > MAX_PASSWORD_BYTES
            {
                return Err(Refused::Wrong);
            }
            match credentials {
                Credentials::Token(token) if token.starts_with(API_TOKEN_PREFIX) => {
                    return self.api_token(token);
                }
                Credentials::Password { user, password } => {
                    if let Some(decided) = self.stored(user, password).await {
                        return decided;
                    }
                }
                Credentials::Token(_) => {}
            }
            let Some(platform) = &self.platform else { return Err(Refused::Wrong) };
            platform_user(platform, credentials, from).await
        })
    }
}

#[cfg(feature = "platform")]
async fn platform_user(
    platform: &Platform,
    credentials: Credentials<'_>,
    from: IpAddr,
) -> Result<Login, Refused> {
    use fulmar_platform::LoginRefused;
    let admitted = match credentials {
        Credentials::Token(token) => platform.admit(token, None).ok_or(Refused::Wrong)?,
        Credentials::Password { user, password } => {
            platform.log_in(user, password, from).await.map_err(|refused| match refused {
                LoginRefused::Wrong => Refused::Wrong,
                LoginRefused::TooOften | LoginRefused::Unavailable => Refused::TooOften,
            })?
        }
    };
    if !platform.is_server_admin(&admitted.user) {
        return Err(Refused::NoRole);
    }
    let principal = Principal { name: admitted.user.clone(), role: Role::Administrator };
    let platform = platform.clone();
    let holds = move || {
        let valid =
            platform.is_session(&admitted.session) && platform.is_server_admin(&admitted.user);
        valid.then_some(Role::Administrator)
    };
    Ok(Login { principal, holds: Arc::new(holds) })
}

#[cfg(not(feature = "platform"))]
async fn platform_user(
    platform: &Platform,
    _: Credentials<'_>,
    _: IpAddr,
) -> Result<Login, Refused> {
    platform.nobody()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::time::Instant;

    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    fn users(folder: &tempfile::TempDir) -> Users {
        let file = folder.path().join("identities.db");
        let identities = Identities::open(&file, Box::new(|_, _, _| {})).unwrap();
        Users::new(Arc::new(identities), None)
    }

    /// With one thread for what blocks, so that a test decides when a hash begins.
    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.max_blocking_threads(1).enable_time().build().unwrap()
    }

    #[test]
    fn a_hash_keeps_its_turn_although_its_login_is_aborted() {
        let folder = tempfile::tempdir().unwrap();
        let (users, runtime) = (users(&folder), runtime());
        runtime.block_on(async {
            let (end, ended) = oneshot::channel::<()>();
            let other_work = tokio::task::spawn_blocking(|| ended.blocking_recv());
            for _ in 0..MAX_HASHING {
                let mut login = pin!(users.stored("stranger", "guess"));
                assert!(login.as_mut().now_or_never().is_none(), "it waits for its hash");
            }
            // Both are gone, and neither has been hashed.
            assert_eq!(users.hashing.available_permits(), 0);
            let mut third = Box::pin(users.stored("stranger", "guess"));
            assert!(third.as_mut().now_or_never().is_none());
            end.send(()).unwrap();
            other_work.await.unwrap().unwrap();
            assert!(matches!(third.await, Some(Err(Refused::Wrong))));
            let deadline = Instant::now() + Duration::from_secs(60);
            while users.hashing.available_permits() < MAX_HASHING {
                assert!(Instant::now() < deadline, "a turn is lost");
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn a_password_that_nobody_can_have_is_not_hashed() {
        let folder = tempfile::tempdir().unwrap();
        let users = users(&folder);
        let long = "p".repeat(MAX_PASSWORD_BYTES + 1);
        for (user, password) in [("ann", &*long), (&*long, "guess")] {
            let login =
                users.log_in(Credentials::Password { user, password }, [127, 0, 0, 1].into());
            let refused = runtime().block_on(async { login.now_or_never() });
            assert!(matches!(refused, Some(Err(Refused::Wrong))), "at once");
        }
    }
}

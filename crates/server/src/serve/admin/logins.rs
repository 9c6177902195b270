//! To whom the credentials of a request to the administration API belong.

use std::net::IpAddr;
use std::sync::Arc;

use fulmar_admin::{Administrators, Answer, Credentials, Login, Principal, Refused, Role};
use fulmar_broker::User;
use fulmar_broker::auth::{Admitted, ExternalUsers, Logins, Vouched};
use fulmar_http::password_login;
use fulmar_identity::{API_TOKEN_PREFIX, Client, Identities};
use fulmar_transport::Clock;

/// The users with an administration role: those of the store of identities, API tokens, and the platform's server admins.
pub(super) struct Users {
    pub(super) logins: Arc<Logins>,
    pub(super) identities: Arc<Identities>,
    pub(super) external: Option<Arc<dyn ExternalUsers>>,
}

impl Users {
    /// The user with this password: of the store, an external one, or of the password file, who has no role.
    async fn with_password(
        &self,
        user: &str,
        password: &str,
        from: IpAddr,
    ) -> Result<Login, Refused> {
        let known = self.identities.read(|state| state.clients().get(user).map(Arc::clone));
        let external = self.external.as_ref().filter(|_| known.is_none());
        let is_external =
            external.is_some_and(|users| users.knows(user) || !self.logins.knows(user));
        let user = if is_external { User::external(user) } else { User::named(user).ok() };
        let user = user.ok_or(Refused::Wrong)?;
        match password_login::log_in(&self.logins, user, password, from).await {
            Ok(Some(admitted)) if is_external => self.server_admin(admitted),
            Ok(Some(_)) => self.with_role(known),
            Ok(None) => Err(Refused::Wrong),
            Err(_) => Err(Refused::TooOften),
        }
    }

    /// The login of an external user, if it is an administrator.
    fn server_admin(&self, admitted: Admitted) -> Result<Login, Refused> {
        let Admitted { user: Some(user), credential: Some(credential), .. } = admitted else {
            return Err(Refused::Wrong);
        };
        let (Vouched::External(name), Some(users)) = (user.vouched(), self.external.clone()) else {
            return Err(Refused::NoRole);
        };
        let name = name.to_owned();
        let principal = Principal { name: name.clone(), role: Role::Administrator };
        let holds = move || {
            (users.is_good(&credential) && users.is_server_admin(&name))
                .then_some(Role::Administrator)
        };
        holds().ok_or(Refused::NoRole)?;
        Ok(Login { principal, holds: Arc::new(holds) })
    }

    /// The login of a client of the store whose password is right. Those who may only use MQTT learn that.
    fn with_role(&self, known: Option<Arc<Client>>) -> Result<Login, Refused> {
        let known = known.ok_or(Refused::NoRole)?;
        if known.disabled {
            return Err(Refused::Wrong);
        }
        let role = known.administration.ok_or(Refused::NoRole)?;
        let name = known.username.clone();
        Ok(self.login(fulmar_identity::Principal { name, role, is_token: false }, known))
    }

    fn login(&self, found: fulmar_identity::Principal, known: Arc<Client>) -> Login {
        let identities = Arc::clone(&self.identities);
        // As long as the user has this password.
        let holds = move || {
            identities.read(|state| {
                let now = state.clients().get(&known.username)?;
                let same = !now.disabled && now.password == known.password;
                now.administration.filter(|_| same)
            })
        };
        Login { principal: principal(found), holds: Arc::new(holds) }
    }

    fn api_token(&self, token: &str) -> Result<Login, Refused> {
        let found = self.identities.verify_token(token).map(principal).ok_or(Refused::Wrong)?;
        let (identities, token) = (Arc::clone(&self.identities), token.to_owned());
        let holds = move || identities.verify_token(&token).map(|found| found.role);
        Ok(Login { principal: found, holds: Arc::new(holds) })
    }
}

fn principal(found: fulmar_identity::Principal) -> Principal {
    let name = if found.is_token { format!("token:{}", found.name) } else { found.name.into() };
    Principal { name, role: found.role }
}

impl Administrators for Users {
    fn log_in<'a>(&'a self, credentials: Credentials<'a>, from: IpAddr) -> Answer<'a> {
        Box::pin(async move {
            match credentials {
                Credentials::Token(token) if token.starts_with(API_TOKEN_PREFIX) => {
                    self.api_token(token)
                }
                Credentials::Token(token) => {
                    let admitted =
                        self.external.as_ref().and_then(|it| it.admit(token, None, Clock::wall()));
                    self.server_admin(admitted.ok_or(Refused::Wrong)?)
                }
                Credentials::Password { user, password } => {
                    self.with_password(user, password, from).await
                }
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    use fulmar_broker::auth::{AccessControl, MAX_PASSWORD_BYTES, PasswordFile, hash_password};
    use fulmar_identity::{Command, PasswordHasher};
    use futures_util::FutureExt as _;

    fn users(folder: &tempfile::TempDir) -> Users {
        let file = folder.path().join("passwords");
        std::fs::write(&file, format!("file:{}", hash_password(b"right").unwrap())).unwrap();
        let store = crate::serve::identities::Running::open(folder.path(), None).unwrap();
        let logins = Arc::new(Logins::new(Some(PasswordFile::load(&file).unwrap())));
        let mut access_control = AccessControl { logins, ..AccessControl::default() };
        store.add_to(&mut access_control, &fulmar_config::Auth::default(), folder.path()).unwrap();
        let identities = Arc::clone(store.get());
        let logins = access_control.logins;
        Users { logins, identities, external: None }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn an_administrator_does_not_wait_for_wrong_logins_from_many_networks() {
        let folder = tempfile::tempdir().unwrap();
        let users = Arc::new(users(&folder));
        let administration = Some(Role::Viewer);
        let password = PasswordHasher::new(None).hash(b"right").unwrap();
        let known = (0..250).map(|number| format!("user{number}")).chain(["ann".to_owned()]);
        let create = |name: String| {
            let client = Client { username: name.into(), administration, ..Client::default() };
            Command::CreateClient(client.with_password(Some(password.clone())))
        };
        users.identities.apply(known.map(create).collect()).unwrap();
        runtime().block_on(async {
            // More than could be hashed in the time that a login waits; every second name exists.
            let flood = (0..500_u16).map(|number| {
                let users = Arc::clone(&users);
                let [high, low] = number.to_be_bytes();
                tokio::spawn(async move {
                    let user = format!("{}{}", ["x", "user"][usize::from(low % 2)], number / 2);
                    let login = Credentials::Password { user: &user, password: "guess" };
                    users.log_in(login, [10, low, high, 1].into()).await.err()
                })
            });
            let flood: Vec<_> = flood.collect();
            tokio::task::yield_now().await;
            let right = Credentials::Password { user: "ann", password: "right" };
            let log_in = || users.log_in(right, [192, 0, 2, 1].into());
            assert!(log_in().await.is_ok());
            assert!(matches!(log_in().now_or_never(), Some(Ok(_))), "at once");
            for login in flood {
                login.abort();
                if let Ok(answer) = login.await {
                    assert_eq!(answer, Some(Refused::Wrong));
                }
            }
        });
    }

    #[test]
    fn only_who_shows_the_password_learns_that_the_user_has_no_role() {
        let folder = tempfile::tempdir().unwrap();
        let users = users(&folder);
        let password = PasswordHasher::new(None).hash(b"right").unwrap();
        let client = Client { username: "device".into(), ..Client::default() };
        let create = Command::CreateClient(client.with_password(Some(password)));
        users.identities.apply(vec![create]).unwrap();
        for user in ["device", "file", "nobody"] {
            for password in ["right", "wrong"] {
                let login =
                    users.log_in(Credentials::Password { user, password }, [127, 0, 0, 1].into());
                let refused = runtime().block_on(login).err();
                let is_right = user != "nobody" && password == "right";
                let expected = if is_right { Refused::NoRole } else { Refused::Wrong };
                assert_eq!(refused, Some(expected), "{user} {password}");
            }
        }
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

//! The platform's users as the broker's external users: by token, or by name and password.
//!
//! Tokens are checked on the worker, from memory, and so are logins that were right before. Another password costs tens of
//! milliseconds on purpose: the platform checks it, in its own order of logins; one thread waits for the results.

use std::net::IpAddr;

use anyhow::Context as _;
use fulmar_broker::access::Action;
use fulmar_broker::auth::{
    Admitted, Applicant, AuthReply, Decision, ExternalUsers, Login, MAX_PASSWORD_BYTES, ReplyTo,
    WaitingLogin,
};
use fulmar_broker::{Timestamp, User};
use fulmar_mqtt::ReasonCode;
use fulmar_platform::{AdmittedUser, LoginRefused, MAX_NAME, Platform, TOKEN_PREFIX};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Logins that the thread has not begun with; further ones are refused.
const MAX_UNBEGUN: usize = 512;

/// The platform's users.
#[derive(Debug)]
pub(super) struct Users {
    platform: Platform,
    /// The thread ends when this is dropped.
    logins: mpsc::Sender<LoginToCheck>,
}

struct LoginToCheck {
    user: String,
    password: String,
    address: IpAddr,
    reply_to: ReplyTo,
    /// Ends when the client has gone.
    gone: oneshot::Receiver<()>,
}

// Never the password.
fulmar_text::opaque_debug!(LoginToCheck { user });

impl Users {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn new(platform: Platform) -> anyhow::Result<Users> {
        let (logins, mut waiting) = mpsc::channel(MAX_UNBEGUN);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let checking = platform.clone();
        let run = move || {
            runtime.block_on(async {
                while let Some(login) = waiting.recv().await {
                    tokio::spawn(check(checking.clone(), login));
                }
            });
            // A hash cannot be cancelled.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("fulmar-logins".into());
        thread.spawn(run).context("platform logins")?;
        Ok(Users { platform, logins })
    }
}

impl ExternalUsers for Users {
    fn admit(&self, token: &str, username: Option<&str>, _: Timestamp) -> Option<Admitted> {
        self.platform.admit(token, username).and_then(admitted)
    }

    fn is_token(&self, password: &str) -> bool {
        password.starts_with(TOKEN_PREFIX)
    }

    fn knows(&self, username: &str) -> bool {
        self.platform.knows(username)
    }

    fn log_in(&self, login: Login<'_>) -> Decision {
        let Login { username, password, applicant: Applicant { address, reply_to } } = login;
        // No user has such a name or password, and what waits has a bound in bytes.
        if username.len() > MAX_NAME || password.len() > MAX_PASSWORD_BYTES {
            return Decision::Now(Err(ReasonCode::BadUserNameOrPassword));
        }
        if let Some(admitted_user) = self.platform.log_in_again(username, password, address) {
            return Decision::Now(admitted(admitted_user).ok_or(ReasonCode::BadUserNameOrPassword));
        }
        let (stays, gone) = oneshot::channel();
        let (user, password) = (username.to_owned(), password.to_owned());
        let login = LoginToCheck { user, password, address, reply_to, gone };
        if self.logins.try_send(login).is_err() {
            return Decision::Now(Err(ReasonCode::ServerBusy));
        }
        let stays: Mutex<Option<oneshot::Sender<()>>> = Mutex::new(Some(stays));
        Decision::Later(WaitingLogin::new(move || drop(stays.lock().take())))
    }

    fn is_good(&self, credential: &str) -> bool {
        self.platform.is_session(credential)
    }

    fn allows(&self, external_user: &str, action: Action, topic: &str) -> bool {
        self.platform.may(external_user, action == Action::Publish, topic)
    }
}

fn admitted(admitted_user: AdmittedUser) -> Option<Admitted> {
    Some(Admitted {
        user: Some(User::external(&admitted_user.user)?),
        until: Timestamp(admitted_user.until_ms),
        credential: Some(admitted_user.session.into()),
    })
}

/// Checks a login, unless its client goes before.
async fn check(platform: Platform, login: LoginToCheck) {
    let LoginToCheck { user, password, address, reply_to, gone } = login;
    let result = tokio::select! {
        result = platform.log_in(&user, &password, address) => result,
        _ = gone => return,
    };
    let reply: AuthReply = match result {
        Ok(admitted_user) => admitted(admitted_user).ok_or(ReasonCode::BadUserNameOrPassword),
        Err(LoginRefused::Wrong) => Err(ReasonCode::BadUserNameOrPassword),
        Err(LoginRefused::TooOften) => Err(ReasonCode::ServerBusy),
        Err(LoginRefused::Unavailable) => Err(ReasonCode::ServerUnavailable),
    };
    reply_to.send(reply);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::time::Duration;

    use fulmar_broker::auth::AccessControl;
    use fulmar_broker::storage::{NoStorage, Restored};
    use fulmar_broker::{
        Broker, BrokerConfig, ClientStatistics, Connection, Limits, ListenerPolicy, Peer, Shard,
        StreamKey, Token, TransportKind,
    };
    use fulmar_mqtt::codec::{decode, peek_frame};
    use fulmar_mqtt::packet::Connect;
    use fulmar_mqtt::{Packet, Properties, Version};
    use fulmar_platform::{AdminCommand, Settings};

    use super::*;

    const CROWD: [u8; 4] = [192, 0, 2, 1];
    const ELSEWHERE: [u8; 4] = [198, 51, 100, 1];
    const PASSWORD: &str = "correct horse";

    /// A broker of one worker, whose only users are the platform's.
    struct World {
        shard: Shard,
        clients: HashMap<Token, Connection>,
        _folder: tempfile::TempDir,
    }

    impl World {
        /// With a user `ann`.
        fn new() -> World {
            let folder = tempfile::tempdir().unwrap();
            let (platform, _) = Platform::open(folder.path(), Settings::default()).unwrap();
            let ann = AdminCommand::AddUser {
                name: "ann".to_owned(),
                display_name: None,
                server_admin: true,
                role: None,
                password: Some(PASSWORD.to_owned()),
            };
            platform.administer(&ann).unwrap();
            let users: Arc<dyn ExternalUsers> = Arc::new(Users::new(platform).unwrap());
            let access_control =
                AccessControl { external_users: Some(users), ..AccessControl::default() };
            let config = BrokerConfig {
                workers: 1,
                limits: Limits::default(),
                access_control,
                sys_interval_s: 0,
                client_statistics: ClientStatistics::Rules,
                internal_sessions: Vec::new(),
            };
            let now = Timestamp(1_000_000);
            let broker = Broker::new(config, Arc::new(NoStorage), Restored::default(), now);
            let shard = Shard::new(broker, 0, now, Arc::new(|| {}));
            World { shard, clients: HashMap::new(), _folder: folder }
        }

        fn log_in(&mut self, from: [u8; 4], user: &str, password: &str) -> Token {
            let token = Token(self.clients.len() as u64);
            let listener = Arc::new(ListenerPolicy { name: "test".into(), allow_anonymous: false });
            let (address, transport) = ((from, 1000).into(), TransportKind::Tcp);
            let peer = Peer { address, transport, identity: None, listener };
            let mut client = Connection::new(&mut self.shard, token, peer).unwrap();
            let connect = Packet::Connect(Connect {
                version: Version::V5,
                bridge: false,
                clean_start: true,
                keep_alive_s: 0,
                client_id: "",
                properties: Properties::NONE,
                will: None,
                username: Some(user),
                password: Some(password.as_bytes()),
            });
            let mut bytes = Vec::new();
            connect.encode(Version::V5, &mut bytes);
            client.receive(&mut self.shard, StreamKey::CONTROL, &bytes);
            self.clients.insert(token, client);
            token
        }

        /// CONNACK's code, if it has come.
        fn answer(&mut self, token: Token) -> Option<ReasonCode> {
            let mut events = Vec::new();
            self.shard.take_events(&mut events);
            for (to, event) in events {
                self.clients.get_mut(&to).unwrap().on_event(&mut self.shard, event);
            }
            self.shard.end_turn();
            let client = self.clients.get_mut(&token).unwrap();
            let output = client.output(&mut self.shard, StreamKey::CONTROL);
            let frame = peek_frame(&output.bytes, usize::MAX).unwrap()?;
            match decode(&frame, Version::V5) {
                Ok(Packet::Connack(connack)) => Some(connack.reason),
                other => panic!("{other:?}"),
            }
        }

        fn wait_for(&mut self, token: Token) -> ReasonCode {
            for _ in 0..60_000 {
                if let Some(reason) = self.answer(token) {
                    return reason;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            panic!("not decided");
        }

        fn failed(&self) -> u64 {
            let totals = self.shard.broker().metrics().totals();
            totals.into_iter().find(|total| total.0 == "authentication_failed").unwrap().2
        }
    }

    #[test]
    fn a_name_or_password_too_long_for_any_user_is_refused_at_once() {
        let mut world = World::new();
        let (name, password) = ("a".repeat(MAX_NAME + 1), "p".repeat(MAX_PASSWORD_BYTES + 1));
        for (from, user, password) in [(CROWD, &*name, PASSWORD), (ELSEWHERE, "ann", &*password)] {
            let client = world.log_in(from, user, password);
            assert_eq!(world.answer(client), Some(ReasonCode::BadUserNameOrPassword));
        }
        let longest = world.log_in(CROWD, &name[1..], &password[1..]);
        assert_eq!(world.wait_for(longest), ReasonCode::BadUserNameOrPassword);
    }

    #[test]
    fn a_new_login_does_not_wait_behind_those_of_another_network() {
        let mut world = World::new();
        for number in 0..100 {
            world.log_in(CROWD, &format!("user{number}"), "wrong");
        }
        let ann = world.log_in(ELSEWHERE, "ann", PASSWORD);
        assert_eq!(world.wait_for(ann), ReasonCode::Success);
        let checked = world.failed();
        assert!(checked < 50, "{checked} were checked before");
    }
}

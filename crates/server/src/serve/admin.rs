//! The administration API: its router for the `https` listener, and the socket in the data folder, through which
//! `fulmar ctl` reaches a server of the same machine without a token.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use fulmar_admin::{
    Admin, Administrators, Answer, Later, LocalCaller, Login, Principal, Refused, Role,
    ServerState, Settings, SocketPath, TapRoom, Tapped,
};
use fulmar_broker::Broker;
use fulmar_identity::{API_TOKEN_PREFIX, AdministrationRole, Client, Identities, PasswordHash};
use fulmar_mirror::Shared;
use fulmar_mqtt::packet::SubscribeOptions;
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, ReasonCode};
use fulmar_store::SqliteStorage;
use fulmar_transport::Handoff;
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::http_credentials::Credentials;
use super::http_publish;
use super::local_client::{self, LocalReceiver, LocalSender};
use super::platform::Platform;
use super::watched::Watched;
use crate::config::Config;

/// What the log calls its MQTT clients' listener.
const LISTENER: &str = "admin";
/// Passwords that are checked at once.
const MAX_HASHING: usize = 2;
/// How long a login waits for its turn.
const HASHING_WAIT: Duration = Duration::from_secs(5);
/// The longest wait for the broker.
const PATIENCE: Duration = Duration::from_secs(10);

/// Only the server's own user and root.
const MODE: u32 = 0o600;

/// The API and its socket. Dropping this ends the socket at once.
pub(super) struct Running {
    admin: Admin,
    /// `None` where the system has no such sockets in the data folder, such as on some network file systems.
    _socket: Option<Socket>,
}

impl Running {
    /// Opens the socket. The data folder is locked, so that no other server can have it.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(
        broker: &Arc<Broker>,
        (data, identities, shared): (&Path, &Arc<Identities>, Option<Shared>),
        platform: Option<&Platform>,
        (handoff, config, store): (Handoff, &Config, Option<&Arc<SqliteStorage>>),
        watched: Watched,
    ) -> anyhow::Result<Running> {
        let server = Server {
            handoff,
            config: config.clone(),
            data: data.to_owned(),
            store: store.map(Arc::downgrade),
            watched,
        };
        let identities = Arc::clone(identities);
        let users = Users {
            identities: Arc::clone(&identities),
            platform: platform.cloned(),
            hashing: Semaphore::new(MAX_HASHING),
            remembered: Remembered::default(),
        };
        let settings = Settings {
            broker: Arc::clone(broker),
            administrators: Arc::new(users),
            identities,
            server: Arc::new(server),
            data: data.to_owned(),
            version: super::status::VERSION,
        };
        let admin = match shared {
            Some(shared) => Admin::open_shared(settings, shared)?,
            None => Admin::open(settings)?,
        };
        let socket = match bind(data) {
            Ok(listener) => {
                let history = admin.clone();
                let history = async move { history.keep_history().await };
                let router = admin.router().merge(platform_commands(platform));
                Some(Socket::start(listener, router, history)?)
            }
            Err(error) => {
                tracing::warn!(
                    data = %data.display(), %error,
                    "no socket in the data folder: fulmar ctl has to use --url with a token"
                );
                None
            }
        };
        Ok(Running { admin, _socket: socket })
    }

    /// The routes of the API.
    pub(super) fn router(&self) -> axum::Router {
        self.admin.router()
    }
}

/// What `fulmar user` and `fulmar twin` ask the server of a cluster's node for. A process that may open the socket may do
/// everything.
#[cfg(feature = "platform")]
fn platform_commands(platform: Option<&Platform>) -> axum::Router {
    use axum::http::{StatusCode, header};
    use axum::response::IntoResponse as _;
    let Some(platform) = platform.cloned() else { return axum::Router::new() };
    let run = move |command: axum::body::Bytes| async move {
        let work = move || {
            let answer = platform.administer(&serde_json::from_slice(&command)?)?;
            anyhow::Ok(serde_json::to_string(&answer)?)
        };
        let problem = match tokio::task::spawn_blocking(work).await {
            Ok(Ok(answer)) => return answer.into_response(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "this failed in the server: see its log".to_owned(),
        };
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let problem = serde_json::json!({ "detail": problem }).to_string();
        (StatusCode::CONFLICT, kind, problem).into_response()
    };
    let path = format!("{}{}", fulmar_admin::PREFIX, crate::node_users::PLATFORM);
    axum::Router::new().route(&path, axum::routing::post(run))
}

#[cfg(not(feature = "platform"))]
fn platform_commands(_: Option<&Platform>) -> axum::Router {
    axum::Router::new()
}

fn bind(data: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let socket = SocketPath::of(data)?;
    // Of a server that has crashed.
    match std::fs::remove_file(socket.path()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(socket.path())?;
    // Until now, the data folder's own rights have kept others out.
    std::fs::set_permissions(socket.path(), std::fs::Permissions::from_mode(MODE))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The thread that serves the socket, until this is dropped.
struct Socket {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Socket {
    /// Serves `router`, and does `besides`, which has no end.
    fn start(
        listener: std::os::unix::net::UnixListener,
        router: axum::Router,
        besides: impl Future<Output = ()> + Send + 'static,
    ) -> anyhow::Result<Socket> {
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            UnixListener::from_std(listener).context("the administration socket")?
        };
        let service = router.into_make_service_with_connect_info::<LocalCaller>();
        let serve = async move {
            let serving = axum::serve(listener, service).into_future();
            // Without waiting for requests: a tap has no end.
            tokio::select! {
                _ = serving => {}
                () = besides => {}
                _ = stopped => {}
            }
        };
        let thread = std::thread::Builder::new().name("fulmar-admin".into());
        let thread = thread.spawn(move || runtime.block_on(serve))?;
        Ok(Socket { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the administration socket panicked");
        }
    }
}

/// The socket of a node of a cluster that stands by: it answers everything with the node that serves.
#[cfg(feature = "cluster")]
pub(super) struct StandBySocket(#[allow(dead_code, reason = "ends when it is dropped")] Socket);

#[cfg(feature = "cluster")]
impl StandBySocket {
    /// `None` where there can be none.
    pub(super) fn start(
        data: &Path,
        serving: &Arc<parking_lot::Mutex<String>>,
    ) -> Option<StandBySocket> {
        let serving = Arc::clone(serving);
        // The body is read first: a client that is still sending it would get an error instead of the answer.
        let router = axum::Router::new().fallback(move |_: axum::body::Bytes| {
            let detail = format!(
                "this node stands by, and {} serves: do this at the node that serves",
                serving.lock()
            );
            let status = axum::http::StatusCode::SERVICE_UNAVAILABLE;
            let problem = serde_json::json!({
                "type": "about:blank", "title": "Service Unavailable", "status": status.as_u16(), "detail": detail,
            });
            let kind = [(axum::http::header::CONTENT_TYPE, "application/problem+json")];
            std::future::ready((status, kind, problem.to_string()))
        });
        let started = bind(data).map_err(anyhow::Error::new);
        match started.and_then(|listener| Socket::start(listener, router, std::future::pending())) {
            Ok(socket) => Some(StandBySocket(socket)),
            Err(error) => {
                tracing::warn!("no socket in the data folder: {error:#}");
                None
            }
        }
    }
}

/// What the API needs of the rest of the server.
struct Server {
    handoff: Handoff,
    /// As of the start.
    config: Config,
    data: PathBuf,
    /// The server closes it, although a request may still be answered.
    store: Option<Weak<SqliteStorage>>,
    watched: Watched,
}

impl fulmar_admin::Server for Server {
    fn clear_retained<'a>(&'a self, topic: &'a str) -> Later<'a, ()> {
        Box::pin(async move {
            let peer = local_client::internal_peer(LISTENER);
            let nobody = Credentials::default();
            let cleared = http_publish::hand_over(&self.handoff, peer, &nobody, topic, true, &[]);
            match tokio::time::timeout(PATIENCE, cleared).await {
                Ok(Ok(reason)) if !reason.is_error() => Ok(()),
                Ok(Ok(reason)) => Err(format!("the broker refused it: {reason}")),
                Ok(Err(error)) => Err(format!("the broker is not available: {error}")),
                Err(_) => Err("the broker did not accept it in time: try again".to_owned()),
            }
        })
    }

    fn tap(&self, filter: &str, buffer: usize) -> Result<mpsc::Receiver<Tapped>, String> {
        let peer = local_client::internal_peer(LISTENER);
        let connect = local_client::anonymous_session(Properties::NONE);
        let (sender, receiver) = local_client::open(&self.handoff, peer, &connect)
            .map_err(|error| format!("the broker is not available: {error}"))?;
        let options = SubscribeOptions { qos: QoS::AtMostOnce, ..SubscribeOptions::default() };
        sender.subscribe(PacketId::FIRST, [(filter, options)]);
        let (messages, tapped) = mpsc::channel(buffer);
        tokio::spawn(pass_on(sender, receiver, messages));
        Ok(tapped)
    }

    fn log_filter(&self) -> Option<String> {
        crate::logging::filter()
    }

    fn set_log_filter(&self, filter: &str) -> Result<(), String> {
        crate::logging::set_filter(filter)
    }

    fn copy_to(&self, folder: &Path) -> Result<Vec<String>, String> {
        let store = match &self.store {
            Some(store) => Some(store.upgrade().ok_or("the server ends")?),
            None => None,
        };
        let copied = super::backup::copy(&self.config, &self.data, store.as_deref(), folder);
        copied.map_err(|error| crate::exit::explain(&error))
    }

    fn state(&self) -> ServerState {
        self.watched.state()
    }

    fn place_of_rule(&self, number: usize) -> String {
        format!("[[acl.rules]] number {} of the configuration", number + 1)
    }
}

/// Passes messages on until nobody reads them any longer; those for which there is no room are counted.
async fn pass_on(sender: LocalSender, mut receiver: LocalReceiver, to: mpsc::Sender<Tapped>) {
    let (room, mut dropped) = (TapRoom::default(), 0);
    loop {
        let more = tokio::select! {
            filled = receiver.fill() => filled.unwrap_or(false),
            () = to.closed() => false,
        };
        if !more {
            break;
        }
        while let Ok(Some(packet)) = receiver.next() {
            let Packet::Publish(publish) = packet else { continue };
            // One more, for the tap to see where text ends.
            let shown = publish.payload.len().min(Tapped::MAX_PAYLOAD_BYTES + 1);
            let sent = room.take(publish.topic.len() + shown).is_some_and(|room| {
                let message = Tapped {
                    topic: publish.topic.to_owned(),
                    payload: publish.payload[..shown].to_vec(),
                    payload_bytes: publish.payload.len(),
                    qos: publish.qos,
                    retain: publish.retain,
                    dropped,
                    room,
                };
                to.try_send(message).is_ok()
            });
            dropped = if sent { 0 } else { dropped + 1 };
        }
    }
    sender.disconnect(ReasonCode::Success, Properties::NONE);
}

/// The users with an administration role: those of the store of identities, API tokens, and the platform's server admins.
struct Users {
    identities: Arc<Identities>,
    platform: Option<Platform>,
    hashing: Semaphore,
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
        let turn = tokio::time::timeout(HASHING_WAIT, self.hashing.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Some(Err(Refused::TooOften)) };
        let identities = Arc::clone(&self.identities);
        let (name, given) = (user.to_owned(), password.to_owned());
        let verify = move || identities.verify_password(&name, &given);
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
        Login { principal: principal(found), holds: Box::new(holds) }
    }

    fn api_token(&self, token: &str) -> Result<Login, Refused> {
        let found = self.identities.verify_token(token).map(principal).ok_or(Refused::Wrong)?;
        let (identities, token) = (Arc::clone(&self.identities), token.to_owned());
        let holds = move || identities.verify_token(&token).map(|found| role(found.role));
        Ok(Login { principal: found, holds: Box::new(holds) })
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
    fn log_in<'a>(
        &'a self,
        credentials: fulmar_admin::Credentials<'a>,
        from: IpAddr,
    ) -> Answer<'a> {
        Box::pin(async move {
            match credentials {
                fulmar_admin::Credentials::Token(token) if token.starts_with(API_TOKEN_PREFIX) => {
                    return self.api_token(token);
                }
                fulmar_admin::Credentials::Password { user, password } => {
                    if let Some(decided) = self.stored(user, password).await {
                        return decided;
                    }
                }
                fulmar_admin::Credentials::Token(_) => {}
            }
            let Some(platform) = &self.platform else { return Err(Refused::Wrong) };
            platform_user(platform, credentials, from).await
        })
    }
}

#[cfg(feature = "platform")]
async fn platform_user(
    platform: &Platform,
    credentials: fulmar_admin::Credentials<'_>,
    from: IpAddr,
) -> Result<Login, Refused> {
    use fulmar_platform::LoginRefused;
    let admitted = match credentials {
        fulmar_admin::Credentials::Token(token) => {
            platform.admit(token, None).ok_or(Refused::Wrong)?
        }
        fulmar_admin::Credentials::Password { user, password } => {
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
    Ok(Login { principal, holds: Box::new(holds) })
}

#[cfg(not(feature = "platform"))]
async fn platform_user(
    platform: &Platform,
    _: fulmar_admin::Credentials<'_>,
    _: IpAddr,
) -> Result<Login, Refused> {
    platform.nobody()
}

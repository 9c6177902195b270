//! The administration API: its router for the `https` listener, and the socket in the data folder, through which
//! `fulmar ctl` reaches a server of the same machine without a token.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use fulmar_admin::{
    Admin, Later, LocalCaller, NewEntry, ServerState, Settings, SocketPath, Store, TapRoom, Tapped,
};
use fulmar_broker::{Broker, Timestamp};
use fulmar_http::AnswerSpace;
use fulmar_identity::control::{self, ControlChange};
use fulmar_identity::{Asker, Client, Identities};
use fulmar_mirror::Shared;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::SubscribeOptions;
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, ReasonCode};
use fulmar_store::SqliteStorage;
use fulmar_transport::Handoff;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

use super::http_credentials::Credentials;
use super::http_publish;
use super::local_client::{self, LocalReceiver, LocalSender};
use super::platform::Platform;
use super::watched::Watched;
use crate::config::Config;

mod logins;

use logins::Users;

/// What the log calls its MQTT clients' listener.
const LISTENER: &str = "admin";
/// The longest wait for the broker.
const PATIENCE: Duration = Duration::from_secs(10);

/// Only the server's own user and root.
const MODE: u32 = 0o600;

/// Bans, and the log of changes.
#[derive(Clone, Debug)]
pub(super) struct ChangeLog(Store);

impl ChangeLog {
    /// Opens it; at a node of a cluster, with what is shared.
    ///
    /// # Errors
    /// `admin.db` in the data folder cannot be used.
    pub(super) fn open(data: &Path, shared: Option<Shared>) -> anyhow::Result<ChangeLog> {
        Ok(ChangeLog(match shared {
            Some(shared) => Store::open_shared(data, shared)?,
            None => Store::open(data)?,
        }))
    }

    /// Sets the stored bans.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) fn apply_bans(&self, broker: &Broker, now: Timestamp) -> anyhow::Result<()> {
        Ok(fulmar_admin::apply_bans(&self.0, broker, now.0.cast_signed())?)
    }

    /// Logs what callers of the platform's API change.
    pub(super) fn watch_platform(&self, platform: Option<&Platform>) {
        #[cfg(feature = "platform")]
        if let Some(platform) = platform {
            platform.log_changes(Box::new(self.clone()));
        }
        #[cfg(not(feature = "platform"))]
        let _ = platform;
    }

    fn begin_all(&self, entries: &[NewEntry]) -> Result<Vec<i64>, String> {
        self.0.begin_all(entries).map_err(|error| {
            tracing::error!("the log of changes: {error}");
            "the log of changes cannot be written: nothing was changed; see the server's log"
                .to_owned()
        })
    }

    fn end_all(&self, results: &[(i64, &str)]) {
        if let Err(error) = self.0.end_all(results.iter().copied()) {
            tracing::error!("the log of changes: {error}");
        }
    }

    /// Logs that the server itself adds a user, and adds it.
    pub(super) fn user_added<T>(
        &self,
        name: &str,
        add: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.0.logged(NewEntry::local("server", "user.add", name, String::new()), add)
    }
}

#[cfg(feature = "platform")]
impl fulmar_platform::ChangeLog for ChangeLog {
    fn begin(&self, change: fulmar_platform::RosterChange) -> Result<i64, String> {
        let entry = NewEntry {
            who: change.who,
            from: change.from,
            action: change.action,
            object: change.object,
            detail: change.detail.to_string(),
        };
        let ids = self.begin_all(&[entry])?;
        Ok(ids.first().copied().unwrap_or_default())
    }

    fn end(&self, id: i64, result: &str) {
        self.end_all(&[(id, result)]);
    }
}

impl control::ChangeLog for ChangeLog {
    fn begin(&self, asker: &Asker, changes: Vec<ControlChange>) -> Result<Vec<i64>, String> {
        let who = asker.username.clone().unwrap_or_else(|| asker.client_id.clone());
        let entry = |change: ControlChange| NewEntry {
            who: who.to_string(),
            from: asker.from.to_string(),
            action: change.action,
            object: change.object,
            detail: change.detail,
        };
        let entries: Vec<NewEntry> = changes.into_iter().map(entry).collect();
        self.begin_all(&entries)
    }

    fn end(&self, results: &[(i64, &str)]) {
        self.end_all(results);
    }
}

/// The API and its socket. Dropping this ends the socket at once.
pub(super) struct Running {
    admin: Admin,
    /// Whether somebody can log in to the page.
    has_administrator: bool,
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
        (data, identities, log): (&Path, &Arc<Identities>, ChangeLog),
        platform: Option<&Platform>,
        (handoff, config, store): (Handoff, &Config, Option<&Arc<SqliteStorage>>),
        answers: &AnswerSpace,
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
        let administers =
            |client: &Arc<Client>| client.administration.is_some() && !client.disabled;
        let in_store = identities.read(|state| state.clients().values().any(administers));
        let has_administrator =
            in_store || platform.is_some_and(|platform| !platform.has_no_users());
        let asked = Arc::clone(broker);
        let in_file = Box::new(move |user: &str| asked.password_hash_in_file(user));
        let users = Users::new(in_file, Arc::clone(&identities), platform.cloned());
        let settings = Settings {
            broker: Arc::clone(broker),
            administrators: Arc::new(users),
            identities,
            server: Arc::new(server),
            data: data.to_owned(),
            answers: answers.clone(),
            version: super::status::VERSION,
            open_overview: config.has_open_overview(),
        };
        let admin = Admin::open(settings, log.0.clone());
        let socket = match bind(data) {
            Ok(listener) => {
                let history = admin.clone();
                let history = async move { history.keep_history().await };
                let router = admin.router().merge(platform_commands(platform, log));
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
        Ok(Running { admin, has_administrator, _socket: socket })
    }

    /// Logs where the page is, and how to make an administrator if there is none.
    pub(super) fn show_page(&self, https: Option<SocketAddr>, data: &Path) {
        let Some(https) = https else { return };
        let (port, data) = (https.port(), data.display());
        let next = match self.has_administrator {
            true => String::new(),
            false => format!(
                "; to make an administrator of the broker: fulmar ctl users add NAME --role administrator --data {data}"
            ),
        };
        tracing::info!("the broker's page: https://localhost:{port}/broker{next}");
    }

    /// The routes of the API.
    pub(super) fn router(&self) -> axum::Router {
        self.admin.router()
    }
}

/// What `fulmar user` and `fulmar twin` ask the server of a cluster's node for. A process that may open the socket may do
/// everything.
#[cfg(feature = "platform")]
fn platform_commands(platform: Option<&Platform>, log: ChangeLog) -> axum::Router {
    use axum::extract::ConnectInfo;
    use axum::http::{StatusCode, header};
    use axum::response::IntoResponse as _;
    let Some(platform) = platform.cloned() else { return axum::Router::new() };
    let run = move |ConnectInfo(by): ConnectInfo<LocalCaller>, command: axum::body::Bytes| async move {
        let work = move || {
            let command: fulmar_platform::AdminCommand = serde_json::from_slice(&command)?;
            let answer = match command.change() {
                Some((action, object, detail)) => {
                    let entry = NewEntry::local(&by.name(), action, object, detail.to_string());
                    log.0.logged(entry, || anyhow::Ok(platform.administer(&command)?))?
                }
                None => platform.administer(&command)?,
            };
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
fn platform_commands(_: Option<&Platform>, _: ChangeLog) -> axum::Router {
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
        // With less, the broker would lower the QoS of what is published.
        let options = SubscribeOptions { qos: QoS::ExactlyOnce, ..SubscribeOptions::default() };
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

    fn room_for_copies(&self) -> Result<(), String> {
        super::backup::check_room(&self.data)
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

    fn admits_anonymous(&self) -> bool {
        let bound = self.watched.listeners.get();
        bound.into_iter().flatten().any(|(name, at)| self.config.policy(name, *at).allow_anonymous)
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
            let publish = match packet {
                Packet::Publish(publish) => publish,
                Packet::Ack(AckKind::Pubrel, ack) => {
                    sender.acknowledge(AckKind::Pubcomp, ack.packet_id, ReasonCode::Success);
                    continue;
                }
                _ => continue,
            };
            if let Some(id) = publish.packet_id {
                let is_second = publish.qos == QoS::ExactlyOnce;
                let kind = if is_second { AckKind::Pubrec } else { AckKind::Puback };
                sender.acknowledge(kind, id, ReasonCode::Success);
            }
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

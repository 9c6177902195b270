//! The administration API: its router for the `https` listener, and the socket in the data folder, through which
//! `fulmar ctl` reaches a server of the same machine without a token.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context as _;
use fulmar_admin::{
    Admin, Later, LocalCaller, ServerState, Settings, SocketPath, Store, TapRoom, Tapped,
};
use fulmar_identity::Client;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::SubscribeOptions;
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, ReasonCode};
use fulmar_store::SqliteStorage;
use fulmar_transport::Handoff;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use super::http_credentials::Credentials;
use super::http_publish;
use fulmar_config::Config;
use fulmar_part::local_client::{self, LocalReceiver, LocalSender};
use fulmar_part::shared_rows::Database;
use fulmar_part::thread::{Thread, runtime};
use fulmar_part::{Core, Opening, Part};

mod logins;
mod watched;

use logins::Users;
use watched::Watched;

/// Name of the MQTT clients' listener in the log.
const LISTENER: &str = "admin";
/// The longest wait for the broker.
const PATIENCE: Duration = Duration::from_secs(10);

/// Only the server's own user and root.
const MODE: u32 = 0o600;

/// The API and its socket.
struct Administration {
    /// Bans, and the log of changes.
    log: Store,
    admin: Option<Admin>,
    /// True if somebody can log in to the page.
    has_administrator: bool,
    /// `None` where the system has no such sockets in the data folder, such as on some network file systems.
    socket: Option<Thread>,
}

/// Opens the log of changes; at a node of a cluster, with what is shared.
pub(super) fn open(opening: &mut Opening<'_>) -> anyhow::Result<Box<dyn Part>> {
    let data = opening.data;
    let shared = opening.shared.as_mut().map(|shared| shared.take_rows(Database::Administration));
    let log = match shared {
        Some(shared) => Store::open_shared(data, shared)?,
        None => Store::open(data)?,
    };
    opening.offers.log = Some(Arc::new(log.clone()));
    opening.offers.administration_log = Some(log.clone());
    Ok(Box::new(Administration { log, admin: None, has_administrator: false, socket: None }))
}

impl Part for Administration {
    /// Opens the socket. The data folder is locked, so that no other server can have it.
    fn go_live(&mut self, core: &Core) -> anyhow::Result<()> {
        let (broker, offers) = (&core.broker, &core.offers);
        let server = Server {
            handoff: core.handoff.clone(),
            config: core.config.clone(),
            data: core.data.clone(),
            store: core.store.as_ref().map(Arc::downgrade),
            watched: Watched::new(core),
        };
        let identities = Arc::clone(&core.identities);
        let administers =
            |client: &Arc<Client>| client.administration.is_some() && !client.disabled;
        self.has_administrator = identities.read(|state| state.clients().values().any(administers))
            || offers.has_users.as_ref().is_some_and(|has_users| has_users());
        let users = Users {
            logins: broker.logins(),
            identities: Arc::clone(&identities),
            external: offers.external_users.clone(),
        };
        let settings = Settings {
            broker: Arc::clone(broker),
            administrators: Arc::new(users),
            identities,
            server: Arc::new(server),
            data: core.data.clone(),
            answers: core.answers.clone(),
            version: super::status::VERSION,
            open_overview: core.config.has_open_overview(),
        };
        let admin = Admin::open(settings, self.log.clone());
        match bind(&core.data) {
            Ok(listener) => {
                let history = admin.clone();
                let history = async move { history.keep_history().await };
                let router = admin.router().merge(offers.local_routes.clone());
                self.socket = Some(serve(listener, router, history)?);
            }
            Err(error) => tracing::warn!(
                data = %core.data.display(), %error,
                "no socket in the data folder: fulmar ctl has to use --url with a token"
            ),
        }
        self.admin = Some(admin);
        Ok(())
    }

    fn routes(&self, _: &Core) -> axum::Router {
        self.admin.as_ref().map(Admin::router).unwrap_or_default()
    }

    /// Logs where the page is, and how to make an administrator if there is none.
    fn ready(&mut self, core: &Core) -> anyhow::Result<()> {
        let bound = core.listeners.get().into_iter().flatten();
        let mut https = bound.filter(|(name, _)| *name == "https");
        let Some((_, https)) = https.next() else { return Ok(()) };
        let (port, data) = (https.port(), core.data.display());
        let next = match self.has_administrator {
            true => String::new(),
            false => format!(
                "; to make an administrator of the broker: fulmar ctl users add NAME --role administrator --data {data}"
            ),
        };
        tracing::info!("the broker's page: https://localhost:{port}/broker{next}");
        Ok(())
    }

    fn stop_accepting(&mut self) {
        drop(self.socket.take());
    }
}

fn bind(data: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let socket = SocketPath::in_folder(data)?;
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

/// Serves `router` at the socket, and does `besides`, which has no end, until this is dropped: without waiting for
/// requests, because a tap has no end.
fn serve(
    listener: std::os::unix::net::UnixListener,
    router: axum::Router,
    besides: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<Thread> {
    let runtime = runtime()?;
    let listener = {
        let _entered = runtime.enter();
        UnixListener::from_std(listener).context("the administration socket")?
    };
    let service = router.into_make_service_with_connect_info::<LocalCaller>();
    let work = move || async move {
        tokio::select! {
            _ = axum::serve(listener, service).into_future() => {}
            () = besides => {}
        }
    };
    Ok(Thread::with_runtime("fulmar-admin", runtime, work)?)
}

/// The socket of a node of a cluster that stands by: it answers everything with the node that serves.
#[cfg(feature = "cluster")]
pub(super) struct StandBySocket(#[allow(dead_code, reason = "ends when it is dropped")] Thread);

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
        match started.and_then(|listener| serve(listener, router, std::future::pending())) {
            Ok(socket) => Some(StandBySocket(socket)),
            Err(error) => {
                tracing::warn!("no socket in the data folder: {error:#}");
                None
            }
        }
    }
}

/// Parts of the server that the API needs.
struct Server {
    handoff: Handoff,
    /// Configuration at the start.
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
        while let Ok(Some(packet)) = receiver.next_packet() {
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
            let sent = room.try_reserve(publish.topic.len() + shown).is_some_and(|room| {
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

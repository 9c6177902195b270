//! The connection to the servers, on a thread of its own.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use async_nats::jetstream::context::AccountErrorKind;
use async_nats::jetstream::{self, Context, ErrorCode};
use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ReconnectToServer, Server,
    ServerAddr,
};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::Error;
use crate::give_up::GiveUp;
use crate::log::MAX_MESSAGE_BYTES;
use crate::settings::{MIN_SERVER, Settings, is_new_enough};

/// To one server, with its handshakes.
const CONNECT: Duration = Duration::from_secs(2);
/// A server that answers no ping for two of these has failed.
const PING: Duration = Duration::from_secs(1);
/// Longest pause before the next server is tried.
const PAUSE: Duration = Duration::from_millis(500);
/// After so long without an accepted change, another server is tried: this one may be cut off from the others.
const UNANSWERED: Duration = Duration::from_secs(3);
/// For the state of the account, which tells whether there is JetStream.
const ACCOUNT: Duration = Duration::from_secs(2);
/// For what is asked of JetStream once, such as a stream's state: an election may take some seconds.
pub(crate) const REQUEST: Duration = Duration::from_secs(5);

/// Since when changes have had no answer at this server.
type Unanswered = Arc<Mutex<Option<Instant>>>;

/// A connection to one of the servers, which changes to another when that one fails. Cheap to clone; ends with its
/// last clone.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    client: Client,
    jetstream: Context,
    handle: Handle,
    unanswered_since: Unanswered,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

fulmar_text::opaque_debug!(Connection {});

impl Connection {
    /// Connects, and checks that the server can carry a log.
    ///
    /// # Errors
    /// [`Error::Settings`], [`Error::Connect`], and what the server lacks: [`Error::NoJetStream`],
    /// [`Error::TooOld`], [`Error::SmallMessages`].
    pub fn open(settings: &Settings) -> Result<Connection, Error> {
        let addresses = addresses(&settings.servers)?;
        let unanswered_since = Unanswered::default();
        let options = options(settings, Arc::clone(&unanswered_since))?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::File("NATS client".into(), error))?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("fulmar-nats".into())
            .spawn(move || {
                runtime.block_on(async { drop(stopped.await) });
                runtime.shutdown_background();
            })
            .map_err(|error| Error::File("NATS client".into(), error))?;
        let limit = CONNECT * u32::try_from(addresses.len()).unwrap_or(1).saturating_add(1);
        let connecting = async { timeout(limit, options.connect(addresses)).await };
        let client = match handle.block_on(connecting) {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(explain(&error, shown(&settings.servers))),
            Err(_) => {
                let (servers, detail) = (shown(&settings.servers), "no answer".to_owned());
                return Err(Error::Connect { servers, detail });
            }
        };
        // It starts a task.
        let _runtime = handle.enter();
        let jetstream = jetstream::ContextBuilder::new().timeout(REQUEST).build(client.clone());
        let (stop, thread) = (Some(stop), Some(thread));
        let handle = handle.clone();
        let inner = Inner { client, jetstream, handle, unanswered_since, stop, thread };
        let connection = Connection(Arc::new(inner));
        drop(_runtime);
        connection.check_server()?;
        Ok(connection)
    }

    /// Whether there is a connection at the moment.
    pub fn is_connected(&self) -> bool {
        self.0.client.connection_state() == async_nats::connection::State::Connected
    }

    /// The server in use now.
    pub fn server(&self) -> String {
        self.0.client.server_info().server_name
    }

    /// Whether the server in use requires credentials of its clients.
    pub fn requires_credentials(&self) -> bool {
        self.0.client.server_info().auth_required
    }

    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    pub(crate) fn jetstream(&self) -> &Context {
        &self.0.jetstream
    }

    /// Waits for `future`, at most for `limit`.
    pub(crate) fn wait<T>(
        &self,
        what: &'static str,
        limit: Duration,
        future: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let limited = async { timeout(limit, future).await };
        self.0.handle.block_on(limited).map_err(|_| Error::TimedOut { what, limit })?
    }

    /// Like [`Connection::wait`], but ends when it is given up, whether NATS answers or not.
    pub(crate) fn wait_or_give_up<T>(
        &self,
        what: &'static str,
        limit: Duration,
        give_up: &GiveUp,
        future: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.wait(what, limit, async {
            tokio::select! {
                biased;
                () = give_up.given_up() => Err(Error::GivenUp { what }),
                result = future => result,
            }
        })
    }

    /// A change was accepted or refused, or has no answer. A server without the others answers nothing, and its clients
    /// cannot see why.
    pub(crate) fn note_change(&self, answered: bool) {
        let mut since = self.0.unanswered_since.lock().unwrap_or_else(PoisonError::into_inner);
        if answered {
            *since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() >= UNANSWERED {
            *since = None;
            // It fails only if the client has ended.
            drop(self.0.handle.block_on(self.0.client.force_reconnect()));
        }
    }

    fn check_server(&self) -> Result<(), Error> {
        let info = self.0.client.server_info();
        let server = if info.server_name.is_empty() { info.host } else { info.server_name };
        if !is_new_enough(&info.version) {
            return Err(Error::TooOld { server, version: info.version, min: MIN_SERVER });
        }
        if info.max_payload < MAX_MESSAGE_BYTES {
            let needed = MAX_MESSAGE_BYTES;
            return Err(Error::SmallMessages { server, found: info.max_payload, needed });
        }
        let account =
            async { self.0.jetstream.query_account().await.map_err(|error| error.kind()) };
        match self.0.handle.block_on(async { timeout(ACCOUNT, account).await }) {
            Ok(Err(error)) if lacks_jetstream(&error) => Err(Error::NoJetStream(server)),
            // The leader of the metadata answers, and there may be none; what is asked for next does not need it.
            _ => Ok(()),
        }
    }
}

/// True if the server has no JetStream for this account, and not only none while its servers elect.
fn lacks_jetstream(error: &AccountErrorKind) -> bool {
    match error {
        AccountErrorKind::JetStreamUnavailable => true,
        AccountErrorKind::JetStream(error) => matches!(
            error.error_code(),
            ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
        ),
        AccountErrorKind::TimedOut | AccountErrorKind::Other => false,
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread itself never drops the last clone.
            drop(thread.join());
        }
    }
}

fn addresses(servers: &[String]) -> Result<Vec<ServerAddr>, Error> {
    let wrong = |server: &String| {
        Error::Settings(format!(
            "{} is no address of a NATS server, such as nats://10.0.0.1:4222",
            without_user(server)
        ))
    };
    if servers.is_empty() {
        return Err(Error::Settings("no NATS server is configured".to_owned()));
    }
    servers.iter().map(|server| server.parse().map_err(|_| wrong(server))).collect()
}

fn options(settings: &Settings, unanswered: Unanswered) -> Result<ConnectOptions, Error> {
    let mut options = ConnectOptions::new();
    if let Some(path) = &settings.credentials {
        let shown = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|error| Error::File(shown.clone(), error))?;
        options = options.credentials(&text).map_err(|error| {
            Error::Settings(format!(
                "{shown} is no credentials file of NATS ({error}): write one with `nsc generate creds`"
            ))
        })?;
    }
    if let Some(tls) = settings.tls.clone() {
        options = options.tls_client_config(tls);
    }
    Ok(options
        .name(&settings.name)
        .event_callback(move |event| {
            let unanswered = Arc::clone(&unanswered);
            async move {
                tracing::debug!(%event, "NATS");
                if matches!(event, Event::Connected) {
                    *unanswered.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
            }
        })
        .reconnect_to_server_callback({
            let turn = Arc::new(ServerRotation::default());
            move |servers, _| {
                let turn = Arc::clone(&turn);
                async move { turn.next(&servers) }
            }
        })
        .connection_timeout(CONNECT)
        .request_timeout(Some(REQUEST))
        .ping_interval(PING)
        .reconnect_delay_callback(pause))
}

/// Choice of the next server: of those with the fewest failures, the one behind the last in the list.
#[derive(Default)]
struct ServerRotation(Mutex<Option<usize>>);

impl ServerRotation {
    /// `None` lets the client try all in some order; so at the first connection, for which it makes one attempt.
    fn next(&self, servers: &[Server]) -> Option<ReconnectToServer> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = servers.len();
        if !servers.iter().any(|server| server.did_connect) {
            return None;
        }
        let from = last.unwrap_or_default();
        let order = (1..=count).map(|step| (from + step) % count);
        let next = order.filter(|at| count == 1 || Some(*at) != *last);
        let next = next.min_by_key(|at| servers[*at].failed_attempts)?;
        *last = Some(next);
        let failed = servers.iter().map(|server| server.failed_attempts).sum();
        let delay = Some(pause(failed));
        Some(ReconnectToServer { addr: servers[next].addr.clone(), delay })
    }
}

fn pause(attempts: usize) -> Duration {
    let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
    PAUSE.min(Duration::from_millis(20).saturating_mul(attempts))
}

/// Why there is no connection. What the operator must change is told apart from what may pass.
fn explain(error: &ConnectError, servers: String) -> Error {
    let detail = with_source(error);
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            Error::Credentials { servers, detail }
        }
        _ if is_tls(error) => Error::Tls { servers, detail },
        _ => Error::Connect { servers, detail },
    }
}

/// Whether a handshake failed for a reason that lasts. A server that ends meanwhile is none.
fn is_tls(error: &ConnectError) -> bool {
    let source = std::error::Error::source(error);
    let io = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    io.and_then(std::io::Error::get_ref)
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
}

/// The servers without passwords.
fn shown(servers: &[String]) -> String {
    let shown: Vec<_> = servers.iter().map(|server| without_user(server)).collect();
    shown.join(", ")
}

fn without_user(server: &str) -> String {
    match (server.split_once("://"), server.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => server.to_owned(),
    }
}

/// async-nats' errors have their reason in their source.
fn with_source(error: &dyn std::error::Error) -> String {
    let own = error.to_string();
    // Some errors repeat what they come from.
    let source = error.source().map(ToString::to_string).filter(|source| !own.contains(source));
    source.map_or(own.clone(), |source| format!("{own}: {source}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn servers(failed: [usize; 3]) -> Vec<Server> {
        let server = |(at, failed_attempts): (usize, usize)| Server {
            addr: format!("nats://10.0.0.{at}:4222").parse().unwrap(),
            failed_attempts,
            did_connect: at == 0,
            is_discovered: false,
            last_error: None,
        };
        failed.into_iter().enumerate().map(server).collect()
    }

    #[test]
    fn each_connection_is_to_another_server_than_the_last_one() {
        let turn = ServerRotation::default();
        let next = |failed| turn.next(&servers(failed)).unwrap().addr.host().to_owned();
        assert_eq!(
            [next([0; 3]), next([0; 3]), next([0; 3])],
            ["10.0.0.1", "10.0.0.2", "10.0.0.0"]
        );
        assert_eq!(next([0, 3, 0]), "10.0.0.2", "one that fails is last");
        assert_eq!(next([2, 3, 0]), "10.0.0.0", "not the same twice");
    }

    #[test]
    fn servers_that_elect_have_jetstream() {
        let answer = |code| {
            let text = format!(r#"{{"code": 503, "err_code": {code}}}"#);
            AccountErrorKind::JetStream(serde_json::from_str(&text).unwrap())
        };
        assert!(!lacks_jetstream(&answer(10008)), "temporarily unavailable");
        assert!(lacks_jetstream(&answer(10039)), "not enabled for the account");
        assert!(lacks_jetstream(&answer(10076)), "not enabled");
        assert!(!lacks_jetstream(&AccountErrorKind::TimedOut));
    }

    #[test]
    fn the_first_connection_tries_all() {
        let mut servers = servers([0; 3]);
        servers[0].did_connect = false;
        assert!(ServerRotation::default().next(&servers).is_none());
    }
}

//! `[auth.http]`: asks a web service of the operator's about logins by name and password, and about certificates if it
//! is to.
//!
//! It fails closed: a service that is slow, down or wrong keeps new clients out, and nobody else. Workers never wait for
//! it. One thread sends the requests, a limited number at the same time; what waits is limited too, and comes
//! in the order of the broker's own logins. After several failures in a row it pauses. Successful logins are remembered for a while,
//! and so are the access rules that came with them.

mod answer;
mod breaker;
mod known;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use fulmar_broker::access::AccessRules;
use fulmar_broker::auth::{
    Admitted, Applicant, AuthReply, Decision, HookLogin, LoginHook, LoginQueue, NextLogin, ReplyTo,
    Ticket, WaitingLogin,
};
use fulmar_broker::{Broker, Timestamp, User};
use fulmar_certs::files;
use fulmar_mqtt::ReasonCode;
use fulmar_text::metrics::{Kind, Metrics};
use fulmar_text::network::site;
use fulmar_transport::Clock;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use self::answer::Allowed;
use self::breaker::{Breaker, Throttle};
use self::known::{Digest, Known};
use fulmar_config::{AuthHttp, set};
use fulmar_part::http_client::{self, Pool, advised};
use fulmar_part::{Core, Opening, Part, Source};

/// Longest question, in bytes: name, password and client identifier as JSON. Longer ones are refused, so that those that
/// wait have a bound.
const MAX_QUESTION_BYTES: usize = 16 * 1024;
/// Time until logins that may not be asked about yet are checked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Longest answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Asks the service.
#[derive(Debug)]
struct AuthHook {
    /// Whether the service is asked about clients with certificates.
    certificates: bool,
    known: Arc<Known>,
    counts: Arc<Counts>,
    breaker: Arc<Breaker>,
    broker: Arc<OnceLock<Weak<Broker>>>,
    /// The thread ends when this is dropped.
    logins: Arc<Logins>,
}

/// Logins that wait for one of the requests to end; further ones are refused because the server is busy.
#[derive(Debug, Default)]
struct Logins {
    waiting: Mutex<LoginQueue<Waiting>>,
    /// Notified when one is added, and at the end.
    changed: Notify,
    ended: AtomicBool,
}

/// Answers of the service since the start.
#[derive(Debug, Default)]
struct Counts {
    allowed: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    /// Logins decided without a request because an equal one was allowed shortly before.
    remembered: AtomicU64,
}

impl Counts {
    fn report(&self, to: &mut Metrics) {
        let help = "Logins decided by the service of [auth.http], by result";
        let family = to.family(Kind::Counter, "auth_http_logins_total", help);
        for (result, count) in [
            ("allowed", &self.allowed),
            ("refused", &self.refused),
            ("failed", &self.failed),
            ("remembered", &self.remembered),
        ] {
            family.add(&[("result", result)], count.load(Relaxed));
        }
    }
}

#[derive(Debug)]
struct Waiting {
    body: Vec<u8>,
    user: User,
    client_id: String,
    /// Address of the client.
    network: IpAddr,
    digest: Digest,
    reply_to: ReplyTo,
}

/// The body of a request.
#[derive(serde::Serialize)]
struct Question<'a> {
    username: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<&'a str>,
    /// Instead of a password: a verified certificate has the name.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    certificate: bool,
    client_id: &'a str,
    address: IpAddr,
}

/// Connection pool, settings and state for requests to the service.
struct Service {
    pool: Pool,
    url: Uri,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    known: Arc<Known>,
    counts: Arc<Counts>,
    breaker: Arc<Breaker>,
    /// Limits on lines about failures, and on those about undocumented statuses: neither may hide the other.
    failures: Throttle,
    statuses: Throttle,
    broker: Arc<OnceLock<Weak<Broker>>>,
}

/// Verdict of the service about a login.
enum Verdict {
    Allowed(Allowed),
    Refused,
    /// Refused with a status that is not documented.
    RefusedWith(StatusCode),
}

/// Why there is no answer about a login.
struct Failure {
    error: anyhow::Error,
    of: FailureOf,
}

/// Consequence of a failure for other logins.
enum FailureOf {
    /// The connection: no login can be asked about.
    Connection,
    /// The service, perhaps only at this question.
    Service,
    /// This exchange: the service works, and answers something else than it should.
    Answer,
}

impl AuthHook {
    /// Starts the thread; `None` if there is no service.
    ///
    /// # Errors
    /// A file cannot be read, or the thread cannot be started.
    fn start(settings: &AuthHttp) -> anyhow::Result<Option<AuthHook>> {
        if settings.url.is_empty() {
            return Ok(None);
        }
        let known = Arc::new(Known::new(settings.cache_s, settings.cache_entries));
        let (counts, breaker) = (Arc::<Counts>::default(), Arc::<Breaker>::default());
        let broker = Arc::<OnceLock<_>>::default();
        let timeout = Duration::from_millis(settings.timeout_ms.into());
        let service = Service {
            pool: http_client::pool(&settings.url, set(&settings.ca_file), timeout)
                .context("[auth.http] ca_file")?,
            url: settings.url.parse().context("[auth.http] url")?,
            authorization: authorization(settings)?,
            timeout,
            known: Arc::clone(&known),
            counts: Arc::clone(&counts),
            breaker: Arc::clone(&breaker),
            failures: Throttle::default(),
            statuses: Throttle::default(),
            broker: Arc::clone(&broker),
        };
        let logins = Arc::<Logins>::default();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // They resolve names.
        let runtime = runtime.enable_all().max_blocking_threads(8).build()?;
        let (limit, waiting) = (settings.max_in_flight, Arc::clone(&logins));
        let thread = std::thread::Builder::new().name("fulmar-auth-http".into());
        let run = move || {
            runtime.block_on(serve(service, limit, &waiting));
            // A lookup of a name cannot be cancelled.
            runtime.shutdown_background();
        };
        thread.spawn(run).context("[auth.http] thread")?;
        let certificates = settings.certificates;
        Ok(Some(AuthHook { certificates, known, counts, breaker, broker, logins }))
    }
}

/// Reports what became of logins, and lets the broker know when rights have changed.
struct LoginService {
    /// `None` without a service.
    broker: Option<Arc<OnceLock<Weak<Broker>>>>,
    counts: Arc<Counts>,
}

/// Starts asking the service, if there is one.
///
/// # Errors
/// A file cannot be read, or the thread cannot be started.
pub fn open(opening: &mut Opening<'_>) -> anyhow::Result<Box<dyn Part>> {
    let Some(hook) = AuthHook::start(&opening.config.auth.http)? else {
        return Ok(Box::new(LoginService { broker: None, counts: Arc::default() }));
    };
    let (broker, counts) = (Some(Arc::clone(&hook.broker)), Arc::clone(&hook.counts));
    opening.offers.login_hook = Some(Arc::new(hook));
    Ok(Box::new(LoginService { broker, counts }))
}

impl Part for LoginService {
    fn go_live(&mut self, core: &Core) -> anyhow::Result<()> {
        if let Some(broker) = &self.broker {
            drop(broker.set(Arc::downgrade(&core.broker)));
        }
        Ok(())
    }

    fn metrics(&self) -> Option<Source> {
        let counts = Arc::clone(&self.counts);
        Some(Arc::new(move |to| counts.report(to)))
    }
}

impl LoginHook for AuthHook {
    fn decides_about_certificates(&self) -> bool {
        self.certificates
    }

    fn log_in(&self, login: HookLogin<'_>) -> Decision {
        let HookLogin { user, password, client_id, applicant } = login;
        let Applicant { address, reply_to } = applicant;
        let username = user.text();
        let Ok(password) = password.map(std::str::from_utf8).transpose() else {
            return Decision::Now(Err(ReasonCode::BadUserNameOrPassword));
        };
        let digest = self.known.digest(username, password, client_id);
        if let Some(admitted) = self.known.admitted(digest, now_ms()) {
            self.counts.remembered.fetch_add(1, Relaxed);
            return Decision::Now(Ok(admitted));
        }
        if self.breaker.is_paused(now_ms()) {
            return Decision::Now(Err(ReasonCode::ServerUnavailable));
        }
        let certificate = password.is_none();
        let question = Question { username, password, certificate, client_id, address };
        // Text only: it cannot fail.
        let body = serde_json::to_vec(&question).unwrap_or_default();
        if body.len() > MAX_QUESTION_BYTES {
            tracing::info!(%address, most = MAX_QUESTION_BYTES,
                "login refused: name, password and client identifier are too long for the service");
            return Decision::Now(Err(ReasonCode::BadUserNameOrPassword));
        }
        let client_id = client_id.to_owned();
        let (name, network) = (user.clone(), site(address));
        let login = Waiting { body, user, client_id, network, digest, reply_to };
        let who = (name.text(), address);
        let added = self.logins.waiting.lock().push(who, true, login, Instant::now());
        let Ok((id, displaced)) = added else {
            return Decision::Now(Err(ReasonCode::ServerBusy));
        };
        if let Some(displaced) = displaced {
            displaced.reply_to.send(Err(ReasonCode::ServerBusy));
        }
        self.logins.changed.notify_one();
        let logins = Arc::clone(&self.logins);
        Decision::Later(WaitingLogin::new(move || {
            let login = logins.waiting.lock().remove(id, Instant::now());
            // Not under the lock: with the last login the broker may go.
            drop(login);
        }))
    }

    fn rules(&self, user: &User, client_id: &str) -> Option<Arc<AccessRules>> {
        self.known.rules(user, client_id)
    }
}

impl Drop for AuthHook {
    fn drop(&mut self) {
        self.logins.ended.store(true, Relaxed);
        self.logins.changed.notify_one();
    }
}

impl Logins {
    /// The next one, when there is one; `None` at the end.
    async fn next(&self) -> Option<NextLogin<Waiting>> {
        loop {
            if self.ended.load(Relaxed) {
                return None;
            }
            let (next, waits) = {
                let mut waiting = self.waiting.lock();
                (waiting.pop(Instant::now()), !waiting.is_empty())
            };
            if next.is_some() {
                return next;
            }
            let changed = self.changed.notified();
            if waits {
                // Their users have been guessed at too often.
                drop(tokio::time::timeout(ASK_AGAIN, changed).await);
            } else {
                changed.await;
            }
        }
    }

    /// Notes whether a login was right; `None` if the service has not said.
    fn note_result(&self, ticket: &Ticket, right: Option<bool>) {
        let (mut waiting, now) = (self.waiting.lock(), Instant::now());
        match right {
            Some(true) => waiting.right(ticket, now),
            Some(false) => {}
            None => waiting.undecided(ticket, now),
        }
    }
}

fn now_ms() -> u64 {
    Clock::wall().0
}

/// The header with the operator's token.
fn authorization(settings: &AuthHttp) -> anyhow::Result<Option<HeaderValue>> {
    let Some(file) = set(&settings.token_file) else { return Ok(None) };
    let token = files::read_secret_line(file).context("[auth.http] token_file")?;
    let value = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
    let mut value = value.context("[auth.http] token_file: write the token alone into one line")?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Sends requests until the end.
async fn serve(service: Service, limit: u32, logins: &Arc<Logins>) {
    let service = Arc::new(service);
    let permits = Arc::new(Semaphore::new(limit as usize));
    // What waits does so where the order is fair.
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        let Some(NextLogin { login, ticket, .. }) = logins.next().await else { return };
        let (service, logins) = (Arc::clone(&service), Arc::clone(logins));
        tokio::spawn(async move {
            let _permit = permit;
            let right = service.answer(login).await;
            logins.note_result(&ticket, right);
        });
    }
}

impl Service {
    /// Asks about a login and answers it; returns whether it was right, if the service has said.
    async fn answer(&self, login: Waiting) -> Option<bool> {
        let Waiting { body, user, client_id, network, digest, reply_to } = login;
        // While this one waited for others, the service may have failed.
        if self.breaker.is_paused(now_ms()) {
            reply_to.send(Err(ReasonCode::ServerUnavailable));
            return None;
        }
        let asked = tokio::time::timeout(self.timeout, self.query(body)).await;
        let late = || anyhow::anyhow!("no complete answer within timeout_ms");
        let said = asked.unwrap_or_else(|_| Err(Failure { error: late(), of: FailureOf::Service }));
        let reply = match said {
            Ok(Verdict::Allowed(allowed)) => self.admit(allowed, user, client_id, digest),
            Ok(Verdict::Refused) => Err(self.refused(None)),
            Ok(Verdict::RefusedWith(status)) => Err(self.refused(Some(status))),
            Err(failure) => Err(self.failed(&failure, network)),
        };
        let right = match &reply {
            Ok(_) => Some(true),
            Err(ReasonCode::BadUserNameOrPassword) => Some(false),
            Err(_) => None,
        };
        reply_to.send(reply);
        right
    }

    fn admit(&self, allowed: Allowed, user: User, client_id: String, digest: Digest) -> AuthReply {
        let user = allowed.user.unwrap_or(user);
        let now = now_ms();
        let until = allowed.ttl_s.map_or(u64::MAX, |ttl_s| now.saturating_add(ttl_s * 1000));
        let admitted = Admitted {
            user: Some(user.clone()),
            until: if until == u64::MAX { Timestamp::NEVER } else { Timestamp(until) },
            credential: None,
        };
        self.breaker.succeeded();
        let Some(broker) = self.broker.get().and_then(Weak::upgrade) else {
            return Err(ReasonCode::ServerUnavailable);
        };
        self.known.forget(now, |client_id| broker.knows_client(client_id));
        let rules = match allowed.rules {
            None => None,
            Some(rules) => {
                let bytes = rules.memory_bytes() + 2 * client_id.len();
                let memory = broker.count_for_user(&user, bytes);
                Some((rules, memory.ok_or(ReasonCode::QuotaExceeded)?))
            }
        };
        let who = (user, Box::from(&*client_id));
        if self.known.put(digest, admitted.clone(), who, rules, now) {
            broker.rights_changed(&client_id);
        }
        self.counts.allowed.fetch_add(1, Relaxed);
        Ok(admitted)
    }

    fn refused(&self, odd: Option<StatusCode>) -> ReasonCode {
        self.breaker.succeeded();
        self.counts.refused.fetch_add(1, Relaxed);
        if let Some(status) = odd
            && self.statuses.lets_through(now_ms())
        {
            tracing::warn!(
                "[auth.http] login refused, because the service answered {status}; if it is to refuse, let it \
                 answer 403, else correct url or the service"
            );
        }
        ReasonCode::BadUserNameOrPassword
    }

    fn failed(&self, failure: &Failure, network: IpAddr) -> ReasonCode {
        self.counts.failed.fetch_add(1, Relaxed);
        let (error, now) = (&failure.error, now_ms());
        let pauses = match failure.of {
            FailureOf::Connection => self.breaker.unreachable(now),
            FailureOf::Service => self.breaker.failed(network, now),
            FailureOf::Answer => false,
        };
        if self.failures.lets_through(now) {
            tracing::error!(
                pauses,
                "[auth.http] logins refused, because the service failed: {error:#}"
            );
        }
        ReasonCode::ServerUnavailable
    }

    async fn query(&self, body: Vec<u8>) -> Result<Verdict, Failure> {
        let failure = |of| move |error| Failure { error, of };
        let request = self.request(body).map_err(failure(FailureOf::Answer))?;
        let response = self.pool.request(request).await.map_err(|error| {
            let connection = error.is_connect();
            let of = if connection { FailureOf::Connection } else { FailureOf::Service };
            Failure { error: advised(error.into()), of }
        })?;
        let status = response.status();
        match self.kind_of(status) {
            StatusKind::Answer => {}
            StatusKind::Refusal => return Ok(Verdict::Refused),
            StatusKind::OddRefusal => return Ok(Verdict::RefusedWith(status)),
            StatusKind::Failure(of) => {
                let error = anyhow::anyhow!("it answered {status}; 200 and 403 are expected");
                return Err(Failure { error, of });
            }
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| {
            let long = error.is::<LengthLimitError>();
            let of = if long { FailureOf::Answer } else { FailureOf::Service };
            Failure { error: anyhow::anyhow!("its answer cannot be read: {error}"), of }
        })?;
        let answer = answer::parse(&body.to_bytes()).map_err(failure(FailureOf::Answer))?;
        Ok(answer.map_or(Verdict::Refused, Verdict::Allowed))
    }

    fn request(&self, body: Vec<u8>) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("fulmar/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        Ok(request.body(Full::from(body))?)
    }

    fn kind_of(&self, status: StatusCode) -> StatusKind {
        match status {
            StatusCode::OK => StatusKind::Answer,
            StatusCode::FORBIDDEN => StatusKind::Refusal,
            StatusCode::UNAUTHORIZED if self.authorization.is_none() => StatusKind::Refusal,
            // About the token (with one), a proxy's password and the rate of requests: nothing is known about the
            // client's password, so that this is no failed login of its.
            StatusCode::UNAUTHORIZED
            | StatusCode::PROXY_AUTHENTICATION_REQUIRED
            | StatusCode::TOO_MANY_REQUESTS => StatusKind::Failure(FailureOf::Answer),
            StatusCode::REQUEST_TIMEOUT => StatusKind::Failure(FailureOf::Service),
            status if status.is_server_error() => StatusKind::Failure(FailureOf::Service),
            status if status.is_client_error() => StatusKind::OddRefusal,
            _ => StatusKind::Failure(FailureOf::Answer),
        }
    }
}

/// Meaning of a status for a login.
enum StatusKind {
    /// The body has the answer.
    Answer,
    Refusal,
    OddRefusal,
    Failure(FailureOf),
}

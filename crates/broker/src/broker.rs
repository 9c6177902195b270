//! What all workers share: the tree, retained messages, sessions, limits, counters.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fulmar_auth::access::{Action, EXTERNAL_TOPICS, Subject};
use fulmar_auth::{AccessControl, OpenTopics, Timestamp, User, Vouched};
use parking_lot::{Mutex, RwLock};

use crate::back_pressure::BackPressure;
use crate::bans::Bans;
use crate::control::Control;
use crate::deadlines::{Deadlines, Due};
use crate::deferred_ops::HandedOver;
use crate::event::{BrokerEvent, CloseOrder};
use crate::limits::Limits;
use crate::mailbox::{Attachment, Mailboxes};
use crate::memory::{Account, Memory, MemoryShare};
use crate::memory_pressure::{MemoryGauge, MemoryPressure};
use crate::message::MessageId;
use crate::metrics::Metrics;
use crate::publish_hook::PublishHook;
use crate::quota::Quota;
use crate::rate_limiter::RateLimiter;
use crate::redirect::Redirect;
use crate::registry::Registry;
use crate::retained::RetainedStore;
use crate::send_line::SendBacklog;
use crate::session::{Session, SessionState};
use crate::stall::Stall;
use crate::storage::{Seq, Storage};
use crate::tracer::Tracer;
use crate::transports::{ClientStatistics, Transports};
use crate::tree::TopicTree;
use crate::waiting::{WaitCause, WaitTable};

/// The system's clock differs by less from the broker's time when it has not been set.
const CLOCK_STEP_MS: u64 = 1000;

/// How a broker is set up.
#[derive(Debug)]
pub struct BrokerConfig {
    /// Number of workers that will drive it; 1 to 1024.
    pub workers: usize,
    /// Bounds.
    pub limits: Limits,
    /// Authentication, and what clients may do.
    pub access_control: AccessControl,
    /// Seconds between two publications of `$SYS`; 0 for never.
    pub sys_interval_s: u32,
    /// Which clients may read other clients' path statistics there.
    pub client_statistics: ClientStatistics,
    /// Client identifiers of the program's own durable sessions. Publishers are delayed while one of them is behind, and
    /// its client never is. It has to connect as the external user without a name.
    pub internal_sessions: Vec<Box<str>>,
}

/// A broker. Workers drive it, each through its [`crate::Shard`].
pub struct Broker {
    limits: Limits,
    pub(crate) sys_interval_s: u32,
    pub(crate) client_statistics: ClientStatistics,
    access_control: RwLock<Arc<AccessControl>>,
    /// How often `access_control` was replaced.
    access_generation: AtomicU64,
    pub(crate) tree: RwLock<TopicTree>,
    pub(crate) tree_generation: AtomicU64,
    pub(crate) retained: RwLock<RetainedStore>,
    pub(crate) registry: Registry,
    pub(crate) bans: Bans,
    pub(crate) rate_limiter: RateLimiter,
    pub(crate) quota: Quota,
    pub(crate) memory: Memory,
    memory_gauge: Arc<MemoryGauge>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) back_pressure: Arc<BackPressure>,
    pub(crate) send_backlog: Arc<SendBacklog>,
    /// How far each worker is with storage.
    pub(crate) handed_over: Box<[HandedOver]>,
    /// The connections that wait, by worker.
    pub(crate) waiting: Box<[WaitTable]>,
    metrics: Metrics,
    storage: Arc<dyn Storage>,
    stall: Stall,
    next_message: AtomicU64,
    pub(crate) deadlines: Mutex<Deadlines>,
    pub(crate) transports: Transports,
    next_housekeeping: AtomicU64,
    /// Time by which the system's clock is ahead of the broker's time.
    wall_ahead_ms: AtomicI64,
    started: Timestamp,
    publish_hook: OnceLock<Arc<dyn PublishHook>>,
    revoked: RwLock<Arc<HashSet<u64>>>,
    pub(crate) tracer: OnceLock<Arc<dyn Tracer>>,
    control: OnceLock<Arc<dyn Control>>,
    redirect: OnceLock<Arc<dyn Redirect>>,
}

fulmar_text::opaque_debug!(Broker);

impl Broker {
    /// One without sessions and retained messages. What begins now gets numbers above these.
    pub(crate) fn empty(
        config: BrokerConfig,
        storage: Arc<dyn Storage>,
        last_session_key: u64,
        last_message_id: u64,
        now: Timestamp,
    ) -> Arc<Broker> {
        let workers = config.workers.clamp(1, 1024);
        let apart = config.access_control.external_users.is_some().then_some(EXTERNAL_TOPICS);
        let mailboxes = Mailboxes::new(workers);
        Arc::new(Broker {
            sys_interval_s: config.sys_interval_s,
            client_statistics: config.client_statistics,
            access_control: RwLock::new(Arc::new(config.access_control)),
            access_generation: AtomicU64::new(1),
            tree: RwLock::new(TopicTree::with_apart(apart)),
            tree_generation: AtomicU64::new(1),
            retained: RwLock::new(RetainedStore::with_apart(apart)),
            bans: Bans::default(),
            rate_limiter: RateLimiter::default(),
            quota: Quota::default(),
            memory: Memory::new(config.limits.memory),
            memory_gauge: Arc::default(),
            registry: Registry::new(last_session_key),
            back_pressure: BackPressure::new(config.internal_sessions, mailboxes.clone()),
            send_backlog: SendBacklog::new(mailboxes.clone()),
            mailboxes,
            handed_over: (0..workers).map(|_| HandedOver::default()).collect(),
            waiting: (0..workers).map(|_| WaitTable::default()).collect(),
            metrics: Metrics::new(workers),
            storage,
            stall: Stall::default(),
            next_message: AtomicU64::new(last_message_id + 1),
            deadlines: Mutex::default(),
            transports: Transports::default(),
            next_housekeeping: AtomicU64::new(now.0),
            wall_ahead_ms: AtomicI64::new(0),
            started: now,
            limits: config.limits,
            publish_hook: OnceLock::new(),
            revoked: RwLock::default(),
            tracer: OnceLock::new(),
            control: OnceLock::new(),
            redirect: OnceLock::new(),
        })
    }

    /// Bounds.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What was seen of the process' memory.
    #[must_use]
    pub fn memory_gauge(&self) -> &Arc<MemoryGauge> {
        &self.memory_gauge
    }

    /// The process' memory was looked at: when it is short, connections that may be the reason are closed.
    pub fn set_memory_pressure(&self, pressure: MemoryPressure) {
        self.memory_gauge.set(pressure);
        if pressure > MemoryPressure::None {
            self.mailboxes.wake_all();
        }
    }

    /// Counters.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Replaces authentication and access rules; connected clients stay, new decisions follow the
    /// new rules, and so does what subscriptions bring from now on.
    pub fn set_access_control(&self, mut access_control: AccessControl) {
        let mut current = self.access_control.write();
        access_control.inherit(&current);
        let before = std::mem::replace(&mut *current, Arc::new(access_control));
        self.access_generation.fetch_add(1, Ordering::Release);
        drop(current);
        // Routes were found by the old rules, and so was what connections remember of them.
        self.change_tree(|_| ());
        for at in self.registry.attachments() {
            self.mailboxes.post(at, BrokerEvent::Recheck);
        }
        // What it waits for as it goes, workers must not.
        drop(before);
    }

    /// Sets what the system's clock shows at `now`. Sessions and messages keep their time when it is set; what others have
    /// dated is compared with it.
    pub(crate) fn set_wall(&self, now: Timestamp, wall: Timestamp) {
        let ahead = wall.0.cast_signed() - now.0.cast_signed();
        let before = self.wall_ahead_ms.load(Ordering::Relaxed);
        let differs = ahead.abs_diff(before) >= CLOCK_STEP_MS;
        let relaxed = Ordering::Relaxed;
        if !differs || self.wall_ahead_ms.compare_exchange(before, ahead, relaxed, relaxed).is_err()
        {
            return;
        }
        tracing::warn!(
            seconds = (ahead - before) / 1000,
            "the system's clock was set, or the machine was suspended: sessions and messages keep the time that is left to them"
        );
        self.storage.clock_was_set();
        self.recheck(self.registry.attachments());
    }

    /// The system's time at `now`.
    pub(crate) fn wall(&self, now: Timestamp) -> Timestamp {
        Timestamp(now.0.saturating_add_signed(self.wall_ahead_ms.load(Ordering::Relaxed)))
    }

    /// When the system's clock shows `wall`.
    #[must_use]
    pub fn at_wall(&self, wall: Timestamp) -> Timestamp {
        let behind = -self.wall_ahead_ms.load(Ordering::Relaxed);
        if wall == Timestamp::NEVER {
            wall
        } else {
            Timestamp(wall.0.saturating_add_signed(behind))
        }
    }

    /// Whether the rules let this session's client have what it has subscribed to and is published to
    /// `topic`. Takes the session's lock.
    pub(crate) fn may_receive(&self, session: &Session, topic: &str) -> bool {
        let access_control = self.access_control();
        let state = session.lock();
        let (user, client_id) = (state.user.as_ref(), session.client_id());
        access_control.allows(Subject { user, client_id }, Action::Receive, topic)
    }

    /// Lets `publish_hook` see every client's publications from now on. Only the first call counts:
    /// there is one such part in a program, set before clients come.
    pub fn set_publish_hook(&self, publish_hook: Arc<dyn PublishHook>) {
        drop(self.publish_hook.set(publish_hook));
    }

    pub(crate) fn publish_hook(&self) -> Option<&dyn PublishHook> {
        self.publish_hook.get().map(|hook| &**hook)
    }

    /// Sessions, connected or not.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.registry.len()
    }

    /// Subscriptions of all sessions.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        self.tree.read().len()
    }

    /// Retained messages and the bytes they count for.
    #[must_use]
    pub fn retained_totals(&self) -> (usize, usize) {
        let retained = self.retained.read();
        (retained.len(), retained.bytes())
    }

    /// Bytes that clients make the broker keep, and the limit.
    #[must_use]
    pub fn memory_totals(&self, account: Account) -> (usize, usize) {
        self.memory.totals(account)
    }

    /// Counts what another part of the program keeps for a user's sessions, until what this returns is dropped. `None`
    /// if the user has no room for them.
    #[must_use]
    pub fn count_for_user(&self, user: &User, bytes: usize) -> Option<MemoryShare> {
        // A user is the same owner at any address.
        let owner = self.memory.owner(Some(user), Ipv4Addr::UNSPECIFIED.into());
        MemoryShare::take(owner, Account::Sessions, bytes)
    }

    /// Whether there is a session of this client, connected or not.
    #[must_use]
    pub fn knows_client(&self, client_id: &str) -> bool {
        self.registry.find(client_id).is_some()
    }

    /// When the broker was started.
    #[must_use]
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// Durable storage.
    #[must_use]
    pub fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Wakes the workers that wait for storage; storage calls this after a commit.
    pub fn storage_committed(&self) {
        self.mailboxes.wake_all();
    }

    /// Disconnects every client with this reason, as each worker gets to it.
    pub fn close_all(&self, order: CloseOrder) {
        for at in self.registry.attachments() {
            self.mailboxes.post(at, BrokerEvent::Close(order));
        }
    }

    /// The rules that came with a client's login have changed: finds receivers again, and has what was decided for the
    /// client forgotten. It may be connected: the login of another connection need not end with a session.
    pub fn rights_changed(&self, client_id: &str) {
        self.change_tree(|_| ());
        let attached = self.registry.find(client_id).and_then(|session| {
            let mut state = session.lock();
            let at = state.attachment?;
            (!std::mem::replace(&mut state.awaits_recheck, true)).then_some(at)
        });
        self.recheck(attached.into_iter().collect());
    }

    /// Refuses clients with these certificates from now on ([`PeerIdentity::certificate`](crate::PeerIdentity)), and
    /// disconnects those that are connected, as each worker gets to it. Replaces those named before.
    pub fn set_revoked_certificates(&self, revoked: HashSet<u64>) {
        let before = std::mem::replace(&mut *self.revoked.write(), Arc::new(revoked));
        let now = self.revoked_certificates();
        if now.is_subset(&before) {
            return;
        }
        self.recheck(self.registry.to_recheck(|_| true).1);
    }

    pub(crate) fn revoked_certificates(&self) -> Arc<HashSet<u64>> {
        Arc::clone(&self.revoked.read())
    }

    /// Disconnects those external users, by name, whose credential was revoked or who have subscriptions
    /// they might not make now, as each worker gets to it. [`ExternalUsers`](fulmar_auth::ExternalUsers) already answer as
    /// things are.
    pub fn recheck_external_users(&self, concerns: impl Fn(&str) -> bool) {
        let about = |user: Option<&User>| match user.map(User::vouched) {
            Some(Vouched::External(name)) => concerns(name),
            _ => false,
        };
        self.recheck(self.registry.to_recheck(about).1);
    }

    fn recheck(&self, connections: Vec<Attachment>) {
        for at in connections {
            self.mailboxes.post(at, BrokerEvent::Recheck);
        }
    }

    /// Makes a change of [`IdentityTable`](fulmar_auth::IdentityTable) effective for clients that are connected: what
    /// was decided for the users whom it concerns is forgotten, and those are disconnected whose credential has changed,
    /// as each worker gets to it.
    pub fn identities_changed(&self, concerns: impl Fn(Option<&str>) -> bool) {
        let about = |user: Option<&User>| match user.map(User::operators) {
            Some(Some(name)) => concerns(Some(name)),
            Some(None) => false,
            None => concerns(None),
        };
        let (any, attached) = self.registry.to_recheck(about);
        if any {
            self.change_tree(|_| ());
        }
        self.recheck(attached);
    }

    /// Lets `control` have what clients publish to [`CONTROL_TOPIC`](crate::control::CONTROL_TOPIC), if the identity
    /// store's rules allow them that. Only the first call counts.
    pub fn set_control(&self, control: Arc<dyn Control>) {
        drop(self.control.set(control));
    }

    pub(crate) fn control(&self) -> Option<&dyn Control> {
        self.control.get().map(|control| &**control)
    }

    /// Refuses every client from now on, and names the server to use instead. Only the first call counts.
    pub fn set_redirect(&self, redirect: Arc<dyn Redirect>) {
        drop(self.redirect.set(redirect));
    }

    pub(crate) fn redirect(&self) -> Option<&dyn Redirect> {
        self.redirect.get().map(|redirect| &**redirect)
    }

    pub(crate) fn access_control(&self) -> Arc<AccessControl> {
        Arc::clone(&self.access_control.read())
    }

    /// Whether everybody may publish to this topic. Each message asks, so workers remember the answer.
    #[inline]
    pub(crate) fn is_open_to(&self, topic: &str, known: &mut OpenTopics) -> bool {
        let generation = self.access_generation.load(Ordering::Acquire);
        if known.generation != generation {
            *known = self.access_control.read().open_topics(generation);
        }
        known.contain(topic)
    }

    /// Changes the tree and makes cached routes stale.
    pub(crate) fn change_tree<R>(&self, change: impl FnOnce(&mut TopicTree) -> R) -> R {
        let mut tree = self.tree.write();
        let result = change(&mut tree);
        self.tree_generation.fetch_add(1, Ordering::AcqRel);
        result
    }

    /// Number of connections that wait for this.
    #[must_use]
    pub fn connections_waiting(&self, cause: WaitCause) -> usize {
        self.waiting.iter().map(|table| table.len(cause)).sum()
    }

    pub(crate) fn next_message_id(&self) -> MessageId {
        MessageId(self.next_message.fetch_add(1, Ordering::Relaxed))
    }

    /// Schedules the session to be examined at its earliest deadline.
    pub(crate) fn schedule(&self, session: &Arc<Session>, state: &mut SessionState) {
        let mut at = state.next_flow_expiry();
        if state.attachment.is_none() {
            at = at.min(state.expires_at).min(state.will_at.unwrap_or(Timestamp::NEVER));
        }
        if at == Timestamp::NEVER
            || state.ended
            || state.housekeeping_at.is_some_and(|set| set <= at)
        {
            return;
        }
        state.housekeeping_at = Some(at);
        self.deadlines.lock().add(Due { at, session: Arc::clone(session) });
        self.housekeeping_due(at);
    }

    pub(crate) fn next_housekeeping(&self) -> Timestamp {
        Timestamp(self.next_housekeeping.load(Ordering::Acquire))
    }

    /// Sets when housekeeping is due next, and wakes the first worker if that is sooner.
    pub(crate) fn housekeeping_due(&self, at: Timestamp) {
        if self.next_housekeeping.fetch_min(at.0, Ordering::AcqRel) > at.0 {
            self.mailboxes[0].wake();
        }
    }

    pub(crate) fn set_next_housekeeping(&self, at: Timestamp) {
        self.next_housekeeping.store(at.0, Ordering::Release);
    }

    /// Why the broker cannot store anything now: what storage reports, or that it makes no progress.
    #[must_use]
    pub fn storage_problem(&self) -> Option<String> {
        self.storage().failure().or_else(|| {
            let stalled = self.stall.lasts(self.storage());
            stalled.then(|| {
                let timeout = self.limits().storage_stall_timeout;
                format!(
                    "a commit takes longer than {timeout:?}: check whether the disk is overloaded or failing; writing \
                     resumes by itself"
                )
            })
        })
    }

    /// A batch is overdue: logs it if that is new.
    pub(crate) fn storage_stalls(&self, overdue: Seq) {
        if self.stall.begin(overdue) {
            let reason = self.storage_problem();
            tracing::error!(
                reason,
                "storage is stalled: what needs the disk is refused until it works again"
            );
            self.mailboxes.wake_all();
        }
    }

    /// Whether storage is stalled now.
    pub(crate) fn stall_lasts(&self) -> bool {
        self.stall.lasts(self.storage())
    }

    /// Whether storage is stalled; logs the end of a stall.
    pub(crate) fn is_storage_stalled(&self) -> bool {
        if self.stall.end(self.storage()) {
            tracing::info!("storage works again: nothing is refused any longer");
        }
        self.stall_lasts()
    }
}

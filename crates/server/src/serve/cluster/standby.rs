//! A node that stands by: it follows the log, and takes the lease when that is free.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use fulmar_cluster_nats::{Control, GiveUp};
use fulmar_http::{BodyBudget, Plain};
use fulmar_store::Follower;
use parking_lot::Mutex;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use super::lease::{Keeper, Lease, Watch};
use super::platform_copy::PlatformCopy;
use super::redirect::{Redirecting, Target};
use super::replica::{self, Read};
use super::{Node, membership};
#[cfg(feature = "admin")]
use crate::serve::admin::StandBySocket;
use crate::serve::stored::TakenOver;
use fulmar_config::{Config, Standby};
use fulmar_part::cluster_status::ClusterStatus;
use fulmar_part::thread::Thread;
use fulmar_part::where_to_change;

/// Time between two looks at the lease.
const LOOK: Duration = Duration::from_millis(100);
/// Pause after the log had nothing new.
const IDLE: Duration = Duration::from_millis(50);
/// After the disk could not be written.
const DISK_AGAIN: Duration = Duration::from_secs(5);
/// Time between two transactions of the copy.
const FLUSH: Duration = Duration::from_secs(1);
/// Pauses between snapshots that fail double up to this many times, to an hour: what was stored of one stays in NATS as
/// long.
const MAX_DOUBLINGS: u32 = 7;
/// A node that is busy with a snapshot leaves a free lease to others for so long; then it is the only one left, as it
/// seems, and gives up an upload.
const LEAVE_TO_OTHERS: Duration = Duration::from_secs(10);
/// Connections at once to one address of `http`.
const CONNECTIONS: usize = 64;

/// End of standing by.
pub(super) enum Stood {
    /// The process is to stop.
    Stop(Box<Follower>),
    /// This node has the lease and the log.
    TakeOver(Box<(TakenOver, Keeper)>),
}

/// Work of a node that stands by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StandbyTask {
    /// Follows the log; it could serve at once.
    Follows,
    /// Fetches a snapshot, without which it cannot serve.
    Fetches,
    /// Stores one.
    Stores,
}

/// Result of a check whether the log is too long.
enum Shortened {
    /// It is not, or not any more.
    Done,
    Failed,
    /// This node has the lease.
    GivenUp,
}

/// The listeners of a node that stands by.
pub(super) struct StandBy {
    serving: Arc<Mutex<String>>,
    target: Arc<Target>,
    redirecting: Option<Redirecting>,
    #[cfg(feature = "admin")]
    /// Answers `fulmar ctl` with the node that serves.
    _socket: Option<StandBySocket>,
    /// Ends with this.
    http: Plain,
}

impl StandBy {
    /// Binds the `http` addresses, and those of MQTT clients if they are to be redirected.
    pub(super) fn start(
        config: &mut Config,
        status: &Arc<ClusterStatus>,
    ) -> anyhow::Result<StandBy> {
        let serving = Arc::new(Mutex::new("no node".to_owned()));
        let status = Arc::clone(status);
        let metrics = move || std::future::ready(crate::serve::http::standby_metrics(&status));
        let router = axum::Router::new()
            .route("/metrics", get(metrics))
            .route("/health/live", get(|| async { "ok\n" }))
            .route("/health/ready", get(ready))
            .fallback(ready)
            .with_state(Arc::clone(&serving));
        let router = crate::serve::http::hosts::only_known(router, config);
        let bodies = BodyBudget::new(config.buffered_bodies());
        let limits = fulmar_http::Limits {
            max_connections: CONNECTIONS,
            ..config.http.limits(&config.limits, config.memory())
        };
        let http = Plain::start(&config.listeners.http, &limits, &bodies, router);
        let http = http.with_context(|| where_to_change("http"))?;
        let data = config.data_dir();
        let target = Arc::new(Target::default());
        let redirecting = match config.cluster.standby {
            Standby::Refuse => None,
            Standby::Redirect => Some(Redirecting::start(config, &data, Arc::clone(&target))?),
        };
        Ok(StandBy {
            #[cfg(feature = "admin")]
            _socket: StandBySocket::start(&data, &serving),
            serving,
            target,
            redirecting,
            http,
        })
    }

    /// Follows the log until this node takes over, or the process is to stop.
    pub(super) fn wait(
        &self,
        node: &mut Node,
        mut follower: Follower,
        signals: &mut Signals,
    ) -> anyhow::Result<Stood> {
        membership::print_line(&self.line())?;
        crate::serve::notify::ready();
        let mut platform = PlatformCopy::open(&node.config, &node.data)?;
        let mut watcher = Watcher::start(node, &self.serving, &self.target)?;
        let mut flush_at = Instant::now() + FLUSH;
        let (mut length_at, mut failures) = (Instant::now() + replica::length_pause(), 0);
        loop {
            for signal in signals.pending() {
                if signal != SIGHUP {
                    return Ok(Stood::Stop(Box::new(follower)));
                }
                if let Some(redirecting) = &self.redirecting {
                    redirecting.reload(&node.config);
                }
            }
            let (kept, read) = follow(follower, node, &watcher.work)?;
            follower = kept;
            if Instant::now() >= flush_at {
                flush_at = Instant::now() + FLUSH;
                if let Err(error) = write_down(&mut follower, &mut platform) {
                    if !replica::is_of_disk(&error) {
                        return Err(error);
                    }
                    tracing::warn!("{error:#}; trying again");
                    flush_at += DISK_AGAIN;
                }
                node.beat.go_on(membership::STANDING_BY, follower.position().number);
                node.status.set_position(follower.position().number);
            }
            if Instant::now() >= length_at {
                match shorten(node, &mut follower, &watcher) {
                    Shortened::Done => failures = 0,
                    Shortened::Failed => failures = MAX_DOUBLINGS.min(failures + 1),
                    Shortened::GivenUp => {}
                }
                length_at = Instant::now() + replica::length_pause() * (1 << failures);
            }
            if let Some(keeper) = watcher.taken() {
                match node.claim(follower, &mut platform, &keeper) {
                    Ok(taken) => return Ok(Stood::TakeOver(Box::new((taken, keeper)))),
                    Err(error) => {
                        tracing::warn!("not taken over: {error:#}");
                        keeper.release();
                        if !replica::is_passing(&error) {
                            return Err(error);
                        }
                        follower = node.open_replica()?;
                        watcher = Watcher::start(node, &self.serving, &self.target)?;
                    }
                }
            }
            if let Read::Nothing = read {
                std::thread::sleep(IDLE);
            }
        }
    }

    /// The line on standard output: `standby` and every listener.
    fn line(&self) -> String {
        let mut all = self.redirecting.as_ref().map(Redirecting::bound).unwrap_or_default();
        all.extend(self.http.bound().iter().map(|&at| ("http", at)));
        let words = all.iter().map(|(name, address)| format!(" {name}={address}"));
        std::iter::once("standby".to_owned()).chain(words).collect()
    }
}

/// Stores a snapshot when the log has become long.
fn shorten(node: &Node, follower: &mut Follower, watcher: &Watcher) -> Shortened {
    *watcher.work.lock() = StandbyTask::Stores;
    let done = store_if_long(node, follower, &watcher.give_up);
    *watcher.work.lock() = StandbyTask::Follows;
    match done {
        Ok(()) => Shortened::Done,
        Err(error) if replica::is_given_up(&error) => {
            tracing::info!("snapshot given up: this node takes over");
            Shortened::GivenUp
        }
        Err(error) => {
            tracing::warn!("no snapshot: {error:#}");
            Shortened::Failed
        }
    }
}

fn store_if_long(node: &Node, follower: &mut Follower, give_up: &GiveUp) -> anyhow::Result<()> {
    let (log, snapshots) = (&node.shared.log, &node.shared.snapshots);
    if replica::needs_snapshot(log, snapshots)? {
        replica::snapshot(follower, &node.data, log, snapshots, give_up)?;
    }
    Ok(())
}

/// Watches the lease on a thread of its own, because the log may not answer while its servers elect a leader, and takes it.
struct Watcher {
    work: Arc<Mutex<StandbyTask>>,
    /// Once this node has the lease, it stores no snapshot.
    give_up: GiveUp,
    taken: Receiver<Keeper>,
    thread: Option<Thread>,
}

impl Watcher {
    fn start(
        node: &Node,
        serving: &Arc<Mutex<String>>,
        target: &Arc<Target>,
    ) -> anyhow::Result<Watcher> {
        let (found, taken) = channel();
        let (work, give_up) = (Arc::new(Mutex::new(StandbyTask::Follows)), GiveUp::default());
        let mut attempt = Attempt {
            control: node.shared.control.clone(),
            lease: node.lease(),
            hold_off: node.hold_off,
            serving: Arc::clone(serving),
            target: Arc::clone(target),
            status: Arc::clone(&node.status),
            work: Arc::clone(&work),
            give_up: give_up.clone(),
            free_since: None,
        };
        let mut watch = Watch::new(node.incarnation);
        let thread = Thread::blocking("fulmar-watch", move |stopped| {
            while stopped.pause(LOOK) {
                if let Some(keeper) = attempt.try_lease(&mut watch) {
                    // Nobody is there to take it only if the receiver has gone with the thread that joins this one.
                    drop(found.send(keeper));
                    return;
                }
            }
        })?;
        Ok(Watcher { work, give_up, taken, thread: Some(thread) })
    }

    /// The lease, once this node has it.
    fn taken(&self) -> Option<Keeper> {
        self.taken.try_recv().ok()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.thread.take());
        if let Some(keeper) = self.taken() {
            keeper.release();
        }
    }
}

/// State of an attempt to acquire the lease.
struct Attempt {
    control: Control,
    lease: Lease,
    hold_off: Option<Instant>,
    /// The node that serves, for those who ask.
    serving: Arc<Mutex<String>>,
    /// Where clients are redirected.
    target: Arc<Target>,
    status: Arc<ClusterStatus>,
    work: Arc<Mutex<StandbyTask>>,
    give_up: GiveUp,
    /// Since when the lease is free and nobody takes it.
    free_since: Option<Instant>,
}

impl Attempt {
    /// Takes the lease, if it is free.
    fn try_lease(&mut self, watch: &mut Watch) -> Option<Keeper> {
        let revision = match watch.read_record(&self.control) {
            Ok(revision) => revision,
            Err(error) => {
                tracing::debug!(%error, "lease not read");
                self.name(watch);
                return None;
            }
        };
        self.name(watch);
        let shown = watch.holder().map_or_else(|| "no node".to_owned(), Lease::shown);
        *self.serving.lock() = shown;
        // Of others that have released it or died, this node may be the only one left.
        let drained = watch.was_last_of(&self.lease.node);
        let held_off = drained && self.hold_off.is_some_and(|until| Instant::now() < until);
        let Some(revision) = revision.filter(|_| !held_off) else {
            self.free_since = None;
            return None;
        };
        let since = *self.free_since.get_or_insert_with(Instant::now);
        if since.elapsed() < leave_to_others(*self.work.lock(), self.status.others_stand_by()) {
            return None;
        }
        match Keeper::acquire(&self.control, self.lease.clone(), revision, &self.status) {
            Ok(Some(keeper)) => {
                self.target.set(&[]);
                tracing::info!("took the lease");
                self.give_up.give_up();
                Some(keeper)
            }
            Ok(None) => {
                watch.again();
                None
            }
            Err(error) => {
                tracing::warn!("lease not taken: {error:#}");
                watch.unanswered();
                None
            }
        }
    }

    /// Names the node that serves, to clients and in the metrics.
    fn name(&self, watch: &Watch) {
        let serves = watch.serves(Instant::now());
        self.status.set_serving(serves.map_or("", |lease| &lease.node));
        self.target.set(serves.map_or(&[][..], |lease| &lease.addresses[..]));
    }
}

/// Time for which a node leaves a free lease to others, of which one could serve at once if any stands by.
fn leave_to_others(work: StandbyTask, others_stand_by: bool) -> Duration {
    match work {
        StandbyTask::Follows => Duration::ZERO,
        StandbyTask::Stores if !others_stand_by => Duration::ZERO,
        StandbyTask::Stores | StandbyTask::Fetches => LEAVE_TO_OTHERS,
    }
}

/// Writes what was read to the databases.
fn write_down(follower: &mut Follower, platform: &mut PlatformCopy) -> anyhow::Result<()> {
    follower.flush()?;
    platform.follow(follower)
}

/// Reads on, and begins with a snapshot if the log begins later.
fn follow(
    mut follower: Follower,
    node: &Node,
    work: &Mutex<StandbyTask>,
) -> anyhow::Result<(Follower, Read)> {
    let shared = &node.shared;
    match replica::follow(&mut follower, &shared.log) {
        Ok(read) => Ok((follower, read)),
        Err(error) if replica::is_removed(&error) => {
            let options = node.options();
            *work.lock() = StandbyTask::Fetches;
            let replaced =
                replica::replace(follower, &node.data, &options, &shared.log, &shared.snapshots);
            *work.lock() = StandbyTask::Follows;
            match replaced {
                Ok(follower) => Ok((follower, Read::Some)),
                // An election; or a snapshot that was removed behind newer ones. The next read finds the same.
                Err(error) if replica::is_passing(&error) => {
                    tracing::warn!("{error:#}; trying again");
                    Ok((node.open_replica()?, Read::Nothing))
                }
                Err(error) => Err(error),
            }
        }
        // A full disk.
        Err(error) if replica::is_of_disk(&error) => {
            tracing::warn!("{error:#}; trying again");
            std::thread::sleep(DISK_AGAIN);
            Ok((follower, Read::Nothing))
        }
        Err(error) if replica::is_passing(&error) => {
            tracing::debug!("{error:#}");
            Ok((follower, Read::Nothing))
        }
        Err(error) => Err(error),
    }
}

async fn ready(State(serving): State<Arc<Mutex<String>>>) -> (StatusCode, String) {
    let text = format!("standing by; {} serves\n", serving.lock());
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_node_leaves_the_lease_to_others_that_could_serve_at_once() {
        for others in [true, false] {
            assert_eq!(leave_to_others(StandbyTask::Follows, others), Duration::ZERO);
            // It could not serve before the end.
            assert_eq!(leave_to_others(StandbyTask::Fetches, others), LEAVE_TO_OTHERS);
        }
        assert_eq!(leave_to_others(StandbyTask::Stores, true), LEAVE_TO_OTHERS);
        assert_eq!(
            leave_to_others(StandbyTask::Stores, false),
            Duration::ZERO,
            "the only one left"
        );
    }
}

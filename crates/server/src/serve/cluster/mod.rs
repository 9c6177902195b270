//! A node of a cluster: it stands by behind the log, serves while it has the lease, and gives way.
//!
//! 1. It stands by: its copy of the database follows the log ([`replica`]), it answers `/health/ready` with 503 and the
//!    name of the node that serves, and has no other listener. A client's connection is refused at once, which every
//!    client with a list of addresses and every load balancer understands. Or it names the node that serves ([`redirect`]).
//! 2. It takes the lease when that is free ([`lease`]), claims the log, and starts a server on its copy.
//! 3. It gives way when another node has the lease or the log: the server ends at once, and the node stands by.
//!
//! What is in NATS is `fulmar_cluster_nats`' part; what makes an acknowledgement durable is the store's
//! ([`journal`]).

mod check;
mod commands;
mod gather;
mod journal;
mod lease;
mod membership;
#[cfg_attr(not(feature = "platform"), path = "no_platform_copy.rs")]
mod platform_copy;
mod redirect;
mod replica;
mod shared_files;
mod standby;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fulmar_certs::{files, random_number};
use fulmar_cluster_nats::Error;
use fulmar_store::Follower;
use fulmar_store::journal::Claimant;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use self::journal::StreamJournal;
use self::lease::{Keeper, Lease};
use self::membership::{Beat, Shared};
use self::platform_copy::PlatformCopy;
use self::standby::{StandBy, Stood};
use super::command::announce;
use super::listeners;
use super::memory::Memory;
use super::notify::{self, Watchdog};
use super::server::Server;
use super::stored::TakenOver;
use fulmar_config::Config;
use fulmar_part::cluster_status::ClusterStatus;

pub use commands::{Args as ClusterArgs, run as cluster_command};

/// Time between two looks at signals, the lease and the log.
const TURN: Duration = Duration::from_millis(50);
/// Without an answer to a renewal for so long, a node stops serving: NATS has no majority, or is out of reach.
const SILENCE: Duration = Duration::from_secs(30);
/// The same without a connection to any server: then it is this node that is cut off, and its clients could be served
/// elsewhere.
const CUT_OFF: Duration = Duration::from_secs(6);
/// A change to another server takes no longer.
const CHANGE: Duration = Duration::from_secs(3);
/// After it has given way on request, a node leaves the lease that it has released to others for this time.
const HOLD_OFF: Duration = Duration::from_secs(10);
/// For clients to receive their last messages when another node is to serve, for which all of them wait; what does not
/// arrive, the other node delivers.
const HAND_OVER: Duration = Duration::from_millis(100);
/// Time between two attempts to reach NATS at the start.
const CONNECT_AGAIN: Duration = Duration::from_secs(2);

/// Time for which a node looks for a server with JetStream, if it has several.
const OTHER_SERVER: Duration = Duration::from_secs(20);

/// Why a node stops serving.
enum End {
    /// The process is to stop.
    Stop,
    /// Another node serves, or NATS is out of reach.
    GiveWay(String),
    /// `fulmar cluster drain`.
    Drain,
}

struct Node {
    config: Config,
    data: PathBuf,
    shared: Shared,
    incarnation: u64,
    beat: Beat,
    status: Arc<ClusterStatus>,
    /// Until when it does not take a lease that it has released.
    hold_off: Option<Instant>,
    watchdog: Watchdog,
}

/// Runs a node until SIGTERM or SIGINT. `reload` is called with the server on SIGHUP.
///
/// # Errors
/// The node cannot be one of the cluster, its data cannot be used, or the server cannot start.
pub(super) fn run(
    config: Config,
    signals: &mut Signals,
    reload: &dyn Fn(&Server),
) -> anyhow::Result<()> {
    let Some((mut node, mut follower)) = Node::open(config, signals)? else { return Ok(()) };
    let _gatherer = gather::start(&node.shared, &node.status)?;
    loop {
        let stand_by = StandBy::start(&mut node.config, &node.status)?;
        let stood = stand_by.wait(&mut node, follower, signals);
        drop(stand_by);
        let (taken, keeper) = match stood? {
            Stood::Stop(follower) => {
                drop(follower);
                node.beat.end();
                return Ok(());
            }
            Stood::TakeOver(taken) => *taken,
        };
        let end = node.serve(taken, &keeper, signals, reload);
        match end {
            Ok(End::Stop) => {
                keeper.release();
                node.beat.end();
                return Ok(());
            }
            Ok(End::Drain) => {
                tracing::info!("drained; standing by");
                keeper.release();
                node.hold_off = Some(Instant::now() + HOLD_OFF);
            }
            Ok(End::GiveWay(why)) => {
                tracing::warn!(why, "gave way; standing by");
                drop(keeper);
            }
            Err(error) => {
                keeper.release();
                node.beat.end();
                return Err(error);
            }
        }
        follower = node.open_replica()?;
    }
}

impl Node {
    /// Connects and checks everything. `None` if the process is to stop before NATS answers.
    fn open(mut config: Config, signals: &mut Signals) -> anyhow::Result<Option<(Node, Follower)>> {
        config.check_files()?;
        let data = config.data_dir();
        files::make_private_dir(&data)?;
        check::local(&data)?;
        let connect = || membership::connect(&config.cluster, "node");
        let Some(connection) = until_answered(signals, &config, connect)? else { return Ok(None) };
        check::sync_always(&config.cluster)?;
        let open = || Ok(Shared::open(&connection, &config.cluster)?);
        let Some(shared) = until_answered(signals, &config, open)? else { return Ok(None) };
        membership::check_folder(&data, shared.log.cluster())?;
        config.cluster.server_id = Some(config.cluster.server_id_in(shared.log.cluster()));
        let incarnation = random_number()?;
        let begin = || Beat::begin(&shared.control, &config.cluster, incarnation);
        let Some(beat) = until_answered(signals, &config, begin)? else { return Ok(None) };
        let status = Arc::new(ClusterStatus::new(&config.cluster.node));
        let watchdog = Watchdog::start()?;
        let node =
            Node { config, data, shared, incarnation, beat, status, hold_off: None, watchdog };
        let open = || node.open_replica();
        let Some(mut follower) = until_answered(signals, &node.config, open)? else {
            return Ok(None);
        };
        check::users(&node.config, &mut follower)?;
        membership::join(&node.data, node.shared.log.cluster())?;
        Ok(Some((node, follower)))
    }

    fn options(&self) -> fulmar_store::Options {
        self.config.storage.options(self.config.store_part())
    }

    fn open_replica(&self) -> anyhow::Result<Follower> {
        replica::open(&self.data, &self.options(), &self.shared.snapshots)
    }

    /// Returns the contents of the lease while this node has it.
    fn lease(&self) -> Lease {
        Lease {
            node: self.config.cluster.node.clone(),
            address: self.config.cluster.address.clone(),
            addresses: self.config.cluster.urls(&self.config.listeners),
            incarnation: self.incarnation,
            ..Lease::default()
        }
    }

    /// Claims the log with the lease in hand.
    ///
    /// # Errors
    /// NATS does not answer, or the log cannot be used.
    fn claim(
        &self,
        mut follower: Follower,
        platform: &mut PlatformCopy,
        keeper: &Keeper,
    ) -> anyhow::Result<TakenOver> {
        // Another one for each claim: the log may have an earlier claim of this process.
        let incarnation = random_number()?;
        let claimant = Claimant { node: &self.config.cluster.node, incarnation };
        let position = replica::claim(&mut follower, &self.shared.log, claimant)?;
        platform.follow(&mut follower)?;
        tracing::info!(%position, "claimed the log");
        let (journal, refused) =
            StreamJournal::new(self.shared.log.clone(), keeper.lasts(), Arc::clone(&self.status));
        self.status.set_position(position.number);
        let (journal, status) = (Box::new(journal), Arc::clone(&self.status));
        Ok(TakenOver { follower, incarnation, journal, refused, lost: keeper.reason(), status })
    }

    /// Runs a server until it is to end, and ends it.
    fn serve(
        &mut self,
        taken: TakenOver,
        keeper: &Keeper,
        signals: &mut Signals,
        reload: &dyn Fn(&Server),
    ) -> anyhow::Result<End> {
        let refused = Arc::clone(&taken.refused);
        let server = Server::start_in_cluster(self.config.clone(), taken)?;
        let memory = Memory::start(server.broker()?, self.config.memory_limit())?;
        self.status.set_serves(true);
        announce(&listeners::ready_line(server.bound()))?;
        notify::ready();
        self.watchdog.watch(server.workers());
        let end = self.watch(keeper, &refused, signals, &|| reload(&server));
        self.status.set_serves(false);
        self.watchdog.watch(None);
        drop(memory);
        match end {
            End::GiveWay(why) => {
                // At once: what is acknowledged from here on is another node's.
                drop(server);
                Ok(End::GiveWay(why))
            }
            end => {
                if matches!(end, End::Stop) {
                    notify::stopping();
                }
                match (server.stop_within(HAND_OVER), &end) {
                    // The log may have no leader at the moment. What was not stored was not acknowledged.
                    (Err(error), End::Drain) => tracing::warn!("{error:#}"),
                    (stopped, _) => stopped?,
                }
                Ok(end)
            }
        }
    }

    /// Waits until this node is to stop serving.
    fn watch(
        &mut self,
        keeper: &Keeper,
        refused: &AtomicBool,
        signals: &mut Signals,
        reload: &dyn Fn(),
    ) -> End {
        let (mut answered_at, mut connected_at) = (Instant::now(), Instant::now());
        let drain = commands::drain_key(&self.config.cluster.node);
        let mut look_at = Instant::now();
        loop {
            for signal in signals.pending() {
                if signal != SIGHUP {
                    return End::Stop;
                }
                reload();
            }
            if let Some(why) = keeper.lost() {
                return End::GiveWay(why);
            }
            if refused.load(Ordering::Acquire) {
                return End::GiveWay("another node has claimed the log".to_owned());
            }
            if self.shared.log.connection().is_connected() {
                connected_at = Instant::now();
            }
            if keeper.is_renewed() {
                answered_at = Instant::now();
            } else if answered_at.elapsed() > SILENCE {
                let seconds = SILENCE.as_secs();
                return End::GiveWay(format!("no answer from NATS for {seconds} s"));
            } else if answered_at.elapsed() > CUT_OFF && connected_at.elapsed() > CHANGE {
                return End::GiveWay("no NATS server can be reached".to_owned());
            }
            if Instant::now() >= look_at && keeper.is_renewed() {
                look_at = Instant::now() + Duration::from_secs(1);
                self.beat.go_on(membership::SERVING, 0);
                if let Ok(Some(asked)) = self.shared.control.get(&drain)
                    && self.shared.control.remove(&drain).is_ok()
                    && commands::asks_to_drain(&asked, self.incarnation)
                {
                    return End::Drain;
                }
            }
            std::thread::sleep(TURN);
        }
    }
}

/// Repeats what NATS has not answered. `None` if the process is to stop before.
///
/// # Errors
/// What does not pass. Of several servers, one may have no JetStream for a while, such as one that has just started or
/// whose disk is full.
fn until_answered<T>(
    signals: &mut Signals,
    config: &Config,
    ask: impl Fn() -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    let begun = Instant::now();
    loop {
        let error = match ask() {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error,
        };
        let lacks = matches!(error.downcast_ref(), Some(Error::NoJetStream(_)));
        let others = lacks && config.cluster.servers.len() > 1 && begun.elapsed() < OTHER_SERVER;
        if !others && !replica::is_passing(&error) {
            return Err(error);
        }
        tracing::warn!("{error:#}; trying again");
        if stops_within(signals, CONNECT_AGAIN) {
            return Ok(None);
        }
    }
}

/// Waits, and returns whether the process is to stop.
fn stops_within(signals: &mut Signals, time: Duration) -> bool {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if signals.pending().any(|signal| signal != SIGHUP) {
            return true;
        }
        std::thread::sleep(TURN);
    }
    false
}

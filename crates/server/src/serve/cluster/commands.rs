//! `fulmar cluster`: creates a cluster, shows it, and does what is done to it by hand.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fulmar_certs::{files, random_number};
use fulmar_cluster_nats::{Connection, Control, Creation, Entry, GiveUp, LogStream, Snapshots};
use fulmar_store::Follower;
use fulmar_store::journal::LogPosition;

use super::lease::{self, Lease, Watch};
use super::membership::{self, Shared, StoredNode, print_line, replicas, scratch};
use super::replica::{self, DATABASE, Read};
use super::{check, platform_copy, shared_files};
use crate::exit::Usage;
use fulmar_config::Config;
use fulmar_part::cluster_status::GONE_S;

/// Time for which a lease is watched to see whether its node renews it.
const WATCH: Duration = Duration::from_secs(6);
const LOOK: Duration = Duration::from_millis(250);
/// For NATS to answer; an election of its servers takes 4 to 9 s, and longer on a busy machine.
const ELECTION: Duration = Duration::from_secs(45);
/// For another node to take over after a drain.
const DRAIN: Duration = Duration::from_secs(60);

const EXAMPLES: &str = "\
Examples:
  fulmar cluster init --config fulmar.toml       create the cluster from this node's data folder
  fulmar serve --config fulmar.toml              run this node, and each other one with its own file
  fulmar cluster status --config fulmar.toml     which node serves, and how far the others are
  fulmar cluster drain n1 --config fulmar.toml   have another node serve, before n1 is upgraded";

/// Several brokers with one state: create a cluster, show it, drain a node
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    /// Configuration file of a node, with [cluster]
    #[arg(long, short, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// The node's data folder [default: [server] data_dir of the configuration, else ~/.local/share/fulmar]
    #[arg(long, value_name = "DIR", env = "FULMAR_DATA", global = true)]
    data: Option<PathBuf>,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Create the cluster, with the sessions and messages in this node's data folder as its first state
    Init,
    /// Show which node serves, the nodes, the log and the snapshots
    Status,
    /// Have another node serve
    Drain {
        /// The node that serves now
        node: String,
    },
    /// Store a snapshot now, and remove the log that no snapshot needs
    Snapshot,
    /// Begin the log anew behind the last record that can be read; no node may be running
    Restore {
        /// Discard the records behind it
        #[arg(long)]
        discard: bool,
    },
    /// Make the data folder that of a broker alone again; no node may be running
    Leave,
}

/// Runs the command.
///
/// # Errors
/// What cannot be done, and what to do.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = Config::load(args.config.as_deref())?;
    let config = match &args.data {
        Some(data) => config.with_data_dir(data),
        None => config,
    };
    if !config.cluster.is_on() {
        let text =
            "no cluster is configured: name the file with [cluster] servers and node with --config";
        return Err(Usage(text.to_owned()).into());
    }
    config.check_files()?;
    check::sync_always(&config.cluster)?;
    let connection = membership::connect(&config.cluster, "cluster")?;
    let data = config.data_dir();
    let shared = || until_answered(|| Ok(Shared::open(&connection, &config.cluster)?));
    match &args.action {
        Action::Init => init(&config, &data, &connection),
        Action::Status => status(&shared()?),
        Action::Drain { node } => drain(&shared()?, node),
        Action::Snapshot => snapshot(&config, &data, &shared()?),
        Action::Restore { discard } => restore(&config, &data, shared()?, *discard),
        Action::Leave => leave(&config, &data, &shared()?),
    }
}

/// Repeats what NATS has not answered, for as long as an election may take.
fn until_answered<T>(mut ask: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let end = Instant::now() + ELECTION;
    let mut is_said = false;
    loop {
        match ask() {
            Err(error) if replica::is_passing(&error) && Instant::now() < end => {
                if !std::mem::replace(&mut is_said, true) {
                    eprintln!(
                        "NATS has not answered yet ({error}); its servers may be electing: waiting for at most {} s",
                        ELECTION.as_secs()
                    );
                }
                std::thread::sleep(LOOK);
            }
            answer => return answer,
        }
    }
}

fn options(config: &Config) -> fulmar_store::Options {
    config.storage.options(config.store_part())
}

fn init(config: &Config, data: &Path, connection: &Connection) -> anyhow::Result<()> {
    files::make_private_dir(data)?;
    // Before anything is changed: there must be no cluster yet.
    until_answered(|| match LogStream::open(connection, true) {
        Err(fulmar_cluster_nats::Error::NoCluster) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(log) => Err(fulmar_cluster_nats::Error::Exists(log.cluster().to_owned()).into()),
    })?;
    let path = data.join(DATABASE);
    let cluster = format!("{:016x}", random_number()?);
    let joins = !membership::is_member(data);
    let mut follower = if !joins || !path.exists() {
        Follower::open(&path, &options(config))?
    } else if let Some(begun) = begun(&path, config) {
        begun
    } else {
        Follower::adopt(&path, &options(config))?
    };
    if joins {
        shared_files::bring(config, data, &mut follower)?;
    } else {
        platform_copy::start_over(data)?;
    }
    check::users(config, &mut follower)?;
    let position = follower.position();
    let replicas = replicas(&config.cluster);
    until_answered(|| Ok(Control::open(connection, replicas)?))?;
    let snapshots = until_answered(|| Ok(Snapshots::open(connection, replicas)?))?;
    for old in until_answered(|| Ok(snapshots.list()?))? {
        until_answered(|| Ok(snapshots.remove(old.number)?))?;
    }
    // Nodes begin with a snapshot, so it is there before the log, which makes the cluster one.
    let folder = scratch(data)?;
    let file = folder.join(DATABASE);
    follower.snapshot(&file)?;
    let never = GiveUp::default();
    let stored =
        until_answered(|| Ok(snapshots.upload(position.number, &file, HashMap::new(), &never)?))?;
    std::fs::remove_dir_all(&folder)?;
    membership::join(data, &cluster)?;
    let creation = Creation { cluster: cluster.clone(), first: position.number + 1, replicas };
    until_answered(|| Ok(LogStream::create(connection, &creation)?))?;
    if joins {
        platform_copy::begin(config, data, position.number)?;
    }
    print_line(&format!(
        "created cluster {cluster} with {} bytes of state; start each node with `fulmar serve`",
        stored.bytes
    ))
}

/// A broker's database that an `init` that failed has begun to make the first state of a cluster.
fn begun(path: &Path, config: &Config) -> Option<Follower> {
    let follower = Follower::open(path, &options(config)).ok()?;
    (follower.position() == LogPosition::default()).then_some(follower)
}

fn status(shared: &Shared) -> anyhow::Result<()> {
    let state = shared.log.state()?;
    print_line(&format!("cluster   {}", shared.log.cluster()))?;
    let serving = lease::current(&shared.control)?.filter(|lease| !lease.released);
    let shown = serving.as_ref().map_or_else(|| "no node".to_owned(), Lease::shown);
    print_line(&format!("serving   {shown}"))?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    for StoredNode { name, record, .. } in membership::nodes(&shared.control)? {
        let age = now.saturating_sub(record.at);
        let role = match (age > GONE_S, record.role.as_str()) {
            (true, _) => format!("gone for {age} s"),
            // One that has died cannot say so.
            (false, membership::SERVING) if serving.as_ref().is_none_or(|one| one.node != name) => {
                format!("served until another took over; no sign for {age} s")
            }
            (false, membership::SERVING) => membership::SERVING.to_owned(),
            (false, role) => format!("{role}, has record {}", record.position),
        };
        let address = if record.address.is_empty() { "-" } else { &record.address };
        let id = if record.server_id.is_empty() { "-" } else { &record.server_id };
        print_line(&format!(
            "node      {name}  {address}  QUIC {id}  version {}  {role}",
            record.version
        ))?;
    }
    let leader = state.leader.as_deref().unwrap_or("none");
    print_line(&format!(
        "log       records {} to {}, {} bytes, on {} of {} servers, leader {leader}",
        state.first, state.last, state.bytes, state.current, state.replicas
    ))?;
    for snapshot in shared.snapshots.list()? {
        print_line(&format!(
            "snapshot  up to record {}, {} bytes",
            snapshot.number, snapshot.bytes
        ))?;
    }
    Ok(())
}

/// The record that asks a node to stop serving.
pub(super) fn drain_key(node: &str) -> String {
    format!("drain.{node}")
}

/// Whether such a record asks this process: one that nobody took, because its node died first, is not the next one's.
pub(super) fn asks_to_drain(asked: &Entry, incarnation: u64) -> bool {
    // An earlier version names no process.
    *asked.value == *b"1" || *asked.value == *incarnation.to_string().as_bytes()
}

fn drain(shared: &Shared, node: &str) -> anyhow::Result<()> {
    let current = || {
        let lease = until_answered(|| Ok(lease::current(&shared.control)?))?;
        anyhow::Ok(lease.filter(|lease| !lease.released))
    };
    let serving = current()?;
    let Some(lease) = serving.as_ref().filter(|lease| lease.node == node) else {
        let serving = serving.as_ref().map_or("no node", |lease| &lease.node);
        return print_line(&format!("{node} does not serve; {serving} does"));
    };
    let process = lease.incarnation.to_string();
    until_answered(|| Ok(shared.control.overwrite(&drain_key(node), process.as_bytes())?))?;
    let end = Instant::now() + DRAIN;
    while Instant::now() < end {
        std::thread::sleep(LOOK);
        if let Some(lease) = current()?.filter(|lease| lease.node != node) {
            return print_line(&format!("{} serves", lease.shown()));
        }
    }
    shared.control.remove(&drain_key(node))?;
    anyhow::bail!(
        "no other node has taken over within {} s: is another one running?",
        DRAIN.as_secs()
    )
}

/// A copy of the newest snapshot in a folder of its own, at the end of the log.
fn catch_up(config: &Config, folder: &Path, shared: &Shared) -> anyhow::Result<Follower> {
    let mut follower = replica::open(folder, &options(config), &shared.snapshots)?;
    let end = shared.log.state()?.last;
    while follower.position().number < end {
        if let Read::Nothing = replica::follow(&mut follower, &shared.log)? {
            std::thread::sleep(LOOK);
        }
    }
    Ok(follower)
}

fn snapshot(config: &Config, data: &Path, shared: &Shared) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("cluster-").tempdir_in(data);
    let folder = folder.with_context(|| data.display().to_string())?;
    let mut follower = match catch_up(config, folder.path(), shared) {
        // No snapshot reaches the log, but this node's own copy may. A node that runs has it open.
        Err(error) if replica::is_removed(&error) && membership::is_member(data) => {
            membership::check_folder(data, shared.log.cluster())?;
            let own = catch_up(config, data, shared);
            own.context("no snapshot reaches the log. If this node has all of it, stop it and run this again")?
        }
        caught_up => caught_up?,
    };
    let (log, snapshots, give_up) = (&shared.log, &shared.snapshots, GiveUp::default());
    let number = replica::snapshot(&mut follower, folder.path(), log, snapshots, &give_up)?;
    print_line(&format!("stored a snapshot up to record {number}"))
}

/// The node that serves: it renews the lease while this watches.
fn renewed_by(shared: &Shared) -> anyhow::Result<Option<String>> {
    let mut watch = Watch::default();
    let end = Instant::now() + WATCH;
    loop {
        if watch.read_record(&shared.control)?.is_some() {
            return Ok(None);
        }
        if Instant::now() > end {
            return Ok(Some(watch.holder().map(lease::Lease::shown).unwrap_or_default()));
        }
        std::thread::sleep(LOOK);
    }
}

/// Stores the readable part of the log as a snapshot, behind which a new log begins.
fn restore(config: &Config, data: &Path, shared: Shared, discard: bool) -> anyhow::Result<()> {
    if let Some(node) = renewed_by(&shared)? {
        return Err(Usage(format!("{node} serves: nothing needs to be restored")).into());
    }
    check::local(data)?;
    membership::check_folder(data, shared.log.cluster())?;
    files::make_private_dir(data)?;
    let folder = tempfile::Builder::new().prefix("cluster-").tempdir_in(data);
    let folder = folder.with_context(|| data.display().to_string())?;
    let mut follower = replica::open(folder.path(), &options(config), &shared.snapshots)?;
    let last = shared.log.state()?.last;
    let damage = loop {
        match replica::follow(&mut follower, &shared.log) {
            Ok(_) if follower.position().number >= last => break None,
            Ok(Read::Some) => {}
            Ok(Read::Nothing) => std::thread::sleep(LOOK),
            Err(error) if replica::is_damage(&error) && !replica::is_too_old(&error) => {
                break Some(error);
            }
            // Nothing is damaged.
            Err(error) => return Err(error),
        }
    };
    let file = folder.path().join("restored");
    let position = follower.snapshot(&file)?;
    if damage.is_none() && position.number == last {
        return print_line(&format!(
            "the log is whole up to record {last}: nothing needs to be restored"
        ));
    }
    if let Some(damage) = damage {
        print_line(&format!("{damage:#}"))?;
    }
    print_line(&format!("can be read: up to {position}; the log goes on to record {last}"))?;
    if !discard {
        return print_line("to discard what comes after it: the same command with --discard");
    }
    let Shared { log, snapshots, .. } = shared;
    let connection = log.connection().clone();
    for newer in snapshots.list()?.into_iter().filter(|old| old.number > position.number) {
        snapshots.remove(newer.number)?;
    }
    snapshots.upload(position.number, &file, HashMap::new(), &GiveUp::default())?;
    log.remove()?;
    let (cluster, replicas) = (format!("{:016x}", random_number()?), replicas(&config.cluster));
    let creation = Creation { cluster: cluster.clone(), first: position.number + 1, replicas };
    // Without it there is no cluster any more.
    until_answered(|| Ok(LogStream::create(&connection, &creation)?))?;
    replica::remove(data)?;
    membership::join(data, &cluster)?;
    print_line(&format!(
        "cluster {cluster} begins behind record {}. Start this node; the others begin with empty data folders",
        position.number
    ))
}

fn leave(config: &Config, data: &Path, shared: &Shared) -> anyhow::Result<()> {
    if !membership::is_member(data) {
        return Err(Usage(format!("{} is no node of a cluster", data.display())).into());
    }
    membership::check_folder(data, shared.log.cluster())?;
    if let Some(node) = renewed_by(shared)? {
        return Err(Usage(format!(
            "{node} serves. To go back to one broker, stop all nodes first; to remove this node only, stop it and \
             delete its data folder"
        ))
        .into());
    }
    let mut follower = catch_up(config, data, shared)?;
    let last = follower.position();
    shared_files::take_back(config, data, &mut follower)?;
    follower.leave()?;
    membership::forget(data)?;
    print_line(&format!(
        "this data folder is a broker's own again, with everything up to {last}; remove [cluster] from its configuration"
    ))
}

//! A node's copy of the broker's database: from a snapshot, and behind the log.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use fulmar_cluster_nats::{
    AppendError, Error, GiveUp, LEFT_OVER, LogState, LogStream, Record, Snapshot, Snapshots,
};
use fulmar_store::journal::{Claimant, LogEntry, LogPosition, RecordError};
use fulmar_store::{Applied, FollowError, Follower, Options};

use super::membership::scratch;
use super::platform_copy;

/// The database of a broker, in the data folder.
pub(super) const DATABASE: &str = "broker.db";
/// Bytes of log behind a snapshot, after which there is a new one.
const SNAPSHOT_AFTER_BYTES: u64 = 256 << 20;
const FOR_TESTS: &str = "FULMAR_TEST_SNAPSHOT_AFTER_BYTES";
/// Time between two looks at the length of the log.
const LENGTH: Duration = Duration::from_secs(30);
/// Snapshots that are kept. The log is removed behind the oldest.
const KEPT: usize = 2;
/// Attempts of a claim while others write.
const CLAIMS: usize = 1000;
/// For one claim without an answer: an election takes up to nine seconds.
const UNANSWERED: Duration = Duration::from_secs(30);
const CLAIM_AGAIN: Duration = Duration::from_millis(100);

/// Result of reading.
pub(super) enum Read {
    /// There was something.
    Some,
    /// The end of the log, as far as is known.
    Nothing,
}

/// Opens the copy in the data folder; without one, begins with the newest snapshot.
///
/// # Errors
/// The database cannot be used, or there is no snapshot.
pub(super) fn open(
    data: &Path,
    options: &Options,
    snapshots: &Snapshots,
) -> anyhow::Result<Follower> {
    let path = data.join(DATABASE);
    if !path.exists() {
        fetch(data, &path, snapshots)?;
    }
    Ok(Follower::open(&path, options)?)
}

/// Replaces the copy by the newest snapshot, because the log begins after it.
///
/// # Errors
/// There is no newer one, or it cannot be read.
pub(super) fn replace(
    follower: Follower,
    data: &Path,
    options: &Options,
    log: &LogStream,
    snapshots: &Snapshots,
) -> anyhow::Result<Follower> {
    let path = data.join(DATABASE);
    let first = log.state()?.first;
    let newest = newest(snapshots)?;
    if newest + 1 < first {
        return Err(anyhow!(
            "the newest snapshot ends with record {newest}, and the log begins with record {first}: this node's data \
             are too old and no snapshot helps. Stop a node that is up to date, run fulmar cluster snapshot with its \
             configuration, and start it again"
        ));
    }
    tracing::info!(record = newest, "this node was away for long; it begins with a snapshot");
    drop(follower);
    fetch(data, &path, snapshots)?;
    Ok(Follower::open(&path, options)?)
}

fn newest(snapshots: &Snapshots) -> anyhow::Result<u64> {
    let newest = snapshots.list()?.into_iter().next();
    Ok(newest.context("there is no snapshot: the cluster was not created completely; run `fulmar cluster init` again")?.number)
}

/// Removes the copy, if there is one.
pub(super) fn remove(data: &Path) -> anyhow::Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let mut file = data.join(DATABASE).into_os_string();
        file.push(suffix);
        let file = PathBuf::from(file);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| file.display().to_string());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Puts the newest snapshot where the database is.
fn fetch(data: &Path, path: &Path, snapshots: &Snapshots) -> anyhow::Result<()> {
    let folder = scratch(data)?;
    let file = folder.join(DATABASE);
    let mut all = snapshots.list()?.into_iter();
    let mut newest = all.next().context(
        "there is no snapshot to begin with: the cluster was not created completely; run `fulmar cluster init` again",
    )?;
    while let Err(error) = snapshots.get(&newest, &file) {
        // The one before is kept for this; the log goes back to it.
        let Some(before) = all.next().filter(|_| matches!(error, Error::Damaged(_))) else {
            return Err(error.into());
        };
        tracing::warn!("{error}; beginning with the one before it");
        newest = before;
    }
    platform_copy::start_over(data)?;
    remove(data)?;
    std::fs::rename(&file, path).with_context(|| path.display().to_string())?;
    std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    tracing::info!(record = newest.number, bytes = newest.bytes, "snapshot fetched");
    Ok(())
}

/// A record, for the store.
pub(super) fn entry(record: &Record) -> LogEntry<'_> {
    LogEntry { bytes: &record.bytes, conditional: record.conditional }
}

/// Applies what the log has next.
///
/// # Errors
/// [`Error`]s of the log, such as [`Error::Removed`]; a record that does not continue it; the database's.
pub(super) fn follow(follower: &mut Follower, log: &LogStream) -> anyhow::Result<Read> {
    let records = log.read(follower.position().number + 1)?;
    let read = if records.is_empty() { Read::Nothing } else { Read::Some };
    for record in records {
        let applied = follower.apply(entry(&record)).map_err(|error| match &error {
            FollowError::Record(RecordError::TooNew(_)) => {
                anyhow::Error::new(error).context(newer(record.number))
            }
            FollowError::Record(_) => anyhow::Error::new(error).context(broken(record.number)),
            // Nothing is wrong with the record.
            FollowError::Database(_) => anyhow::Error::new(error).context(DATABASE),
        })?;
        match applied {
            Applied::Claimed { node, .. } => {
                tracing::info!(node, record = record.number, "claimed the log");
            }
            // Or a stranger could fill the node's log.
            Applied::Void(total) if total.is_power_of_two() => {
                tracing::warn!(
                    record = record.number,
                    total,
                    "passed over a record of the cluster's log that is no node's"
                );
            }
            Applied::Operations | Applied::Released | Applied::Void(_) => {}
        }
    }
    Ok(read)
}

/// Applies everything that the log has. An election of its servers takes some seconds.
fn follow_to_end(follower: &mut Follower, log: &LogStream) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        match follow(follower, log) {
            Ok(Read::Nothing) => return Ok(()),
            Ok(Read::Some) => {}
            Err(error) if is_passing(&error) && begun.elapsed() < UNANSWERED => {
                tracing::debug!("{error:#}");
                std::thread::sleep(CLAIM_AGAIN);
            }
            Err(error) => return Err(error),
        }
    }
}

fn broken(number: u64) -> String {
    format!(
        "record {number} of the cluster's log cannot be used, and no node starts on it. To go on with everything \
         before it: stop all nodes, then fulmar cluster restore"
    )
}

fn newer(number: u64) -> String {
    format!("record {number} of the cluster's log was written by a newer node")
}

fn is_newer(error: &FollowError) -> bool {
    matches!(error, FollowError::Record(RecordError::TooNew(_)))
}

/// Whether this program is too old to read the log.
pub(super) fn is_too_old(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(is_newer)
}

/// Whether the record itself is wrong.
pub(super) fn is_damage(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(FollowError::Record(_)))
        || matches!(error.downcast_ref(), Some(Error::Missing { .. }))
}

/// Whether this machine's disk cannot be written at the moment.
pub(super) fn is_of_disk(error: &anyhow::Error) -> bool {
    let of_copy = error.downcast_ref::<fulmar_store::SqliteError>();
    let of_log = error.downcast_ref().and_then(|error| match error {
        FollowError::Database(error) => Some(error),
        FollowError::Record(_) => None,
    });
    of_copy.or(of_log).is_some_and(fulmar_store::is_transient)
}

/// Whether the log begins after what the follower has.
pub(super) fn is_removed(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Removed { .. }))
}

/// Whether NATS did not answer, and may later.
pub(super) fn is_passing(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(Error::TimedOut { .. } | Error::JetStream { .. } | Error::Connect { .. })
    )
}

/// Whether a snapshot was given up.
pub(super) fn is_given_up(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::GivenUp { .. }))
}

/// Claims the log for this node: appends a claim behind the last record it has, or, if others come first, behind those.
pub(super) fn claim(
    follower: &mut Follower,
    log: &LogStream,
    claimant: Claimant<'_>,
) -> anyhow::Result<LogPosition> {
    for attempt in 0..CLAIMS {
        // A node that stands by has all records, or nearly.
        if attempt > 0 {
            let before = follower.position().number;
            follow_to_end(follower, log)?;
            if follower.position().number == before {
                // The server that is asked does not have the newest records yet.
                std::thread::sleep(CLAIM_AGAIN);
            }
        }
        let (position, bytes) = follower.position().claim(claimant);
        let (begun, mut reported) = (Instant::now(), false);
        let appended = loop {
            match log.append(position.number, &position.id(), &bytes) {
                Err(AppendError::Unknown(error)) if begun.elapsed() < UNANSWERED => {
                    if !std::mem::replace(&mut reported, true) {
                        tracing::warn!(error, "claim not answered; trying again");
                    }
                    std::thread::sleep(CLAIM_AGAIN);
                }
                answer => break answer,
            }
        };
        match appended {
            Ok(()) => {
                follower.apply(LogEntry::by_node(&bytes))?;
                return Ok(position);
            }
            // Also behind what strangers have appended: reading passes over that.
            Err(AppendError::Displaced(_) | AppendError::Refused(_)) => {}
            Err(AppendError::Unknown(detail)) => {
                return Err(Error::JetStream { what: "claiming the log", detail }.into());
            }
        }
    }
    Err(anyhow!("another node writes to the log all the time"))
}

/// Stores a snapshot of what the follower has, and removes what nobody needs any more: the log behind older snapshots,
/// and what uploads have left. Returns its last record.
pub(super) fn snapshot(
    follower: &mut Follower,
    data: &Path,
    log: &LogStream,
    snapshots: &Snapshots,
    give_up: &GiveUp,
) -> anyhow::Result<u64> {
    let shortened = store_and_shorten(follower, data, log, snapshots, give_up);
    sweep(snapshots, give_up);
    shortened
}

fn store_and_shorten(
    follower: &mut Follower,
    data: &Path,
    log: &LogStream,
    snapshots: &Snapshots,
    give_up: &GiveUp,
) -> anyhow::Result<u64> {
    let folder = scratch(data)?;
    let stored = store(follower, &folder.join(DATABASE), snapshots, give_up);
    std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let stored = stored?;
    let all = snapshots.list()?;
    for old in all.iter().skip(KEPT) {
        snapshots.remove(old.number)?;
    }
    if let Some(oldest) = all.iter().take(KEPT).next_back().filter(|_| all.len() >= KEPT) {
        log.remove_before(oldest.number + 1)?;
    }
    tracing::info!(record = stored.number, bytes = stored.bytes, "snapshot stored");
    Ok(stored.number)
}

/// Stores a copy of the database that is in `file` until then.
fn store(
    follower: &mut Follower,
    file: &Path,
    snapshots: &Snapshots,
    give_up: &GiveUp,
) -> anyhow::Result<Snapshot> {
    let copying = give_up.clone();
    let position = match follower.snapshot_while(file, move || !copying.is_given_up()) {
        // SQLite reports an interruption.
        Err(_) if give_up.is_given_up() => {
            return Err(Error::GivenUp { what: "copying the database" }.into());
        }
        copied => copied?,
    };
    let notes = HashMap::from([
        ("epoch".to_owned(), position.epoch.to_string()),
        ("checksum".to_owned(), format!("{:08x}", position.checksum)),
        ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ]);
    Ok(snapshots.upload(position.number, file, notes, give_up)?)
}

/// Removes what uploads have left in NATS; after each attempt, because one that fails may be the last for an hour.
fn sweep(snapshots: &Snapshots, give_up: &GiveUp) {
    match snapshots.sweep(LEFT_OVER, give_up) {
        Ok(0) => {}
        Ok(uploads) => {
            tracing::info!(uploads, "removed what unfinished snapshots had left in NATS");
        }
        Err(Error::GivenUp { .. }) => {}
        Err(error) => tracing::warn!("{error}; trying again after the next snapshot"),
    }
}

/// Whether it is time for a snapshot.
pub(super) fn needs_snapshot(log: &LogStream, snapshots: &Snapshots) -> Result<bool, Error> {
    let (state, limit) = (log.state()?, snapshot_after_bytes());
    if state.bytes <= limit {
        return Ok(false);
    }
    let newest = snapshots.list()?.first().map_or(0, |newest| newest.number);
    Ok(bytes_behind(&state, newest) > limit)
}

/// Bytes of the log behind record `number`, if all records are equally long. The log goes back to the snapshot before,
/// so its length alone would ask for two snapshots each time.
fn bytes_behind(state: &LogState, number: u64) -> u64 {
    let records = (state.last + 1).saturating_sub(state.first).max(1);
    let behind = state.last.saturating_sub(number).min(records);
    let bytes = u128::from(state.bytes) * u128::from(behind) / u128::from(records);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn snapshot_after_bytes() -> u64 {
    for_tests().unwrap_or(SNAPSHOT_AFTER_BYTES)
}

/// Time between two calls of [`needs_snapshot`].
pub(super) fn length_pause() -> Duration {
    if for_tests().is_some() { Duration::from_secs(1) } else { LENGTH }
}

/// Tests of a program with debug assertions have shorter logs.
fn for_tests() -> Option<u64> {
    let set = cfg!(debug_assertions).then(|| std::env::var(FOR_TESTS).ok()).flatten();
    set.and_then(|bytes| bytes.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_measured_from_the_newest_snapshot() {
        let state = LogState { first: 101, last: 300, bytes: 2_000, ..LogState::default() };
        assert_eq!(bytes_behind(&state, 200), 1_000);
        assert_eq!(bytes_behind(&state, 300), 0);
        assert_eq!(bytes_behind(&state, 0), 2_000, "older than the log");
        assert_eq!(bytes_behind(&LogState { first: 1, ..LogState::default() }, 0), 0);
    }
}

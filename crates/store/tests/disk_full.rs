//! A full disk, played by a size limit on the database: nothing is lost, nothing is claimed.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Opened, database, dequeue, enqueue, message, positions, reopen};
use fulmar_broker::storage::Storage;
use fulmar_store::{Error, Options};

/// Fills a small database with 16 KiB messages, one a batch, until it fails. Returns how many
/// were committed and how many submitted.
fn fill(opened: &Opened) -> (u64, u64) {
    let mut submitted = 0;
    while opened.storage.failure().is_none() {
        submitted += 1;
        let payload = vec![7; 16 << 10];
        let seq = opened.submit([enqueue(1, submitted, message(submitted, &payload))]);
        opened.wait_until(|s| s.committed() >= seq || s.failure().is_some());
    }
    (opened.storage.committed().0, submitted)
}

fn small() -> Options {
    Options { max_bytes: Some(512 << 10), ..Options::default() }
}

#[test]
fn room_made_by_deliveries_lets_the_waiting_messages_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &small());
    let (committed, submitted) = fill(&opened);
    assert!(committed > 5 && committed < submitted);
    let text = opened.storage.failure().unwrap();
    assert!(text.contains("fulmar.db") && text.contains("make room"), "{text}");
    assert!(opened.storage.stats().failed_commits > 0);

    let seq = opened.submit((1..=committed).map(|position| dequeue(1, position)));
    opened.wait(seq);
    assert_eq!(opened.storage.failure(), None);
    assert_eq!(opened.storage.backlog(), 0);
    drop(opened);
    let left: Vec<u64> = (committed + 1..=submitted).collect();
    assert_eq!(positions(&reopen(&path), 1), left);
}

#[test]
fn a_message_delivered_while_it_waits_needs_no_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &small());
    let (committed, submitted) = fill(&opened);
    let seq = opened.submit((committed + 1..=submitted).map(|position| dequeue(1, position)));
    opened.wait(seq);
    assert_eq!(opened.storage.failure(), None);
    drop(opened);
    let left: Vec<u64> = (1..=committed).collect();
    assert_eq!(positions(&reopen(&path), 1), left);
}

#[test]
fn closing_while_full_says_what_was_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &small());
    let (committed, submitted) = fill(&opened);
    let Err(Error::Unwritten { batches, reason }) = opened.storage.close() else {
        panic!("closed as if everything were written");
    };
    assert_eq!(batches, submitted - committed);
    assert!(reason.contains("full"), "{reason}");
    drop(opened);
    let left: Vec<u64> = (1..=committed).collect();
    assert_eq!(positions(&reopen(&path), 1), left);
}

#[test]
fn the_reference_counts_survive_a_rolled_back_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &small());
    let shared = message(1_000_000, b"shared");
    let seq = opened.submit([enqueue(2, 1, shared.clone()), enqueue(3, 1, shared.clone())]);
    opened.wait(seq);
    let (_, submitted) = fill(&opened);
    // Both references go and a new one comes in the transaction that is tried again and again.
    opened.submit([dequeue(2, 1), dequeue(3, 1), enqueue(4, 1, shared)]);
    let failed = opened.storage.stats().failed_commits;
    opened.submit((1..=submitted + 1).map(|position| dequeue(1, position)));
    let seq = opened.submit([]);
    opened.wait(seq);
    assert!(opened.storage.stats().failed_commits >= failed);
    drop(opened);
    let restored = reopen(&path);
    assert_eq!(positions(&restored, 4), [1]);
    assert_eq!(restored.queued[0].message.payload(), b"shared");
}

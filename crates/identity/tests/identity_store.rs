//! The store and the thread with it.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fulmar_identity::{
    Affected, ApplyError, Client, Command, Identities, Refused, Store, StoreError,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn client(name: &str) -> Command {
    Command::CreateClient(Client { username: name.into(), ..Client::default() })
}

fn open(path: &Path) -> (Identities, Receiver<Affected>) {
    let (sender, affected) = channel();
    let watch = move |_: &_, affected: &Affected, _: &_| drop(sender.send(affected.clone()));
    (Identities::open(path, Box::new(watch)).unwrap(), affected)
}

#[test]
fn a_batch_with_a_refused_command_has_no_effect_and_no_file_without_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("identities.db");
    let (identities, _) = open(&path);
    assert!(!path.exists());
    identities.apply(vec![client("ann")]).unwrap();
    let refused = identities.apply(vec![client("bob"), client("ann")]);
    assert!(matches!(refused, Err(ApplyError::Refused(Refused::ClientExists))), "{refused:?}");
    let names = |identities: &Identities| {
        identities.read(|state| state.clients().keys().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(names(&identities), ["ann"]);
    drop(identities);
    assert_eq!(names(&open(&path).0), ["ann"]);
}

#[test]
fn what_another_process_changes_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("identities.db");
    let (identities, affected) = open(&path);
    let mut other = Store::open(&path).unwrap();
    other.apply(vec![client("ann")]).unwrap();
    let seen = affected.recv_timeout(PATIENCE).unwrap();
    assert!(seen.users.contains("ann"), "{seen:?}");
    // Also before the next look.
    other.apply(vec![client("bob")]).unwrap();
    let refused = identities.apply(vec![client("bob")]);
    assert!(matches!(refused, Err(ApplyError::Refused(Refused::ClientExists))), "{refused:?}");
    assert!(affected.recv_timeout(PATIENCE).unwrap().users.contains("bob"));
    identities.apply(vec![client("eve")]).unwrap();
    assert!(other.refresh().unwrap().is_some() && other.state().clients().contains_key("eve"));
    assert_eq!(other.refresh().unwrap(), None);
}

#[test]
fn half_a_file_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("identities.db");
    let mut store = Store::open(&path).unwrap();
    for number in 0..50 {
        store.apply(vec![client(&format!("client-{number}"))]).unwrap();
    }
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    for length in [1, 99, 4096, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let opened = Store::open(&path).map(|store| store.state().clients().len());
        let error = opened.expect_err(&format!("{length} of {} bytes", whole.len())).to_string();
        assert!(error.contains("identities.db") && error.contains("backup"), "{length}: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), whole[..length], "{length}");
    }
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(Store::open(&path).unwrap().state().clients().len(), 50);
}

#[test]
fn another_programs_database_and_a_damaged_row_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("identities.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE t (x)").unwrap();
    assert!(matches!(Store::open(&path), Err(StoreError::Foreign(_))));
    let path = folder.path().join("second.db");
    Store::open(&path).unwrap().apply(vec![client("ann")]).unwrap();
    let by_hand = rusqlite::Connection::open(&path).unwrap();
    by_hand.execute("UPDATE entity SET body = '{' WHERE kind = 3", []).unwrap();
    let error = Store::open(&path).unwrap_err().to_string();
    assert!(error.contains("ann") && error.contains("restore"), "{error}");
}

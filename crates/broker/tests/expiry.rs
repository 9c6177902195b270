//! Sessions that expire at the same time: they end over several turns, and others are served meanwhile.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Setup, World, lasting};
use fulmar_broker::Limits;

const SESSIONS: usize = 2_500;
/// That of [`lasting`].
const EXPIRY: Duration = Duration::from_secs(1_001);

/// A broker with many sessions whose clients have left, all at the same time.
fn left_together() -> (World, Arc<SimStorage>) {
    let storage = Arc::new(SimStorage::default());
    let mut world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
    let clients: Vec<_> = (0..SESSIONS)
        .map(|number| {
            let conn = world.open(0);
            world.say_hello_within_turn(conn, &lasting(format!("c{number}").leak()));
            // Ends the turn.
            if number % 500 == 0 {
                world.settle();
            }
            conn
        })
        .collect();
    storage.commit();
    world.settle();
    for chunk in clients.chunks(500) {
        chunk.iter().for_each(|conn| world.cut_within_turn(*conn));
        world.settle();
    }
    storage.commit();
    world.settle();
    assert_eq!(storage.crash().1.sessions.len(), SESSIONS);
    (world, storage)
}

#[test]
fn sessions_that_expire_together_end_over_several_turns() {
    let (mut world, storage) = left_together();
    world.wait_within_turn(EXPIRY);
    let mut turns = 0;
    while !storage.crash().1.sessions.is_empty() {
        let before = storage.crash().1.sessions.len();
        world.end_turn(0);
        storage.commit();
        let ended = before - storage.crash().1.sessions.len();
        assert!(ended <= 1_000, "{ended} in one turn");
        world.wait_within_turn(Duration::ZERO);
        turns += 1;
        assert!(turns < 100, "all of them end");
    }
}

#[test]
fn sessions_end_later_while_storage_is_behind() {
    let (mut world, storage) = left_together();
    storage.set_backlog(Limits::default().max_storage_backlog + 1);
    world.wait_within_turn(EXPIRY);
    world.end_turn(0);
    storage.commit();
    assert_eq!(storage.crash().1.sessions.len(), SESSIONS);
    storage.set_backlog(0);
    for _ in 0..10 {
        world.wait(Duration::from_millis(100));
    }
    storage.commit();
    assert_eq!(storage.crash().1.sessions.len(), 0);
}

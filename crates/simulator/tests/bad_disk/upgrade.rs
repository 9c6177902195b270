//! A crash at any moment of an upgrade from an older schema loses nothing, and the upgrade is done at the
//! next start.

use std::sync::Arc;

use crate::folder::Folder;
use fastrand::Rng;
use fulmar_simulator::bad_disk::{Disk, Survival};

/// What turns today's schema into that of version 1.
const BACK_TO_1: &str = "DROP TABLE will; ALTER TABLE session DROP COLUMN mqtt_sn;
    ALTER TABLE subscription DROP COLUMN replay; ALTER TABLE queue DROP COLUMN share;
    INSERT INTO session VALUES (1, 'device', 'ann', 3600, NULL); PRAGMA user_version = 1";

#[test]
fn a_crash_in_the_middle_of_an_upgrade_loses_nothing() {
    const MESSAGES: u64 = 5;
    let folder = Folder::new();
    let disk = Arc::new(Disk::default());
    assert_eq!(folder.fill(&disk, MESSAGES), MESSAGES);
    folder.sql(BACK_TO_1);
    let mut rng = Rng::with_seed(1);
    let old = disk.image(Survival::Nothing, &mut rng);
    let mut upgraded = 0;
    for changes in 0.. {
        let disk = Arc::new(old.image(Survival::Nothing, &mut rng));
        disk.fail_power_after(Some(changes));
        let opened = folder.open(Arc::clone(&disk));
        if !disk.is_dead() {
            assert_eq!(opened.unwrap().queued.len() as u64, MESSAGES);
            break;
        }
        for survival in [Survival::Nothing, Survival::Everything, Survival::Any, Survival::Any] {
            let restored = folder.restored(disk.image(survival, &mut rng));
            assert_eq!(restored.queued.len() as u64, MESSAGES, "after {changes} changes");
            let [session] = &restored.sessions[..] else { panic!("{:?}", restored.sessions) };
            assert_eq!(session.username.as_deref(), Some("ann"));
            upgraded += 1;
        }
    }
    assert!(upgraded >= 40, "the upgrade was cut only {upgraded} times");
}

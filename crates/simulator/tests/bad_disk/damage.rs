//! A database that was damaged while no broker ran is refused with what to do, or holds what it held.

use std::sync::Arc;

use crate::folder::Folder;
use fastrand::Rng;
use fulmar_simulator::Tables;
use fulmar_simulator::bad_disk::{Disk, Survival, same};
use fulmar_store::Error;

const PAGE: usize = 4096;

/// A database that was closed in order, with rows in most tables.
fn closed() -> (Folder, Disk) {
    let folder = Folder::new();
    let disk = Arc::new(Disk::default());
    assert_eq!(folder.fill(&disk, 20), 20);
    folder.sql(
        "INSERT INTO session VALUES (1, 'device', 'ann', 3600, NULL, NULL);
         INSERT INTO will VALUES (1, 'w', x'', x'01', 1, 0, 5, NULL, NULL, NULL, NULL, NULL, NULL, 0);
         INSERT INTO subscription VALUES (1, 'a/#', 0, 1, NULL, NULL);
         INSERT INTO inbound VALUES (1, 0, 7); INSERT INTO retained VALUES ('a/b', 3)",
    );
    folder.open(Arc::clone(&disk)).unwrap();
    let disk = disk.image(Survival::Nothing, &mut Rng::with_seed(1));
    (folder, disk)
}

/// Opens it with other bytes. `None` if it was refused as it should be.
fn opened(folder: &Folder, bytes: Vec<u8>) -> Option<Tables> {
    let disk = Arc::new(Disk::default());
    disk.set_file("broker.db", Some(bytes));
    match folder.open(disk) {
        Ok(restored) => Some(Tables::from(&restored)),
        Err(error) => {
            let text = error.to_string();
            assert!(
                matches!(error, Error::Damaged { .. } | Error::Foreign(_) | Error::TooNew { .. }),
                "{error:?}"
            );
            assert!(text.contains("broker.db"), "{text}");
            let advised = ["restore a backup", "move it away", "newer Fulmar"];
            assert!(advised.iter().any(|advice| text.contains(advice)), "{text}");
            None
        }
    }
}

#[test]
fn a_page_that_is_lost_or_another_is_noticed_at_the_next_start() {
    let (folder, disk) = closed();
    let whole = disk.file("broker.db").unwrap();
    let wanted = opened(&folder, whole.clone()).unwrap();
    let mut refused = 0;
    let pages = whole.len() / PAGE;
    for page in 0..pages {
        for source in [None, Some((page + 1) % pages)] {
            let mut bytes = whole.clone();
            let at = page * PAGE..(page + 1) * PAGE;
            match source {
                None => bytes[at].fill(0),
                Some(other) => bytes[at].copy_from_slice(&whole[other * PAGE..][..PAGE]),
            }
            match opened(&folder, bytes) {
                // An unused page, or one that overflows with payload alone.
                Some(found) => assert_eq!(found.queued.len(), wanted.queued.len()),
                None => refused += 1,
            }
        }
    }
    assert!(refused > pages, "only {refused} of {} were refused", 2 * pages);
}

#[test]
fn a_file_that_was_cut_off_is_refused() {
    let (folder, disk) = closed();
    let whole = disk.file("broker.db").unwrap();
    for pages in 1..whole.len() / PAGE {
        assert!(opened(&folder, whole[..pages * PAGE].to_vec()).is_none(), "with {pages} pages");
    }
}

#[test]
fn flipped_bits_never_stop_the_start_without_advice() {
    let (folder, disk) = closed();
    let whole = disk.file("broker.db").unwrap();
    let wanted = opened(&folder, whole.clone()).unwrap();
    let mut rng = Rng::with_seed(7);
    let (mut refused, mut unharmed) = (0, 0);
    for _ in 0..500 {
        let mut bytes = whole.clone();
        let at = rng.usize(..bytes.len());
        bytes[at] ^= 1 << rng.u8(..8);
        match opened(&folder, bytes) {
            Some(found) => unharmed += u32::from(same(&wanted, &found)),
            None => refused += 1,
        }
    }
    assert!(refused > 0 && unharmed > 0, "{refused} refused, {unharmed} unharmed");
}

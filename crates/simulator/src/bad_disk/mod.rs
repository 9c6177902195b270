//! A disk in memory with the faults of disks, and the real store (`fulmar-store`, SQLite) on it.
//!
//! `disk` simulates a disk: unsynced data may be lost, torn or reordered when the power fails; writes and syncs fail
//! or stall; the disk fills up. `vfs` connects it to SQLite, and is the only file with `unsafe`, because SQLite's
//! file layer is a table of C functions; `folder` is where a process finds it. `volume` is the storage of a simulated
//! broker over it, which after each crash compares the store's state with the meaning of the operations in
//! [`crate::Tables`].
//!
//! Not simulated: two processes on one file, memory maps, and failing reads.

mod disk;
mod folder;
mod vfs;
mod volume;

pub use disk::{Disk, Survival, Trouble};
#[cfg(feature = "worlds")]
pub(crate) use folder::Folder;
pub use vfs::{Mount, mount};
pub use volume::{StoreVolume, same};

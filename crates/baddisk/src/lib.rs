//! For tests alone: the real store (`fulmar-store`, SQLite) on a disk in memory that fails as disks do.
//!
//! `disk` is what a disk does to files: what is not synced may be lost, torn or reordered when the power
//! fails; writes and syncs fail or stall; room ends. `vfs` shows it to SQLite, and is the one place with
//! `unsafe`: SQLite's file layer is a table of C functions. `volume` is the simulator's storage over it,
//! which compares what the store gives back after each crash with what `fulmar_simulator::Tables` says
//! the operations mean.
//!
//! What it does not do: two processes on one file, memory maps, and reads that fail.

mod disk;
mod vfs;
mod volume;

pub use disk::{Disk, Survival, Trouble};
pub use vfs::{Mount, mount};
pub use volume::{RealVolume, same};

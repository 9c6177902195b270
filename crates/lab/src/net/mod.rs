//! Network namespaces, TUN devices, addresses and routes: the ground on which hosts stand.
//!
//! A [`Host`] is a network namespace with a loopback device and one TUN device, whose other end this
//! process holds. Nothing has a name in the file system: a namespace lives as long as its descriptor
//! or a process in it, a TUN device as long as its descriptor. So killing this process, even with
//! -9, takes devices with it, and the kernel kills the programs started in the hosts; what those
//! started in turn is found by a mark in its environment and ended at the next start (`stale`).
//!
//! No packet is handled here; see [`router`](crate::router).

mod child;
mod host;
mod netlink;
mod privilege;
mod stale;
mod sys;

pub use host::Host;
pub use privilege::{Privilege, acquire};
pub use stale::sweep;

pub(crate) use stale::mark;
pub(crate) use sys::run_first;

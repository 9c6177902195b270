//! Network namespaces, TUN devices, addresses and routes: what emulated hosts are made of.
//!
//! A [`Host`] is a network namespace with a loopback device and one TUN device, whose other end this
//! process holds. Nothing has a name in the file system: a namespace lives as long as its descriptor
//! or a process in it, a TUN device as long as its descriptor. So killing this process, even with
//! -9, takes devices with it, and the kernel kills the programs started in the hosts; processes that those
//! started are found by a variable in their environment and killed at the next start (`orphans`).
//!
//! No packet is handled here; see [`router`](crate::router).

mod child;
mod host;
mod netlink;
mod orphans;
mod privilege;
mod sys;

pub use host::Host;
pub use orphans::kill_orphans;
pub use privilege::{Privilege, acquire};

pub(crate) use orphans::owner_variable;
pub(crate) use sys::run_first;

//! Programs started in a host.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::Arc;

use super::{stale, sys};

/// Starts a command in a host's network namespace, marked so that its own children can be found, and
/// killed when the calling thread ends.
pub(super) fn spawn(
    command: &mut Command,
    host: u64,
    namespace: Arc<OwnedFd>,
) -> io::Result<Child> {
    let (name, value) = stale::mark_of(host)?;
    command.env(name, value);
    sys::start_in(command, namespace);
    command.spawn()
}

//! Programs started in a host.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::Arc;

use super::{stale, sys};

/// Starts a command in a network namespace, marked so that its own children can be found, and
/// killed when the calling thread ends.
pub(crate) fn spawn(command: &mut Command, namespace: Arc<OwnedFd>) -> io::Result<Child> {
    let (name, value) = stale::mark()?;
    command.env(name, value);
    sys::start_in(command, namespace);
    command.spawn()
}

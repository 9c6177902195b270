//! Programs started in a host.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::Arc;

use super::{orphans, sys};

/// Starts a command in a host's network namespace, with the owner variable by which its descendants are found, and
/// killed when the calling thread ends.
pub(super) fn spawn(
    command: &mut Command,
    host: u64,
    namespace: Arc<OwnedFd>,
) -> io::Result<Child> {
    let (name, value) = orphans::owner_variable_of(host)?;
    command.env(name, value);
    sys::start_in(command, namespace);
    command.spawn()
}

//! Notifies systemd of the broker's state (`sd_notify(3)`), so that services that depend on it start when it is ready.
//! Without a supervisor (`NOTIFY_SOCKET`) nothing happens.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Every listener is bound.
pub(super) fn ready() {
    tell("READY=1");
}

/// The broker drains.
pub(super) fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, ?socket, "cannot notify the service manager of {state}");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    // A name that begins with @ is in the abstract namespace.
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

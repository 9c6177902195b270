//! Detects changes of the network by the kernel's notifications of links, addresses and routes (rtnetlink), where
//! they are available.
//!
//! The notifications are not parsed: to see whether a change concerns a connection, the client asks the kernel which
//! address it would use now, which takes three system calls.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::socket;

/// The address from which this machine would send to `remote`.
pub(crate) fn source(remote: SocketAddr) -> io::Result<IpAddr> {
    Ok(socket::connected(remote)?.local_addr()?.ip())
}

/// Receives notifications.
pub(crate) struct Monitor {
    #[cfg(target_os = "linux")]
    socket: Option<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>>,
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{Monitor, io};
    use std::os::fd::OwnedFd;

    use rustix::net::netlink::SocketAddrNetlink;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
    use tokio::io::unix::AsyncFd;

    /// RTMGRP_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR, _IPV6_ROUTE of rtnetlink(7).
    const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

    // Deprecated for types whose descriptor may change under it; an OwnedFd's does not, and what
    // replaces it is unsafe.
    #[allow(deprecated)]
    fn open() -> io::Result<AsyncFd<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        AsyncFd::new(socket)
    }

    impl Monitor {
        /// Listens from now on. Where the kernel does not allow it (newer Android), no changes are detected.
        pub(crate) fn new() -> Monitor {
            let opened = open().inspect_err(|error| {
                tracing::debug!(%error, "the kernel does not report network changes");
            });
            Monitor { socket: opened.ok() }
        }

        /// Waits for the next change. Cancelling it loses nothing.
        pub(crate) async fn changed(&self) {
            let Some(socket) = &self.socket else { return std::future::pending().await };
            let Ok(mut ready) = socket.readable().await else {
                return std::future::pending().await;
            };
            let mut buffer = [0; 4096];
            // Several notifications are one change; so is a lost one (ENOBUFS).
            while recv(socket, &mut buffer, RecvFlags::empty()).is_ok() {}
            ready.clear_ready();
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Monitor {
    /// No notifications: changes are detected by silence and failed sends.
    pub(crate) fn new() -> Monitor {
        Monitor {}
    }

    /// Never resolves.
    pub(crate) async fn changed(&self) {
        std::future::pending().await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_loopback_is_loopback() {
        for remote in ["127.0.0.1:9", "127.0.0.7:9"] {
            assert!(source(remote.parse().unwrap()).unwrap().is_loopback(), "{remote}");
        }
    }
}

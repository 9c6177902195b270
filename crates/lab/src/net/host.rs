//! One host: a namespace, its TUN device, its addresses and routes, and programs in it.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags, open};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::netlink::{Netlink, RouteKind, Table};
use super::{child, orphans, sys};
use crate::Error;
use crate::link::HostId;

/// The name of every host's TUN device.
pub(crate) const DEVICE: &str = "lab0";
/// A namespace's loopback device is always its first.
const LOOPBACK: u32 = 1;
/// The MTU of every host's TUN device; links may have a smaller one.
const MTU: u32 = 1500;
/// Packets that wait in the device for the router; the kernel drops further ones. The default of 500 is less than a
/// sender may write at once.
const DEVICE_QUEUE: u32 = 10_000;
/// The hosts' networks, whose addresses a gateway must not accept as its own.
const HOSTS_V4: (IpAddr, u8) = (IpAddr::V4(Ipv4Addr::new(198, 18, 0, 0)), 15);
const HOSTS_V6: (IpAddr, u8) = (IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0)), 48);
const ALL_V4: (IpAddr, u8) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
const ALL_V6: (IpAddr, u8) = (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// A host. Dropping it closes its device and, once no process is left in it, its namespace.
#[derive(Debug)]
pub struct Host {
    id: HostId,
    /// Distinguishes its programs from those of other hosts of this process.
    number: u64,
    namespace: Arc<OwnedFd>,
    tun: OwnedFd,
    device: u32,
    has_ipv6: bool,
    state: Mutex<State>,
}

/// State that changes while the host is in use.
#[derive(Debug)]
struct State {
    netlink: Netlink,
    /// Number of changes of the addresses.
    changes: u32,
}

impl Host {
    /// Creates a host with the addresses of its number. [`acquire`](super::acquire) comes first.
    ///
    /// # Errors
    /// The system refuses to make the namespace or the device, or to configure them.
    pub fn new(id: HostId) -> Result<Host, Error> {
        on_a_thread(move || {
            sys::new_network_namespace().map_err(Error::when("making a network namespace"))?;
            let namespace = File::open("/proc/thread-self/ns/net")
                .map_err(Error::when("opening the new network namespace"))?;
            let tun = open(
                "/dev/net/tun",
                OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK,
                Mode::empty(),
            )
            .map_err(Error::when("opening /dev/net/tun"))?;
            sys::make_tun(&tun, DEVICE).map_err(Error::when("making a TUN device"))?;
            let netlink = Netlink::new().map_err(Error::when("opening a netlink socket"))?;
            let host = Host {
                id,
                number: orphans::next_host_number(),
                namespace: Arc::new(namespace.into()),
                tun,
                device: index_of(DEVICE)?,
                has_ipv6: Path::new("/proc/sys/net/ipv6").exists(),
                state: Mutex::new(State { netlink, changes: 0 }),
            };
            host.configure().map_err(Error::when("configuring a host's network"))?;
            Ok(host)
        })
    }

    fn configure(&self) -> io::Result<()> {
        let netlink = &mut self.state().netlink;
        netlink.set_up(LOOPBACK, None, None)?;
        netlink.set_up(self.device, Some(MTU), Some(DEVICE_QUEUE))?;
        for address in self.addresses_after(0) {
            netlink.add_address(self.device, address)?;
        }
        for (network, prefix) in
            [Some(ALL_V4), self.has_ipv6.then_some(ALL_V6)].into_iter().flatten()
        {
            netlink.add_route(self.device, network, prefix, Table::Main, RouteKind::Unicast)?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the host accept packets for every address except those of the hosts, so that services in it can stand in
    /// for the Internet.
    ///
    /// # Errors
    /// The system refuses the routes.
    pub fn answer_for_all(&self) -> Result<(), Error> {
        let netlink = &mut self.state().netlink;
        let v4 = Some((HOSTS_V4, ALL_V4));
        let v6 = self.has_ipv6.then_some((HOSTS_V6, ALL_V6));
        for (hosts, all) in [v4, v6].into_iter().flatten() {
            netlink
                .add_route(self.device, hosts.0, hosts.1, Table::Local, RouteKind::Unicast)
                .and_then(|()| {
                    netlink.add_route(LOOPBACK, all.0, all.1, Table::Local, RouteKind::Local)
                })
                .map_err(Error::when("routing all addresses to a host"))?;
        }
        Ok(())
    }

    /// The host's number.
    pub fn id(&self) -> HostId {
        self.id
    }

    /// The host's present addresses, IPv4 first; IPv6 where the kernel has it.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.addresses_after(self.state().changes)
    }

    fn addresses_after(&self, changes: u32) -> Vec<IpAddr> {
        let v6 = self.has_ipv6.then(|| IpAddr::V6(self.id.ipv6(changes)));
        std::iter::once(IpAddr::V4(self.id.ipv4(changes))).chain(v6).collect()
    }

    /// The other end of the TUN device: a read returns a packet that the host sent, a write sends one to it. It does
    /// not block.
    pub fn tun(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }

    /// Replaces the host's addresses with those after this many changes.
    ///
    /// # Errors
    /// The system refuses.
    pub fn change_address(&self, changes: u32) -> Result<(), Error> {
        let mut state = self.state();
        let (old, new) = (self.addresses_after(state.changes), self.addresses_after(changes));
        let doing = || Error::when::<io::Error>("changing a host's address");
        for address in new.iter().filter(|address| !old.contains(address)) {
            state.netlink.add_address(self.device, *address).map_err(doing())?;
        }
        for address in old.iter().filter(|address| !new.contains(address)) {
            state.netlink.delete_address(self.device, *address).map_err(doing())?;
        }
        state.changes = changes;
        Ok(())
    }

    /// Starts a program in the host. It is killed when the calling thread ends, at the latest with
    /// this process.
    ///
    /// # Errors
    /// As of [`Command::spawn`].
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        child::spawn(command, self.number, Arc::clone(&self.namespace))
    }

    /// Kills every program that was started in this host and still runs, and their descendants; returns how many. A
    /// program that has cleared its environment escapes.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn end_all(&self) -> io::Result<usize> {
        orphans::kill_programs_of(self.number)
    }

    /// Runs a function on a thread inside the host, for example to create a socket, and waits for it.
    ///
    /// # Errors
    /// The thread cannot be started or cannot enter the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_a_thread(|| {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(self.namespace.as_fd(), network)?;
            Ok(work())
        })
    }

    /// Whether the host's kernel still has data or FINs of closed TCP connections to send.
    pub fn is_closing(&self) -> bool {
        // FIN_WAIT1, LAST_ACK and CLOSING: the own end is not acknowledged (proc_pid_net(5)).
        const UNACKNOWLEDGED: [&str; 3] = ["04", "09", "0B"];
        let tables = || {
            ["tcp", "tcp6"].map(|table| {
                std::fs::read_to_string(format!("/proc/thread-self/net/{table}"))
                    .unwrap_or_default()
            })
        };
        let Ok(tables) = self.run(tables) else { return false };
        tables.iter().flat_map(|table| table.lines().skip(1)).any(|line| {
            line.split_whitespace().nth(3).is_some_and(|state| UNACKNOWLEDGED.contains(&state))
        })
    }

    /// Packets that the host sent but the device's queue dropped: losses that the link model did not decide. `None`
    /// if the kernel does not report it.
    pub fn overflowed(&self) -> Option<u64> {
        let table = self.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).ok()?.ok()?;
        let line = table.lines().find_map(|line| {
            line.trim_start().strip_prefix(DEVICE).and_then(|rest| rest.strip_prefix(':'))
        })?;
        line.split_whitespace().nth(11)?.parse().ok()
    }
}

fn index_of(device: &str) -> Result<u32, Error> {
    let doing = || format!("finding the device {device}");
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(Error::when(doing()))?;
    name_to_index(&any, device).map_err(Error::when(doing()))
}

/// Runs a function on a thread of its own, so that the caller's namespace does not change.
fn on_a_thread<T: Send, E: Send + From<io::Error>>(
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("lab-setup".to_owned());
        thread
            .spawn_scoped(scope, work)?
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

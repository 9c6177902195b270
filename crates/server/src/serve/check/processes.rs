//! Which processes hold a port or a file's lock, from Linux's /proc; nothing where there is none, or where another
//! user's processes are hidden.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Open files of one process that are looked at.
const MAX_FILES: usize = 100_000;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) id: u32,
    pub(crate) name: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name, self.id)
    }
}

impl Process {
    fn read(id: u32) -> Process {
        let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        let name = match name.trim() {
            "" => "another program",
            name => name,
        };
        Process { id, name: name.to_owned() }
    }

    /// The process with a lock on this file, as SQLite's exclusive mode holds it.
    pub(crate) fn with_lock_on(path: &Path) -> Option<Process> {
        let file = fs::metadata(path).ok()?;
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let holders = lock_holders(&locks, file.ino());
        // Some file systems, such as overlays, have other device numbers there: only the inode is compared, and then
        // the process's open files.
        holders.into_iter().find(|id| has_open(*id, path)).map(Process::read)
    }

    /// The process that listens on this address, or on its port at all addresses.
    pub(crate) fn listening_on(address: SocketAddr, datagrams: bool) -> Option<Process> {
        let tables = if datagrams { ["udp", "udp6"] } else { ["tcp", "tcp6"] };
        let read = |table| fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let sockets: Vec<String> = tables
            .into_iter()
            .flat_map(|table| socket_inodes(&read(table), address, datagrams))
            .map(|inode| format!("socket:[{inode}]"))
            .collect();
        let processes = fs::read_dir("/proc")
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let holds = |id: &u32| {
            open_files(*id).any(|file| sockets.iter().any(|socket| file == Path::new(socket)))
        };
        processes.filter(|_| !sockets.is_empty()).find(holds).map(Process::read)
    }
}

fn open_files(id: u32) -> impl Iterator<Item = std::path::PathBuf> {
    let folder = fs::read_dir(format!("/proc/{id}/fd"));
    let entries = folder.into_iter().flatten().take(MAX_FILES);
    entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
}

/// Whether the process has the file open, or may have: the open files of other users' processes cannot be read.
fn has_open(id: u32, path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    let hidden = fs::read_dir(format!("/proc/{id}/fd")).is_err();
    hidden || open_files(id).any(|file| file == path)
}

/// The processes with a lock on a file, from /proc/locks (proc(5)).
fn lock_holders(locks: &str, inode: u64) -> Vec<u32> {
    let mut holders: Vec<u32> = locks
        .lines()
        .filter_map(|line| {
            // 1: POSIX  ADVISORY  WRITE 812 fe:00:1835059 1073741826 1073742335
            let mut words = line.split_whitespace().skip(4);
            let id = words.next()?.parse().ok()?;
            let its_inode: u64 = words.next()?.rsplit(':').next()?.parse().ok()?;
            (its_inode == inode).then_some(id)
        })
        .collect();
    holders.dedup();
    holders
}

/// The inodes of listening sockets, from /proc/net/tcp and the like.
fn socket_inodes(table: &str, address: SocketAddr, datagrams: bool) -> Vec<u64> {
    // A datagram socket without a peer is "closed".
    let state = if datagrams { "07" } else { "0A" };
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines
        .filter_map(|words| {
            let bound = socket_address(words.get(1)?)?;
            let ip = bound.ip();
            let same = ip == address.ip() || ip.is_unspecified() || address.ip().is_unspecified();
            let listens = *words.get(3)? == state && bound.port() == address.port() && same;
            listens.then(|| words.get(9)?.parse().ok())?
        })
        .collect()
}

/// `0100007F:075B` is 127.0.0.1:1883: words of four bytes in the machine's order, then the port.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let mut bytes = Vec::with_capacity(16);
    for at in (0..ip.len()).step_by(8) {
        let word = u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => IpAddr::V4(Ipv4Addr::from(four)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn listening_sockets_are_found_by_address() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                   0: 0100007F:075B 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 4711 1 0\n\
                   1: 00000000:22B3 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 4712 1 0\n\
                   2: 0100007F:22B3 0100007F:9999 01 00000000:00000000 00:00000000 00000000  0 0 4713 1 0\n";
        let found = |address: &str| socket_inodes(tcp, address.parse().unwrap(), false);
        assert_eq!(found("127.0.0.1:1883"), [4711]);
        assert_eq!(found("0.0.0.0:1883"), [4711]);
        assert_eq!(found("192.0.2.1:1883"), Vec::<u64>::new());
        // The listener at all addresses, and not a connection.
        assert_eq!(found("127.0.0.1:8883"), [4712]);
        let six = "header\n0: 00000000000000000000000001000000:075B x 07 a b c 0 0 4714 2\n";
        assert_eq!(socket_inodes(six, "[::1]:1883".parse().unwrap(), true), [4714]);
    }

    #[test]
    fn lock_holders_are_found_by_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 812 fe:00:1835059 1073741826 1073742335\n\
                     1: POSIX  ADVISORY  WRITE 812 fe:00:1835059 1073741825 1073741825\n\
                     2: FLOCK  ADVISORY  WRITE 900 fe:00:77 0 EOF\n";
        assert_eq!(lock_holders(locks, 1_835_059), [812]);
        assert_eq!(lock_holders(locks, 77), [900]);
        assert!(lock_holders(locks, 1).is_empty());
    }

    #[test]
    fn a_listener_of_this_process_is_named() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let found = Process::listening_on(socket.local_addr().unwrap(), false);
        // Other processes of the same user may share the socket for a moment, between fork and exec.
        assert!(found.is_some());
    }
}

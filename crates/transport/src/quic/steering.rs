//! Which worker gets a datagram: one byte of its destination connection ID decides, the first, or in a cluster the first
//! behind the node's ID ([`ServerId`]).
//!
//! All workers' sockets share a port. Left alone the kernel would choose by addresses, and a client
//! whose address changes would end up with a worker that does not know it. So every worker makes
//! connection IDs that name it, and a filter in the kernel reads that byte. A client's first packet
//! carries a random ID and goes anywhere, always to the same place.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use ring::rand::{SecureRandom, SystemRandom};
use socket2::Socket;

use super::server_id::ServerId;

/// Where an endpoint stands among all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointSlot {
    /// Worker.
    pub(crate) index: usize,
    /// Workers that share the port.
    pub(crate) workers: usize,
    /// Endpoint of this worker.
    pub(crate) endpoint: usize,
}

/// The most workers among which one byte distributes connections evenly enough.
pub(crate) const MAX_WORKERS: usize = 64;

/// Length of connection IDs in bytes: the first names the worker, the rest is random.
const CID_BYTES: usize = 8;

/// Whether this server's connection IDs can have this length.
pub(super) fn may_be_ours(cid: &[u8]) -> bool {
    [CID_BYTES, ServerId::CID_BYTES].contains(&cid.len())
}

/// The first connection ID made since the last look: when a connection has been accepted in between, the one to which its
/// client addresses the rest of its handshake. quinn-proto does not show it.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstCid(Arc<Mutex<Option<ConnectionId>>>);

impl FirstCid {
    pub(super) fn take_id(&self) -> Option<ConnectionId> {
        self.0.lock().take()
    }
}

/// Makes connection IDs that name their worker.
pub(crate) struct WorkerCids {
    index: u8,
    workers: u8,
    /// The node of a cluster that they name.
    server_id: Option<ServerId>,
    random: SystemRandom,
    first: FirstCid,
}

impl WorkerCids {
    pub(super) fn new(
        index: usize,
        workers: usize,
        server_id: Option<ServerId>,
        first: FirstCid,
    ) -> WorkerCids {
        let workers = u8::try_from(workers.clamp(1, MAX_WORKERS)).unwrap_or(1);
        let index = u8::try_from(index).unwrap_or(0) % workers;
        WorkerCids { index, workers, server_id, random: SystemRandom::new(), first }
    }

    /// The byte that names the worker.
    fn worker_at(&self) -> usize {
        if self.server_id.is_some() { ServerId::PREFIX_BYTES } else { 0 }
    }
}

impl ConnectionIdGenerator for WorkerCids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0u8; ServerId::CID_BYTES];
        let (length, at) = (self.cid_len(), self.worker_at());
        if self.random.fill(&mut bytes[at..length]).is_err() {
            // quinn-proto would notice a duplicate; without randomness TLS has failed long before.
            tracing::error!("the system random number generator failed");
        }
        let rounds = 256 / u16::from(self.workers);
        let round = u16::from(bytes[at]) % rounds;
        // Below 256: round < 256 / workers and index < workers.
        bytes[at] = (round * u16::from(self.workers)) as u8 + self.index;
        if let Some(id) = self.server_id {
            bytes[..at].copy_from_slice(&id.prefix());
        }
        let cid = ConnectionId::new(&bytes[..length]);
        self.first.0.lock().get_or_insert(cid);
        cid
    }

    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        let is_workers =
            cid.get(self.worker_at()).is_some_and(|byte| byte % self.workers == self.index);
        if is_workers && self.server_id.is_none_or(|id| cid.starts_with(&id.prefix())) {
            Ok(())
        } else {
            Err(InvalidCid)
        }
    }

    fn cid_len(&self) -> usize {
        if self.server_id.is_some() { ServerId::CID_BYTES } else { CID_BYTES }
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Attaches the filter to a port's socket group. A socket's number in the group is its order of binding.
///
/// # Errors
/// The kernel does not know the option.
// setsockopt with a filter program has no safe wrapper in std, socket2 or mio.
#[allow(unsafe_code)]
pub(crate) fn attach(socket: &Socket, workers: usize, in_cluster: bool) -> io::Result<()> {
    let mut program = if in_cluster { program_in_cluster(workers) } else { program(workers) };
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `filter` and the program it points to live until the call returns; the kernel copies.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            std::ptr::from_ref(&filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const JUMP_IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
const RETURN_A: u16 = (libc::BPF_RET | libc::BPF_A) as u16;

fn op(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// `A = first byte; if long header A = byte 6 else A = byte 1; return A mod workers`.
pub(super) fn program(workers: usize) -> Vec<libc::sock_filter> {
    let modulus = u32::try_from(workers).unwrap_or(1);
    vec![
        op(LOAD_BYTE, 0, 0, 0),
        op(JUMP_IF_SET, 0, 2, 0x80),
        op(LOAD_BYTE, 0, 0, 6),
        op(JUMP, 0, 0, 1),
        op(LOAD_BYTE, 0, 0, 1),
        op(MODULO, 0, 0, modulus),
        op(RETURN_A, 0, 0, 0),
    ]
}

/// The byte behind the server ID: 10, or in a long header 15. A long header's ID of another length is the client's:
/// byte 6, because 15 may be behind it, where a client's packets differ.
pub(super) fn program_in_cluster(workers: usize) -> Vec<libc::sock_filter> {
    let modulus = u32::try_from(workers).unwrap_or(1);
    let worker = ServerId::PREFIX_BYTES as u32;
    vec![
        op(LOAD_BYTE, 0, 0, 0),
        op(JUMP_IF_SET, 0, 6, 0x80),
        op(LOAD_BYTE, 0, 0, 5),
        op(JUMP_IF_EQUAL, 0, 2, ServerId::CID_BYTES as u32),
        op(LOAD_BYTE, 0, 0, 6 + worker),
        op(JUMP, 0, 0, 3),
        op(LOAD_BYTE, 0, 0, 6),
        op(JUMP, 0, 0, 1),
        op(LOAD_BYTE, 0, 0, 1 + worker),
        op(MODULO, 0, 0, modulus),
        op(RETURN_A, 0, 0, 0),
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn connection_ids_name_their_worker() {
        for workers in [1, 2, 3, 7, 64] {
            for index in 0..workers {
                let mut cids = WorkerCids::new(index, workers, None, FirstCid::default());
                for _ in 0..500 {
                    let cid = cids.generate_cid();
                    assert_eq!((cid.len(), usize::from(cid[0]) % workers), (8, index));
                    assert!(cids.validate(&cid).is_ok());
                }
            }
        }
    }

    #[test]
    fn connection_ids_of_a_cluster_name_node_and_worker() {
        let (here, other) = (ServerId::of_node("c", "a"), ServerId::of_node("c", "b"));
        let of = |id, index| WorkerCids::new(index, 3, Some(id), FirstCid::default());
        let mut seen = std::collections::HashSet::new();
        for index in 0..3 {
            let mut cids = of(here, index);
            for _ in 0..500 {
                let cid = cids.generate_cid();
                assert_eq!(ServerId::read(&cid), Some(here));
                assert_eq!((cid.len(), usize::from(cid[9]) % 3), (18, index));
                assert!(cids.validate(&cid).is_ok());
                assert!(of(other, index).validate(&cid).is_err(), "another node's");
                assert!(of(here, (index + 1) % 3).validate(&cid).is_err(), "another worker's");
                assert!(seen.insert(cid[10..].to_vec()), "the nonce is random");
            }
        }
    }
}

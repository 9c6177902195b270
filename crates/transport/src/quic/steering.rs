//! Which worker gets a datagram: the first byte of its destination connection ID decides.
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

/// The most workers among which one byte distributes connections evenly enough.
pub(crate) const MAX_WORKERS: usize = 64;

/// Length of connection IDs in bytes: the first names the worker, the rest is random.
pub(super) const CID_BYTES: usize = 8;

/// The first connection ID made since the last look: when a connection has been accepted in between, the one to which its
/// client addresses the rest of its handshake. quinn-proto does not show it.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstCid(Arc<Mutex<Option<ConnectionId>>>);

impl FirstCid {
    pub(super) fn take(&self) -> Option<ConnectionId> {
        self.0.lock().take()
    }
}

/// Makes connection IDs that name their worker.
pub(crate) struct WorkerCids {
    index: u8,
    workers: u8,
    random: SystemRandom,
    first: FirstCid,
}

impl WorkerCids {
    pub(super) fn new(index: usize, workers: usize, first: FirstCid) -> WorkerCids {
        let workers = u8::try_from(workers.clamp(1, MAX_WORKERS)).unwrap_or(1);
        let index = u8::try_from(index).unwrap_or(0) % workers;
        WorkerCids { index, workers, random: SystemRandom::new(), first }
    }
}

impl ConnectionIdGenerator for WorkerCids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0u8; CID_BYTES];
        if self.random.fill(&mut bytes).is_err() {
            // quinn-proto would notice a duplicate; without randomness TLS has failed long before.
            tracing::error!("the system random number generator failed");
        }
        let rounds = 256 / u16::from(self.workers);
        let round = u16::from(bytes[0]) % rounds;
        // Below 256: round < 256 / workers and index < workers.
        bytes[0] = (round * u16::from(self.workers)) as u8 + self.index;
        let cid = ConnectionId::new(&bytes);
        self.first.0.lock().get_or_insert(cid);
        cid
    }

    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        if cid.first().is_some_and(|byte| byte % self.workers == self.index) {
            Ok(())
        } else {
            Err(InvalidCid)
        }
    }

    fn cid_len(&self) -> usize {
        CID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Attaches the filter to a port's socket group: `A = first byte; if long header A = byte 6 else
/// A = byte 1; return A mod workers`. A socket's number in the group is its order of binding.
///
/// # Errors
/// The kernel does not know the option.
// setsockopt with a filter program has no safe wrapper in std, socket2 or mio.
#[allow(unsafe_code)]
pub(crate) fn attach(socket: &Socket, workers: usize) -> io::Result<()> {
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const JUMP_IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    const RETURN_A: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let modulus = u32::try_from(workers).unwrap_or(1);
    let mut program = [
        op(LOAD_BYTE, 0, 0, 0),
        op(JUMP_IF_SET, 0, 2, 0x80),
        op(LOAD_BYTE, 0, 0, 6),
        op(JUMP, 0, 0, 1),
        op(LOAD_BYTE, 0, 0, 1),
        op(MODULO, 0, 0, modulus),
        op(RETURN_A, 0, 0, 0),
    ];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_ids_name_their_worker() {
        for workers in [1, 2, 3, 7, 64] {
            for index in 0..workers {
                let mut cids = WorkerCids::new(index, workers, FirstCid::default());
                for _ in 0..500 {
                    let cid = cids.generate_cid();
                    assert_eq!(usize::from(cid[0]) % workers, index);
                    assert!(cids.validate(&cid).is_ok());
                }
            }
        }
    }
}

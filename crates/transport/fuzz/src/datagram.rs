//! A QUIC datagram of a stranger: the kernel's filter gives it to one of the workers, by the bytes that name one, and its
//! header is read within its bounds; beside readers that look at fixed positions (RFC 8999, RFC 9000 section 17.2).

use libc::{BPF_JA, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_LD, BPF_MOD, BPF_RET, sock_filter};
use quinn_proto::{ConnectionId, ConnectionIdGenerator};

use crate::peek::{self, FirstPacket};
use crate::server_id::ServerId;
use crate::steering::{
    FirstCid, MAX_WORKERS, WorkerCids, may_be_ours, program, program_in_cluster,
};

/// The most bytes of a connection ID in QUIC version 1 (RFC 9000 section 17.2).
const MAX_CID_BYTES: usize = 20;

/// How many workers there are less one, which of them makes connection IDs, and a datagram.
pub fn datagram(data: &[u8]) {
    let Some((&[workers, index], datagram)) = data.split_first_chunk() else { return };
    let workers = 1 + usize::from(workers) % MAX_WORKERS;
    let index = usize::from(index) % workers;
    check_header(datagram);
    for own in [None, Some(ServerId::of_node("fuzz", "own"))] {
        let given = given_to(own, workers, datagram);
        assert_eq!(given, expected(own, workers, datagram), "{own:?}");
        let mut cids = WorkerCids::new(index, workers, own, FirstCid::default());
        check_own(&mut cids, (index, workers, own), datagram);
        check_foreign(&cids, (index, workers, own), datagram);
    }
}

/// Which worker the kernel gives a datagram to.
fn given_to(own: Option<ServerId>, workers: usize, datagram: &[u8]) -> usize {
    let program = if own.is_some() { program_in_cluster(workers) } else { program(workers) };
    let worker = run(&program, datagram) as usize;
    assert!(worker < workers, "there is no worker {worker} of {workers}");
    worker
}

/// Runs a filter as the kernel does (Documentation/networking/filter.rst): loading a byte behind the packet ends it with
/// 0. What the kernel would not accept panics.
fn run(program: &[sock_filter], packet: &[u8]) -> u32 {
    let (mut a, mut at) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let code = u32::from(code);
        match code & 7 {
            BPF_LD => match packet.get(k as usize) {
                Some(byte) => a = u32::from(*byte),
                None => return 0,
            },
            BPF_JMP if code & 0xF0 == BPF_JA => at += k as usize,
            BPF_JMP => {
                let holds = match code & 0xF0 {
                    BPF_JSET => a & k != 0,
                    BPF_JEQ => a == k,
                    other => panic!("jump {other:#x}"),
                };
                at += usize::from(if holds { jt } else { jf });
            }
            BPF_RET => return a,
            _ if code & 0xF0 == BPF_MOD => a %= k,
            _ => panic!("instruction {code:#x}"),
        }
    }
}

/// The first byte of the destination connection ID, or of the nonce in one that can be a node's, decides; without such a
/// byte it is the first worker.
fn expected(own: Option<ServerId>, workers: usize, datagram: &[u8]) -> usize {
    let Some(flags) = datagram.first() else { return 0 };
    let id_at = if flags & 0x80 == 0 { 1 } else { 6 };
    let has_node = flags & 0x80 == 0 || usize::from(datagram.get(5).copied().unwrap_or(0)) == 18;
    let byte_at = if own.is_some() && has_node { id_at + 9 } else { id_at };
    usize::from(datagram.get(byte_at).copied().unwrap_or(0)) % workers
}

/// A connection ID that a worker makes leads to it, whatever follows.
fn check_own(
    cids: &mut WorkerCids,
    (index, workers, own): (usize, usize, Option<ServerId>),
    rest: &[u8],
) {
    let cid = cids.generate_cid();
    assert!(cid.len() == cids.cid_len() && may_be_ours(&cid) && cids.validate(&cid).is_ok());
    let short = [&[0x40], &cid[..], rest].concat();
    let long = [&[0xE0, 0, 0, 0, 1, cid.len() as u8], &cid[..], rest].concat();
    assert_eq!([&short, &long].map(|packet| given_to(own, workers, packet)), [index; 2]);
    assert_eq!(peek::destination(&long), Some(&cid[..]));
    if own.is_some() {
        assert_eq!(ServerId::of_short_packet(&short), own);
        let other = Some(ServerId::of_node("fuzz", "other"));
        let other = WorkerCids::new(index, workers, other, FirstCid::default());
        assert!(other.validate(&cid).is_err(), "another node's");
    }
    if workers > 1 {
        let next = WorkerCids::new((index + 1) % workers, workers, own, FirstCid::default());
        assert!(next.validate(&cid).is_err(), "another worker's");
    }
}

/// A connection ID that a stranger sends is a worker's only if packets with it lead there.
fn check_foreign(
    cids: &WorkerCids,
    (index, workers, own): (usize, usize, Option<ServerId>),
    datagram: &[u8],
) {
    let sent = datagram.get(1..).unwrap_or_default();
    let cid = ConnectionId::new(&sent[..sent.len().min(MAX_CID_BYTES)]);
    if cids.validate(&cid).is_ok() {
        let packet = [&[0x40], &cid[..]].concat();
        assert_eq!(given_to(own, workers, &packet), index);
        assert!(own.is_none() || cid.starts_with(&own.map(ServerId::prefix).unwrap_or_default()));
    }
    if let Some(id) = ServerId::of_short_packet(datagram) {
        assert_eq!(datagram[1..10], id.prefix());
        assert_eq!(id.to_string().parse(), Ok(id));
    }
}

/// What is read of the first packet's header.
fn check_header(datagram: &[u8]) {
    let destination = peek::destination(datagram);
    if let Some(destination) = destination {
        assert_eq!(destination.len(), usize::from(datagram[5]));
        assert_eq!(destination, &datagram[6..6 + destination.len()]);
    }
    let first = peek::first(datagram);
    let kind = datagram.first().map(|flags| (flags & 0x80 != 0, flags >> 4 & 3));
    // Behind both connection IDs.
    let length_at = destination.and_then(|destination| {
        let source_at = 6 + destination.len();
        Some(source_at + 1 + usize::from(*datagram.get(source_at)?))
    });
    let number = length_at.and_then(|at| number_at(datagram, at));
    let wanted = match kind {
        None => FirstPacket::Other,
        Some((false, _)) => FirstPacket::Short,
        Some((true, 0)) => {
            FirstPacket::Early { token: number.is_some_and(|(length, _)| length > 0) }
        }
        Some((true, 1)) => FirstPacket::Early { token: false },
        Some((true, 2)) => {
            let ends = |(length, at): (u64, usize)| at as u64 + length == datagram.len() as u64;
            FirstPacket::Handshake { alone: number.is_some_and(ends) }
        }
        Some(_) => FirstPacket::Other,
    };
    assert_eq!(first, wanted);
}

/// A variable-length integer (RFC 9000 section 16), and where it ends.
fn number_at(datagram: &[u8], at: usize) -> Option<(u64, usize)> {
    let length = 1 << (datagram.get(at)? >> 6);
    let mut bytes = [0; 8];
    bytes[8 - length..].copy_from_slice(datagram.get(at..at + length)?);
    bytes[8 - length] &= 0x3F;
    Some((u64::from_be_bytes(bytes), at + length))
}

//! Tests of [`super::steering`] with the kernel.
#![allow(clippy::unwrap_used)]

use std::net::UdpSocket;

use quinn_proto::ConnectionIdGenerator as _;

use super::server_id::ServerId;
use super::steering::{FirstCid, WorkerCids};

/// Which of three workers the kernel gives a datagram to.
fn given_to(in_cluster: bool, datagrams: &[Vec<u8>]) -> Vec<usize> {
    let sockets = crate::listen::bind_udp("127.0.0.1:0".parse().unwrap(), 3, in_cluster);
    let sockets: Vec<UdpSocket> = sockets.unwrap();
    let to = sockets[0].local_addr().unwrap();
    let mut given = Vec::new();
    for datagram in datagrams {
        // Each from another address.
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(datagram, to).unwrap();
        let mut buffer = [0; 64];
        // Loopback delivers within the call.
        let got = |socket: &UdpSocket| socket.recv(&mut buffer).is_ok();
        given.push(sockets.iter().position(got).unwrap());
    }
    given
}

#[test]
fn the_kernel_gives_a_packet_to_the_worker_in_its_connection_id() {
    let id = ServerId::of_node("c", "a");
    for server_id in [None, Some(id)] {
        let (mut datagrams, mut workers) = (Vec::new(), Vec::new());
        for index in [0, 1, 2, 2, 1, 0] {
            let cid = WorkerCids::new(index, 3, server_id, FirstCid::default()).generate_cid();
            let length = u8::try_from(cid.len()).unwrap();
            datagrams.push([&[0x40][..], &cid[..], &[0xAA; 30]].concat());
            datagrams.push([&[0xE0, 0, 0, 0, 1, length][..], &cid[..], &[0, 0xBB]].concat());
            workers.extend([index, index]);
        }
        assert_eq!(given_to(server_id.is_some(), &datagrams), workers, "{server_id:?}");
    }
    // A client's first packets have an ID of its own, and differ in what is behind it.
    let first = |rest: u8| [&[0xC0, 0, 0, 0, 1, 8][..], &[7; 8], &[0, rest, rest]].concat();
    let given = given_to(true, &(0..20).map(first).collect::<Vec<_>>());
    assert_eq!(given, [1; 20]);
}

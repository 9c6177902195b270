//! When a receiver that has its files ends: the clock is moved, the sockets are real.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use fulmar_bulk::{Kind, Sender, SenderConfig, SenderEvent};
use tokio::net::UdpSocket;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn args(dir: &Path) -> Args {
    Args {
        from: None,
        dir: Some(dir.to_owned()),
        stdout: false,
        via: Via::Norm,
        tls: TlsArgs::default(),
        key: KeyArgs::default(),
        announced: Announced::default(),
        count: Some(1),
        interface: None,
        json: false,
        quiet: true,
    }
}

async fn socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A receiver of one file; and its address.
async fn receiver(args: &Args) -> (Run<'_>, SocketAddr) {
    let (socket, address) = socket().await;
    let encryption = ReceiverChannelEncryption::of_receiver(None).unwrap();
    let channel = Channel { socket, whom: None, encryption };
    let files = Files::new(args.dir(), 2, None);
    let receiver = fulmar_bulk::Receiver::new(ReceiverConfig::default(), files);
    (Run { count: args.count, ..Run::new(args, channel, receiver) }, address)
}

/// A sender and its clock.
struct Peer {
    sender: Sender<Vec<u8>>,
    address: SocketAddr,
    now: Duration,
}

impl Peer {
    fn new(address: SocketAddr) -> Peer {
        let mut sender = Sender::new(SenderConfig::default(), Duration::ZERO).unwrap();
        let info = Manifest { name: "file".into(), hash: None }.encode();
        sender.add(vec![7; 5000], 5000, info, Kind::File).unwrap();
        sender.finish();
        Peer { sender, address, now: Duration::ZERO }
    }

    /// The datagrams of its next hundredth of a second.
    fn next(&mut self) -> Vec<Vec<u8>> {
        let (mut sent, mut out) = (Vec::new(), Vec::new());
        self.now += Duration::from_millis(10);
        while self.sender.poll_transmit(self.now, &mut out) {
            sent.push(out.clone());
        }
        sent
    }

    /// Sends until the file is complete; its sender does not know.
    fn deliver(&mut self, run: &mut Run<'_>) {
        while !std::fs::exists(run.args.dir().join("file")).unwrap() {
            assert!(self.now < PATIENCE, "it does not arrive");
            let at = run.start.elapsed();
            for datagram in self.next() {
                run.receiver.receive(at, self.address, &datagram);
            }
            while run.receiver.poll_transmit(at, &mut run.out).is_some() {
                self.sender.receive(self.now, &run.out);
            }
        }
    }

    fn is_confirmed(&mut self) -> bool {
        let mut events = std::iter::from_fn(|| self.sender.poll_event());
        events.any(|event| matches!(event, SenderEvent::Confirmed(_)))
    }
}

fn pass(run: &mut Run<'_>, time: Duration) {
    run.start = run.start.checked_sub(time).unwrap();
}

#[tokio::test]
async fn garbage_does_not_keep_it() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    let (mut run, to) = receiver(&args).await;
    Peer::new(socket().await.1).deliver(&mut run);
    run.events();
    assert!(!run.is_over(), "its sender has not ended");
    let (other, _) = socket().await;
    let garbage = async {
        loop {
            other.send_to(b"garbage", to).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // Some of it comes before the sender was silent for long enough.
    pass(&mut run, LINGER - Duration::from_millis(100));
    tokio::select! {
        ended = run.until_the_end() => ended.unwrap(),
        () = garbage => {}
        () = tokio::time::sleep(PATIENCE) => panic!("it stays"),
    }
}

#[tokio::test]
async fn a_request_that_waits_is_answered_before_it_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    let (mut run, to) = receiver(&args).await;
    let (socket, address) = socket().await;
    let mut peer = Peer::new(address);
    peer.deliver(&mut run);
    run.events();
    // The sender goes on, and this process does not run.
    for _ in 0..10 {
        for datagram in peer.next() {
            socket.send_to(&datagram, to).await.unwrap();
        }
    }
    pass(&mut run, 2 * LINGER);
    let answered = async {
        let mut buffer = [0; 2000];
        while !peer.is_confirmed() {
            let length = socket.recv(&mut buffer).await.unwrap();
            peer.sender.receive(peer.now, &buffer[..length]);
        }
    };
    tokio::select! {
        biased;
        () = answered => {}
        _ = run.until_the_end() => panic!("it leaves without an answer"),
        () = tokio::time::sleep(PATIENCE) => panic!("no answer"),
    }
}

#[tokio::test]
async fn a_sync_that_takes_long_is_not_silence() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    let (mut run, _) = receiver(&args).await;
    Peer::new(socket().await.1).deliver(&mut run);
    pass(&mut run, 2 * LINGER);
    run.events();
    assert!(!run.is_over(), "the sender had no time to ask again");
    pass(&mut run, 2 * LINGER);
    assert!(run.is_over());
}

#[tokio::test]
async fn a_file_that_cannot_be_stored_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    let (mut run, _) = receiver(&args).await;
    // A folder has its name.
    std::fs::create_dir(folder.path().join("file")).unwrap();
    let mut peer = Peer::new(socket().await.1);
    while run.failed == 0 {
        assert!(peer.now < PATIENCE, "nothing has failed");
        for datagram in peer.next() {
            run.receiver.receive(run.start.elapsed(), peer.address, &datagram);
        }
        run.events();
    }
    assert!(run.is_over(), "there is no acknowledgement to repeat");
}

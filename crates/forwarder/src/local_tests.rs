//! The local session with a broker that the test plays, over a socket pair.

use fulmar_mqtt::Properties;
use fulmar_mqtt::codec::{MAX_PACKET_BYTES, decode, peek_frame};
use fulmar_mqtt::packet::Connack;
use fulmar_text::metrics::Metrics;
use std::sync::atomic::Ordering;

use tokio::net::UnixStream;

use super::*;
use crate::arriving::Arriving;
use crate::test_support::{LONG, outbox, shared};

/// More than the buffers of both sockets, with [`PAYLOAD`].
const PUBLICATIONS: u16 = 4000;
const PAYLOAD: [u8; 1000] = [7; 1000];

/// CONNACK, and publications to this topic.
fn packets(topic: &str) -> Vec<u8> {
    let version = local_client::VERSION;
    let mut packets = Vec::new();
    Connack { session_present: true, reason: ReasonCode::Success, properties: Properties::NONE }
        .encode(version, &mut packets);
    for number in 1..=PUBLICATIONS {
        Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic,
            packet_id: PacketId::new(number),
            properties: Properties::NONE,
            payload: &PAYLOAD,
        }
        .encode(version, &mut packets);
    }
    packets
}

/// The broker's end.
struct Broker {
    stream: UnixStream,
    unsent: Vec<u8>,
    received: Vec<u8>,
    acknowledged: usize,
}

impl Broker {
    /// Writes and reads what is possible at once. Returns whether anything was.
    fn exchange(&mut self) -> bool {
        let mut moved = false;
        while !self.unsent.is_empty()
            && let Ok(sent) = self.stream.try_write(&self.unsent)
        {
            self.unsent.drain(..sent);
            moved = true;
        }
        while let Ok(1..) = self.stream.try_read_buf(&mut self.received) {
            moved = true;
        }
        let mut done = 0;
        while let Some(frame) = peek_frame(&self.received[done..], MAX_PACKET_BYTES).unwrap() {
            let packet = decode(&frame, local_client::VERSION);
            if matches!(packet, Ok(Packet::Ack(AckKind::Puback, _))) {
                self.acknowledged += 1;
            }
            done += frame.len;
        }
        self.received.drain(..done);
        moved
    }

    /// Exchanges until `done`.
    async fn until(&mut self, done: impl Fn(&Broker) -> bool) {
        let deadline = Instant::now() + LONG;
        let mut quiet = 0;
        loop {
            quiet = if self.exchange() { 0 } else { quiet + 1 };
            if quiet > 1000 && done(self) {
                return;
            }
            assert!(Instant::now() < deadline, "{} acknowledged", self.acknowledged);
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_dead_letter_is_acknowledged_when_it_is_in_the_file_and_publishers_wait_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dead.jsonl");
    let shared = shared(
        "url = \"quic://broker.example\"\n[[up]]\nfilter = \"sensor/#\"\nfrom_prefix = \"sensor/\"\n",
    );
    let outbox = outbox(&shared, &file);
    std::fs::remove_file(&file).unwrap();
    // Not writable, for root as well.
    std::fs::create_dir(&file).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let (sender, receiver) =
        local_client::over(near, &local_client::anonymous_session(Properties::NONE));
    let (handle, mut scheduler) = (outbox.handle(), DownlinkScheduler::default());
    let mut session = Session::new(&shared, &handle, &mut scheduler);
    let (_down, mut coming_down) = mpsc::channel(1);
    let mut ended = None;
    let served = session.serve(sender, receiver, &mut coming_down, &mut ended);
    let (unsent, received) = (packets("sensor"), Vec::new());
    let mut broker = Broker { stream: far, unsent, received, acknowledged: 0 };
    let played = async {
        let failing = || shared.metrics.failure.lock().is_some();
        broker.until(|broker| failing() || broker.unsent.is_empty()).await;
        assert_eq!(broker.acknowledged, 0, "nothing of it is in the file");
        assert!(!broker.unsent.is_empty(), "the session must not read on");
        std::fs::remove_dir(&file).unwrap();
        broker.until(|broker| broker.acknowledged == usize::from(PUBLICATIONS)).await;
        let lines = std::fs::read_to_string(&file).unwrap();
        assert_eq!(lines.lines().count(), usize::from(PUBLICATIONS));
        assert_eq!(*shared.metrics.failure.lock(), None);
    };
    tokio::select! {
        outcome = served => panic!("{outcome:?}"),
        () = played => {}
    }
}

#[tokio::test]
async fn a_message_that_no_rule_matches_is_acknowledged_counted_and_logged() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared("url = \"quic://broker.example\"\n[[up]]\nfilter = \"sensor/#\"\n");
    let outbox = outbox(&shared, &folder.path().join("dead.jsonl"));
    let (near, far) = UnixStream::pair().unwrap();
    let (sender, receiver) =
        local_client::over(near, &local_client::anonymous_session(Properties::NONE));
    let (handle, mut scheduler) = (outbox.handle(), DownlinkScheduler::default());
    let mut session = Session::new(&shared, &handle, &mut scheduler);
    let (_down, mut coming_down) = mpsc::channel(1);
    let mut ended = None;
    let served = session.serve(sender, receiver, &mut coming_down, &mut ended);
    let mut broker =
        Broker { stream: far, unsent: packets("else"), received: Vec::new(), acknowledged: 0 };
    tokio::select! {
        outcome = served => panic!("{outcome:?}"),
        () = broker.until(|broker| broker.acknowledged == usize::from(PUBLICATIONS)) => {}
    }
    let mut metrics = Metrics::default();
    shared.metrics.report(&mut metrics, 0);
    let line = format!("fulmar_gateway_dropped_total{{reason=\"no_rule\"}} {PUBLICATIONS}\n");
    assert!(metrics.prometheus().contains(&line), "{line}");
    // From upstream: acknowledged there at once, too.
    let (down, _coming_down) = mpsc::channel(1);
    let mut arriving = Arriving::new(&shared, &handle, &down);
    assert!(arriving.accept(fulmar_client::Message::new("else", "x")).is_none());
    assert_eq!(shared.metrics.unmatched.load(Ordering::Relaxed), u64::from(PUBLICATIONS) + 1);
}

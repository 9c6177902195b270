//! The driver with a server that the test plays, over a stream in memory.

use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::io::AsyncWriteExt as _;

use super::*;
use crate::api::{EVENTS, MAX_EVENT_BYTES};
use crate::event_queue;

/// CONNACK, without properties.
const CONNACK: [u8; 5] = [0x20, 3, 0, 0, 0];
/// PUBREL of an identifier that the client does not know.
const PUBREL: [u8; 4] = [0x62, 2, 0, 1];
const PUBRELS: usize = 250_000;

/// The future's result, if it has one now.
async fn now<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// The application's end.
type Application =
    (mpsc::Sender<Publication>, mpsc::Sender<Control>, event_queue::QueueReceiver<Event>);

fn driver() -> (Driver, Application) {
    let options = Arc::new(Options::new("mqtt://server.example").unwrap());
    let dialer = Dialer::new(Arc::clone(&options)).unwrap();
    let (publish, publications) = mpsc::channel(1);
    let (command, control) = mpsc::channel(1);
    let (events, receiver) = event_queue::bounded(EVENTS, MAX_EVENT_BYTES, Event::size);
    let driver = Driver::new(options, dialer, publications, control, events);
    (driver, (publish, command, receiver))
}

#[tokio::test]
async fn a_server_that_does_not_read_the_answers_is_not_read_either() {
    let (mut driver, _application) = driver();
    let (near, mut far) = tokio::io::duplex(1024);
    let conn = ServerConnection::plain(near, Transport::Tcp);
    let mut packets = CONNACK.to_vec();
    packets.extend(PUBREL.repeat(PUBRELS));
    let (mut written, mut quiet, mut rival) = (0, 0, None);
    {
        let mut served = pin!(driver.serve(conn, &mut rival));
        // Nothing waits for anything but the two ends.
        while quiet < 1000 && written < packets.len() {
            quiet += 1;
            assert!(now(served.as_mut()).await.is_none());
            if let Some(more) = now(pin!(far.write(&packets[written..]))).await {
                written += more.unwrap();
                quiet = 0;
            }
            tokio::task::yield_now().await;
        }
        assert!(written < 6 * MAX_OUT_BYTES, "{written} bytes were read");
        let (mut answers, mut chunk) = (0, vec![0; 1024]);
        while written < packets.len() {
            quiet += 1;
            assert!(quiet < 10_000, "it reads again when the server does");
            assert!(now(served.as_mut()).await.is_none());
            if let Some(more) = now(pin!(far.write(&packets[written..]))).await {
                written += more.unwrap();
                quiet = 0;
            }
            if let Some(more) = now(pin!(far.read(&mut chunk))).await {
                answers += more.unwrap();
            }
            tokio::task::yield_now().await;
        }
        assert!(answers > written / 2, "{answers}");
    }
    assert!(driver.machine.output(CONTROL).len() < 3 * MAX_OUT_BYTES);
}

#[tokio::test]
async fn messages_that_the_application_does_not_accept_are_bounded_in_bytes() {
    let (mut driver, _application) = driver();
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    let conn = ServerConnection::plain(near, Transport::Tcp);
    // QoS 0, topic "t", no properties: 512 KiB.
    let mut publication = vec![0x30, 0x84, 0x80, 0x20, 0, 1, b't', 0];
    publication.extend(vec![0; 512 * 1024]);
    let mut packets = CONNACK.to_vec();
    packets.extend(publication.repeat(64));
    let (mut written, mut quiet, mut rival) = (0, 0, None);
    let mut served = pin!(driver.serve(conn, &mut rival));
    while quiet < 1000 && written < packets.len() {
        quiet += 1;
        assert!(now(served.as_mut()).await.is_none());
        if let Some(more) = now(pin!(far.write(&packets[written..]))).await {
            written += more.unwrap();
            quiet = 0;
        }
        tokio::task::yield_now().await;
    }
    assert!(written > MAX_EVENT_BYTES, "{written}");
    assert!(written < MAX_EVENT_BYTES + (2 << 20), "{written} bytes were read");
}

//! MQTT 5.0 clients inside the process: CoAP, MQTT-SN, `POST /publish`, the platform and the gateway reach the broker
//! as clients do, over transport's handoff, so that authentication, access rules, durability and limits are the
//! broker's.
//!
//! A connection has two halves. The [`LocalSender`] encodes packets and queues them for a task that writes them, and
//! knows how many bytes the broker has not read yet; the [`LocalReceiver`] reads and decodes. Sessions, identifiers and
//! what packets mean are the caller's.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fulmar_broker::{ListenerPolicy, Peer, TransportKind, User};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{MAX_PACKET_BYTES, decode, peek_frame};
use fulmar_mqtt::packet::{
    Ack, Connack, Connect, Disconnect, FilterList, Publish, Subscribe, SubscribeOptions,
    Unsubscribe,
};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, ReasonCode, Version};
use fulmar_transport::{Framing, Handoff};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

/// The version that local clients use.
pub const VERSION: Version = Version::V5;
/// Bytes read at once: messages that arrive together can be stored together, with one fsync.
const READ_BYTES: usize = 64 << 10;
/// Bytes up to which queued packets are written at once.
const WRITE_BYTES: usize = 64 << 10;

/// Connects a client to the broker. Dropping the sender ends the connection, after everything queued is written.
///
/// # Errors
/// There are no file descriptors left, or the broker is ending.
pub fn open(
    handoff: &Handoff,
    peer: Peer,
    connect: &Connect<'_>,
) -> io::Result<(LocalSender, LocalReceiver)> {
    let stream = UnixStream::from_std(handoff.open(peer, Framing::Bytes)?)?;
    Ok(over(stream, connect))
}

/// The same over one end of a socket pair.
pub fn over(stream: UnixStream, connect: &Connect<'_>) -> (LocalSender, LocalReceiver) {
    let (reader, writer) = stream.into_split();
    let (packets, receiver) = mpsc::unbounded_channel();
    let queued = Arc::new(Queued { bytes: AtomicUsize::new(0), written: Notify::new() });
    let writing = tokio::spawn(write(writer, receiver, Arc::clone(&queued))).abort_handle();
    let sender = LocalSender { packets, queued, writing };
    sender.send(|out| connect.encode(out));
    let weak = (sender.packets.downgrade(), Arc::clone(&sender.queued));
    (sender, LocalReceiver { reader, input: Vec::new(), done: 0, sender: weak })
}

/// CONNECT of a session without a name that ends with its connection.
pub fn anonymous_session(properties: Properties<'_>) -> Connect<'_> {
    // The writing task keeps to the broker's maximum of the keep alive.
    Connect { properties, ..Connect::new(VERSION, "") }
}

/// The program itself as a client: the external user without a name.
pub fn internal_peer(listener: &str) -> Peer {
    Peer {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        transport: TransportKind::Tcp,
        identity: Some(User::program().into()),
        listener: Arc::new(ListenerPolicy { name: listener.into(), allow_anonymous: false }),
    }
}

/// Bytes that the broker has not read yet.
#[derive(Debug)]
struct Queued {
    bytes: AtomicUsize,
    /// Notified when bytes were written, and when no more will be.
    written: Notify,
}

#[derive(Debug)]
enum Out {
    Packet(Vec<u8>),
    /// The broker requires a packet this often.
    KeepAlive(Duration),
}

/// The sending half of a client. If the connection has ended, packets are discarded: the receiver reports the end.
#[derive(Debug)]
pub struct LocalSender {
    packets: mpsc::UnboundedSender<Out>,
    queued: Arc<Queued>,
    writing: AbortHandle,
}

/// Ends a client's connection when it is dropped, with what is queued unwritten.
#[derive(Debug)]
pub struct Cut(Option<AbortHandle>);

impl Cut {
    /// Lets the connection end as others do.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        if let Some(writing) = &self.0 {
            writing.abort();
        }
    }
}

impl LocalSender {
    /// Returns a handle that ends the connection at once, for one whose caller does not wait for ever.
    pub fn cut(&self) -> Cut {
        Cut(Some(self.writing.clone()))
    }

    /// Publishes a message.
    pub fn publish(&self, publish: &Publish<'_>) {
        self.send(|out| {
            out.reserve(publish.payload.len() + publish.topic.len() + 16);
            publish.encode(VERSION, out);
        });
    }

    /// Subscribes to these filters, if there are any.
    pub fn subscribe<'a>(
        &self,
        packet_id: PacketId,
        filters: impl IntoIterator<Item = (&'a str, SubscribeOptions)>,
    ) {
        let mut list = Vec::new();
        for (filter, options) in filters {
            FilterList::encode_one(&mut list, filter, Some(options));
        }
        if let Ok(filters) = FilterList::from_encoded(&list, true, VERSION) {
            let subscribe = Subscribe { packet_id, properties: Properties::NONE, filters };
            self.send(|out| subscribe.encode(VERSION, out));
        }
    }

    /// Unsubscribes from these filters, if there are any.
    pub fn unsubscribe<'a>(&self, packet_id: PacketId, filters: impl IntoIterator<Item = &'a str>) {
        let mut list = Vec::new();
        for filter in filters {
            FilterList::encode_one(&mut list, filter, None);
        }
        if let Ok(filters) = FilterList::from_encoded(&list, false, VERSION) {
            let unsubscribe = Unsubscribe { packet_id, properties: Properties::NONE, filters };
            self.send(|out| unsubscribe.encode(VERSION, out));
        }
    }

    /// Sends an acknowledgement of this kind.
    pub fn acknowledge(&self, kind: AckKind, packet_id: PacketId, reason: ReasonCode) {
        acknowledge(&self.packets, &self.queued, kind, packet_id, reason);
    }

    /// Sends PINGREQ.
    pub fn ping(&self) {
        self.send(|out| Packet::Pingreq.encode(VERSION, out));
    }

    /// DISCONNECT; the broker then ends the connection.
    pub fn disconnect(&self, reason: ReasonCode, properties: Properties<'_>) {
        self.send(|out| Disconnect { reason, properties }.encode(VERSION, out));
    }

    /// Bytes that the broker has not read yet.
    pub fn queued_bytes(&self) -> usize {
        self.queued.bytes.load(Ordering::Relaxed)
    }

    /// Waits until everything queued is written, or the connection has ended.
    pub async fn written(&self) {
        loop {
            let written = self.queued.written.notified();
            if self.queued_bytes() == 0 || self.packets.is_closed() {
                return;
            }
            written.await;
        }
    }

    fn send(&self, encode: impl FnOnce(&mut Vec<u8>)) {
        queue(&self.packets, &self.queued, encode);
    }
}

fn queue(packets: &mpsc::UnboundedSender<Out>, queued: &Queued, encode: impl FnOnce(&mut Vec<u8>)) {
    let mut packet = Vec::new();
    encode(&mut packet);
    queued.bytes.fetch_add(packet.len(), Ordering::Relaxed);
    let _ = packets.send(Out::Packet(packet));
}

fn acknowledge(
    packets: &mpsc::UnboundedSender<Out>,
    queued: &Queued,
    kind: AckKind,
    packet_id: PacketId,
    reason: ReasonCode,
) {
    let ack = Ack { packet_id, reason, properties: Properties::NONE };
    queue(packets, queued, |out| ack.encode(kind, VERSION, out));
}

/// Notifies those who wait for written bytes, also when the task ends early.
struct WriteEnd(mpsc::UnboundedReceiver<Out>, Arc<Queued>);

impl Drop for WriteEnd {
    fn drop(&mut self) {
        self.0.close();
        self.1.written.notify_waiters();
    }
}

async fn write(
    mut writer: OwnedWriteHalf,
    packets: mpsc::UnboundedReceiver<Out>,
    queued: Arc<Queued>,
) {
    let mut end = WriteEnd(packets, queued);
    let WriteEnd(packets, queued) = &mut end;
    let mut keep_alive = None;
    let mut output = Vec::new();
    loop {
        let first = match keep_alive {
            None => packets.recv().await,
            Some(every) => match tokio::time::timeout(every, packets.recv()).await {
                Ok(packet) => packet,
                Err(_) => {
                    Packet::Pingreq.encode(VERSION, &mut output);
                    if writer.write_all(&output).await.is_err() {
                        return;
                    }
                    output.clear();
                    continue;
                }
            },
        };
        let Some(mut next) = first else { return };
        loop {
            match next {
                Out::KeepAlive(every) => keep_alive = Some(every),
                Out::Packet(packet) if output.is_empty() => output = packet,
                Out::Packet(packet) => output.extend_from_slice(&packet),
            }
            match packets.try_recv() {
                Ok(more) if output.len() < WRITE_BYTES => next = more,
                Ok(more) => {
                    // Rare: it is written by itself.
                    if !write_counted(&mut writer, &mut output, queued).await {
                        return;
                    }
                    next = more;
                }
                Err(_) => break,
            }
        }
        if !write_counted(&mut writer, &mut output, queued).await {
            return;
        }
    }
}

async fn write_counted(writer: &mut OwnedWriteHalf, output: &mut Vec<u8>, queued: &Queued) -> bool {
    if writer.write_all(output).await.is_err() {
        return false;
    }
    queued.bytes.fetch_sub(output.len(), Ordering::Relaxed);
    queued.written.notify_waiters();
    output.clear();
    true
}

/// The receiving half of a client.
#[derive(Debug)]
pub struct LocalReceiver {
    reader: OwnedReadHalf,
    input: Vec<u8>,
    /// Bytes of `input` that [`LocalReceiver::next_packet`] has returned.
    done: usize,
    sender: (mpsc::WeakUnboundedSender<Out>, Arc<Queued>),
}

impl LocalReceiver {
    /// Reads what the broker has sent; returns false when the connection has ended. Nothing is lost if the future is
    /// dropped.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn fill(&mut self) -> io::Result<bool> {
        self.input.drain(..std::mem::take(&mut self.done));
        self.input.reserve(READ_BYTES);
        Ok(self.reader.read_buf(&mut self.input).await? > 0)
    }

    /// The next complete packet, if there is one.
    ///
    /// # Errors
    /// The broker has sent something malformed ([`io::ErrorKind::InvalidData`]).
    pub fn next_packet(&mut self) -> io::Result<Option<Packet<'_>>> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let unread = &self.input[self.done..];
        let Some(frame) = peek_frame(unread, MAX_PACKET_BYTES).map_err(invalid)? else {
            return Ok(None);
        };
        self.done += frame.len;
        let packet = decode(&frame, VERSION).map_err(invalid)?;
        if let (Packet::Connack(connack), Some(sender)) = (&packet, self.sender.0.upgrade())
            && let Some(every) = keep_alive(connack)
        {
            let _ = sender.send(Out::KeepAlive(every));
        }
        Ok(Some(packet))
    }

    /// Sends PUBACK, unless the sender was dropped.
    pub fn acknowledge(&self, packet_id: PacketId) {
        let (sender, queued) = &self.sender;
        if let Some(sender) = sender.upgrade() {
            acknowledge(&sender, queued, AckKind::Puback, packet_id, ReasonCode::Success);
        }
    }
}

/// Interval at which a packet has to be sent, by the broker's maximum: half of it.
fn keep_alive(connack: &Connack<'_>) -> Option<Duration> {
    connack.properties.iter().find_map(|property| match property {
        Property::ServerKeepAlive(seconds @ 1..) => {
            Some(Duration::from_millis(u64::from(seconds) * 500))
        }
        _ => None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use fulmar_mqtt::{PropertyBuf, QoS};
    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn publication(payload: &[u8]) -> Publish<'_> {
        let (topic, properties) = ("t", Properties::NONE);
        Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: None,
            properties,
            payload,
        }
    }

    /// A client, and the broker's end of its connection.
    fn client() -> (LocalSender, LocalReceiver, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        let (sender, receiver) = over(near, &anonymous_session(Properties::NONE));
        (sender, receiver, far)
    }

    fn connack(keep_alive_s: u16) -> Vec<u8> {
        let mut properties = PropertyBuf::new();
        properties.push(Property::ServerKeepAlive(keep_alive_s));
        let (session_present, reason) = (false, ReasonCode::Success);
        let mut packet = Vec::new();
        Connack { session_present, reason, properties: properties.as_properties() }
            .encode(VERSION, &mut packet);
        packet
    }

    async fn received(far: &mut UnixStream, until: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !until(&bytes) {
            let read = timeout(LONG, far.read_buf(&mut bytes)).await;
            assert_ne!(read.expect("bytes in time").unwrap(), 0, "{bytes:x?}");
        }
        bytes
    }

    #[tokio::test]
    async fn a_connection_that_is_cut_ends_though_the_broker_does_not_read() {
        let (near, far) = UnixStream::pair().unwrap();
        let (sender, _receiver) = over(near, &anonymous_session(Properties::NONE));
        let cut = sender.cut();
        // More than the sockets' buffers take.
        sender.publish(&publication(&[0; 4 << 20]));
        drop(sender);
        drop(cut);
        let mut far = far;
        let mut read = Vec::new();
        timeout(LONG, far.read_to_end(&mut read)).await.unwrap().unwrap();
        assert!(read.len() < 4 << 20, "{}", read.len());
    }

    #[tokio::test]
    async fn everything_queued_is_written_before_a_dropped_client_ends() {
        let (sender, _receiver, mut far) = client();
        let payload = vec![b'x'; 100_000];
        for _ in 0..20 {
            sender.publish(&publication(&payload));
        }
        assert!(sender.queued_bytes() > 2_000_000);
        drop(sender);
        let mut bytes = Vec::new();
        timeout(LONG, far.read_to_end(&mut bytes)).await.unwrap().unwrap();
        assert_eq!(bytes.iter().filter(|byte| **byte == b'x').count(), 2_000_000);
    }

    #[tokio::test]
    async fn written_waits_for_the_broker_and_returns_when_it_ends() {
        let (sender, _receiver, mut far) = client();
        sender.publish(&publication(&vec![0; 4 << 20]));
        assert!(timeout(Duration::from_millis(50), sender.written()).await.is_err());
        let read_all = async {
            let mut rest = 4 << 20;
            let mut part = vec![0; 1 << 16];
            while rest > 0 {
                rest -= far.read(&mut part).await.unwrap().min(rest);
            }
        };
        timeout(LONG, async { tokio::join!(sender.written(), read_all) }).await.unwrap();
        assert_eq!(sender.queued_bytes(), 0);
        sender.publish(&publication(&vec![0; 4 << 20]));
        drop(far);
        timeout(LONG, sender.written()).await.unwrap();
    }

    #[tokio::test]
    async fn packets_arrive_in_parts_and_are_acknowledged() {
        let (sender, mut receiver, mut far) = client();
        let mut packet = Vec::new();
        let sent = Publish {
            qos: QoS::AtLeastOnce,
            packet_id: Some(PacketId::FIRST),
            ..publication(b"payload")
        };
        sent.encode(VERSION, &mut packet);
        for part in packet.chunks(3) {
            assert!(receiver.next_packet().unwrap().is_none());
            far.write_all(part).await.unwrap();
            assert!(timeout(LONG, receiver.fill()).await.unwrap().unwrap());
        }
        assert!(
            matches!(receiver.next_packet(), Ok(Some(Packet::Publish(publish))) if publish == sent)
        );
        assert!(receiver.next_packet().unwrap().is_none());
        receiver.acknowledge(PacketId::FIRST);
        received(&mut far, |bytes| bytes.ends_with(&[0x40, 2, 0, 1])).await;
        drop(sender);
        receiver.acknowledge(PacketId::FIRST);
        drop(far);
        assert!(!timeout(LONG, receiver.fill()).await.unwrap().unwrap());
    }

    /// Otherwise the broker would end the connection of a client that has nothing to send.
    #[tokio::test]
    async fn a_silent_client_keeps_to_the_brokers_longest_keep_alive() {
        let (_sender, mut receiver, mut far) = client();
        far.write_all(&connack(1)).await.unwrap();
        assert!(timeout(LONG, receiver.fill()).await.unwrap().unwrap());
        assert!(matches!(receiver.next_packet(), Ok(Some(Packet::Connack(_)))));
        received(&mut far, |bytes| bytes.ends_with(&[0xC0, 0, 0xC0, 0])).await;
    }

    #[tokio::test]
    async fn malformed_packets_are_errors() {
        let (_sender, mut receiver, mut far) = client();
        far.write_all(&[0xF0, 1, 0xFF]).await.unwrap();
        assert!(timeout(LONG, receiver.fill()).await.unwrap().unwrap());
        assert_eq!(receiver.next_packet().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}

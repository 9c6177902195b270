//! The session of an MQTT 5.0 client on the streams of a connection: what is waited for, keep alive, what
//! the server allows. Messages are not kept: QUIC repeats them while the connection lasts, and the caller
//! decides what to do after that.

mod codec;

use crate::bytes::Writer;
use crate::limits::{INFLIGHT_MESSAGES, STREAM_RECEIVE_BYTES, STREAM_SEND_BYTES, STREAMS};
use crate::quic::Connection;
use crate::{CloseReason, Error, Instant, QoS, Session};
use codec::{ConnAck, Packet};

/// Longest silence of a connection without keep alive, in milliseconds.
const DEFAULT_IDLE_MS: u32 = 30_000;
/// Reason codes of section 2.4.
const PROTOCOL_ERROR: u32 = 0x82;

/// A place in what was received on a stream: first byte and length.
type Span = (usize, usize);

/// Meaning of a packet of the server's for the caller.
pub(crate) enum ServerMessage {
    Connected { session_present: bool },
    Published { id: u16, reason: u8 },
    Subscribed { id: u16, reason: u8 },
    Message { stream: usize, topic: Span, payload: Span, qos: QoS, retain: bool, duplicate: bool },
}

/// A message that the caller has and has not dealt with.
#[derive(Clone, Copy)]
struct PendingMessage {
    stream: usize,
    len: usize,
    /// To be acknowledged; 0: not.
    id: u16,
}

/// A session.
pub(crate) struct Mqtt {
    connected: bool,
    last_id: u16,
    /// Identifiers of QoS 1 messages without an answer; 0 marks a free place.
    inflight: [u16; INFLIGHT_MESSAGES],
    receive_maximum: u16,
    takes_qos_1: bool,
    maximum_packet: u32,
    keep_alive_ms: u32,
    sent_at: Instant,
    /// A PINGREQ has not been answered.
    pinged: bool,
    shown: Option<PendingMessage>,
}

impl Mqtt {
    pub(crate) const fn new() -> Self {
        Self {
            connected: false,
            last_id: 0,
            inflight: [0; INFLIGHT_MESSAGES],
            receive_maximum: 0,
            takes_qos_1: false,
            maximum_packet: 0,
            keep_alive_ms: 0,
            sent_at: Instant::from_millis(0),
            pinged: false,
            shown: None,
        }
    }

    /// Longest silence of the connection of such a session, in milliseconds: as long as section
    /// 3.1.2.10 gives the client.
    pub(crate) fn idle_ms(session: &Session<'_>) -> u32 {
        match session.keep_alive_s {
            0 => DEFAULT_IDLE_MS,
            seconds => u32::from(seconds) * 1500,
        }
    }

    /// Begins a session with CONNECT.
    pub(crate) fn start(
        &mut self,
        connection: &mut Connection,
        session: &Session<'_>,
        now: Instant,
    ) -> Result<(), Error> {
        *self = Self {
            receive_maximum: u16::MAX,
            takes_qos_1: true,
            maximum_packet: u32::MAX,
            keep_alive_ms: u32::from(session.keep_alive_s) * 1000,
            sent_at: now,
            ..Self::new()
        };
        let max = STREAM_RECEIVE_BYTES as u32;
        write(connection, 0, |writer| codec::connect(writer, session, max))
            .map_err(|_| Error::TooLarge)
    }

    fn next_id(&mut self) -> u16 {
        // Ids come back after 65,535 messages; those then in flight are not used.
        loop {
            self.last_id = self.last_id.wrapping_add(1).max(1);
            if !self.inflight.contains(&self.last_id) {
                return self.last_id;
            }
        }
    }

    fn check_len(&self, remaining: usize) -> Result<(), Error> {
        let len = codec::packet_len(remaining);
        if len > STREAM_SEND_BYTES || len > self.maximum_packet as usize {
            return Err(Error::TooLarge);
        }
        Ok(())
    }

    pub(crate) fn publish(
        &mut self,
        connection: &mut Connection,
        stream: usize,
        topic: &str,
        payload: &[u8],
        qos: QoS,
    ) -> Result<u16, Error> {
        if !connection.is_usable(stream) || stream != 0 && !self.connected {
            return Err(Error::NotConnected);
        }
        let unconfirmed = qos == QoS::AtMostOnce;
        if topic.is_empty() || topic.contains(['+', '#', '\0']) || !unconfirmed && !self.takes_qos_1
        {
            return Err(Error::Invalid);
        }
        self.check_len(codec::publish_len(topic, payload, qos))?;
        if unconfirmed {
            write(connection, stream, |writer| codec::publish(writer, topic, payload, qos, 0))?;
            return Ok(0);
        }
        let used = self.inflight.iter().filter(|id| **id != 0).count();
        if used >= INFLIGHT_MESSAGES.min(self.receive_maximum.into()) {
            return Err(Error::Full);
        }
        let id = self.next_id();
        write(connection, stream, |writer| codec::publish(writer, topic, payload, qos, id))?;
        if let Some(free) = self.inflight.iter_mut().find(|id| **id == 0) {
            *free = id;
        }
        Ok(id)
    }

    pub(crate) fn subscribe(
        &mut self,
        connection: &mut Connection,
        filter: &str,
        qos: QoS,
    ) -> Result<u16, Error> {
        if !connection.is_open() {
            return Err(Error::NotConnected);
        }
        if filter.is_empty() || filter.contains('\0') {
            return Err(Error::Invalid);
        }
        self.check_len(codec::subscribe_len(filter))?;
        let id = self.next_id();
        write(connection, 0, |writer| codec::subscribe(writer, filter, qos, id))?;
        Ok(id)
    }

    /// Says goodbye, if there is room to.
    pub(crate) fn finish(&mut self, connection: &mut Connection) {
        if self.connected {
            // Without it the server takes the end of the connection for a failure: no worse than that.
            let _ = write(connection, 0, codec::disconnect);
        }
    }

    /// Interval of pings, in milliseconds: as the session promises, and as the connection needs.
    fn ping_ms(&self, connection: &Connection) -> Option<u32> {
        let idle = connection.idle_ms();
        let needed = if idle == 0 { u32::MAX } else { idle / 3 * 2 };
        (self.connected && self.keep_alive_ms != 0).then(|| self.keep_alive_ms.min(needed))
    }

    pub(crate) fn deadline(&self, connection: &Connection) -> Option<Instant> {
        self.ping_ms(connection).map(|period| self.sent_at.after(period))
    }

    pub(crate) fn on_deadline(&mut self, connection: &mut Connection, now: Instant) {
        if !self.deadline(connection).is_some_and(|deadline| now.reached(deadline)) {
            return;
        }
        self.sent_at = now;
        if self.pinged {
            connection.close(CloseReason::IdleTimeout, 0, true);
        } else if write(connection, 0, codec::pingreq).is_ok() {
            self.pinged = true;
        }
    }

    /// Something was sent: keep alive counts from here.
    pub(crate) fn on_sent(&mut self, now: Instant) {
        if !self.pinged {
            self.sent_at = now;
        }
    }

    /// Takes the next packet; [`None`] when there is none that the caller must know of.
    pub(crate) fn poll_event(&mut self, connection: &mut Connection) -> Option<ServerMessage> {
        if !self.settle(connection) {
            return None;
        }
        for stream in 0..STREAMS {
            loop {
                let bytes = connection.readable(stream);
                let (packet, len) = match codec::read(bytes, STREAM_RECEIVE_BYTES) {
                    Ok(Some(found)) => found,
                    Ok(None) => break,
                    Err(codec::Malformed) => return self.refuse(connection),
                };
                if let Packet::Publish { topic, payload, id, retain, duplicate } = packet {
                    if !self.connected || core::str::from_utf8(topic).is_err() {
                        return self.refuse(connection);
                    }
                    let place =
                        |part: &[u8]| (part.as_ptr().addr() - bytes.as_ptr().addr(), part.len());
                    let (topic, payload) = (place(topic), place(payload));
                    self.shown = Some(PendingMessage { stream, len, id });
                    let qos = if id == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
                    return Some(ServerMessage::Message {
                        stream,
                        topic,
                        payload,
                        qos,
                        retain,
                        duplicate,
                    });
                }
                let said = self.answer(packet);
                connection.consume(stream, len);
                match said {
                    Ok(Some(said)) => return Some(said),
                    Ok(None) => {}
                    Err(reason) => {
                        connection.close(reason, 0, true);
                        return None;
                    }
                }
            }
        }
        if connection.is_open() && connection.is_finished(0) {
            connection.close(CloseReason::Mqtt, 0, true);
        }
        None
    }

    /// The message shown last is dealt with. False: there is no room to say so yet.
    fn settle(&mut self, connection: &mut Connection) -> bool {
        let Some(shown) = self.shown else { return true };
        if shown.id != 0
            && connection.is_open()
            && write(connection, shown.stream, |writer| codec::puback(writer, shown.id)).is_err()
        {
            return false;
        }
        connection.consume(shown.stream, shown.len);
        self.shown = None;
        true
    }

    fn refuse(&mut self, connection: &mut Connection) -> Option<ServerMessage> {
        connection.close(CloseReason::Mqtt, PROTOCOL_ERROR, true);
        None
    }

    fn answer(&mut self, packet: Packet<'_>) -> Result<Option<ServerMessage>, CloseReason> {
        match packet {
            Packet::ConnAck(connack) if !self.connected => self.on_connack(connack).map(Some),
            Packet::Disconnect { reason } => Err(CloseReason::Refused(reason)),
            _ if !self.connected => Err(CloseReason::Mqtt),
            Packet::PubAck { id, reason } => {
                let waiting = self.inflight.iter_mut().find(|waiting| **waiting == id && id != 0);
                *waiting.ok_or(CloseReason::Mqtt)? = 0;
                Ok(Some(ServerMessage::Published { id, reason }))
            }
            Packet::SubAck { id, reason } => Ok(Some(ServerMessage::Subscribed { id, reason })),
            Packet::PingResp => {
                self.pinged = false;
                Ok(None)
            }
            Packet::ConnAck(_) | Packet::Publish { .. } => Err(CloseReason::Mqtt),
        }
    }

    fn on_connack(&mut self, connack: ConnAck) -> Result<ServerMessage, CloseReason> {
        if connack.reason != 0 {
            return Err(CloseReason::Refused(connack.reason));
        }
        self.connected = true;
        self.receive_maximum = connack.receive_maximum;
        self.takes_qos_1 = connack.takes_qos_1;
        self.maximum_packet = connack.maximum_packet;
        if let Some(seconds) = connack.keep_alive_s {
            self.keep_alive_ms = u32::from(seconds) * 1000;
        }
        Ok(ServerMessage::Connected { session_present: connack.session_present })
    }
}

/// Lets `encode` write a packet on a stream: all of it or, if there is no room, nothing.
fn write(
    connection: &mut Connection,
    stream: usize,
    encode: impl FnOnce(&mut Writer<'_>),
) -> Result<(), Error> {
    let mut writer = Writer::new(connection.free(stream));
    encode(&mut writer);
    let len = writer.finish().ok_or(Error::Full)?;
    connection.written(stream, len);
    Ok(())
}

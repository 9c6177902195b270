//! The client as the caller sees it: an MQTT session on a QUIC connection.

use crate::limits::SERVER_NAME_BYTES;
use crate::mqtt::{Mqtt, ServerMessage};
use crate::quic::Connection;
use crate::{CloseReason, Error, Instant, KeyPair, Options, QoS};

/// Event of a connection, returned by [`Client::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The QUIC handshake is over: the server is whom we trust.
    Handshake {
        /// Whether the earlier connection was resumed.
        resumed: bool,
        /// Whether the server took what was sent in 0-RTT packets; if not, it has been sent again.
        early_data_accepted: bool,
    },
    /// The MQTT session is open.
    Connected {
        /// Whether the server remembered the session.
        session_present: bool,
    },
    /// The server has a QoS 1 message, or refused it.
    Published {
        /// Identifier that [`Client::publish`] returned.
        id: u16,
        /// MQTT's reason code; 0x80 and more are refusals.
        reason: u8,
    },
    /// The server answered a subscription.
    Subscribed {
        /// Identifier that [`Client::subscribe`] returned.
        id: u16,
        /// The QoS granted, or a reason of 0x80 and more.
        reason: u8,
    },
    /// A message for us. The next call of [`Client::poll`] takes it as dealt with: only then is a QoS 1
    /// message acknowledged.
    Message(Message<'a>),
    /// There is a ticket to be kept for the next connection: see [`Client::ticket`].
    Ticket,
    /// The connection has ended. This is the last event of it.
    Closed(CloseReason),
}

/// A message from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Topic of the message.
    pub topic: &'a str,
    /// Content of the message.
    pub payload: &'a [u8],
    /// Quality of service with which it was sent.
    pub qos: QoS,
    /// Whether it was there before we subscribed.
    pub retain: bool,
    /// Whether it may have come before.
    pub duplicate: bool,
}

/// An MQTT client on one QUIC connection at a time.
///
/// All methods return at once. The caller's loop is: [`receive`](Self::receive) what has come,
/// [`on_deadline`](Self::on_deadline) if a deadline is due, [`poll_event`](Self::poll_event) until there is
/// nothing, [`poll_transmit`](Self::poll_transmit) until there is nothing, wait until
/// [`deadline`](Self::deadline).
///
/// A connection may be begun anew with [`connect`](Self::connect) any number of times.
// In this order for the sake of flash: what is near the beginning is reached by shorter instructions.
#[repr(C)]
pub struct Client {
    /// Whether the caller knows that the handshake is over.
    told: bool,
    mqtt: Mqtt,
    connection: Connection,
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    /// A client without a connection; all its bytes are zero, so that a static one lies in memory that
    /// takes no flash.
    pub const fn new() -> Self {
        Self { connection: Connection::new(), mqtt: Mqtt::new(), told: false }
    }

    #[cfg(feature = "fuzzing")]
    pub(crate) fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Begins a connection, in place; whatever there was before is forgotten. `entropy` must be fresh and
    /// unpredictable; all that is random on the connection is derived from it.
    ///
    /// What is published before the handshake is over is sent as early data if `options.resume` allows it,
    /// and otherwise as soon as the handshake is over.
    ///
    /// # Errors
    ///
    /// [`Error::BadTicket`], [`Error::TooLarge`] and [`Error::Invalid`]; there is no connection then.
    pub fn connect(
        &mut self,
        options: &Options<'_>,
        key: &KeyPair,
        entropy: &[u8; 32],
        now: Instant,
    ) -> Result<(), Error> {
        let name = options.server_name.as_bytes();
        if name.is_empty() {
            return Err(Error::Invalid);
        }
        if name.len() > SERVER_NAME_BYTES {
            return Err(Error::TooLarge);
        }
        let idle_ms = Mqtt::idle_ms(&options.session);
        self.told = false;
        self.connection.start(options, key, entropy, idle_ms, now)?;
        let started = self.mqtt.start(&mut self.connection, &options.session, now);
        if started.is_err() {
            self.connection.abandon();
        }
        started
    }

    /// Takes a datagram from the server, decrypting it in place.
    pub fn receive(&mut self, datagram: &mut [u8], now: Instant) {
        self.connection.receive(datagram, now);
    }

    /// Writes the next datagram to be sent, and gives its length; [`None`] if there is nothing to send now.
    /// `datagram` should have room for [`DATAGRAM_BYTES`](crate::limits::DATAGRAM_BYTES); with less, nothing is written.
    pub fn poll_transmit(&mut self, datagram: &mut [u8], now: Instant) -> Option<usize> {
        let length = self.connection.poll_transmit(datagram, now)?;
        self.mqtt.on_sent(now);
        Some(length)
    }

    /// When [`on_deadline`](Self::on_deadline) is to be called, if nothing comes before; [`None`] if
    /// there is no connection.
    pub fn deadline(&self) -> Option<Instant> {
        let connection = self.connection.deadline()?;
        let mqtt = self.mqtt.deadline(&self.connection);
        Some(mqtt.map_or(connection, |mqtt| mqtt.min(connection)))
    }

    /// Does what is due: probes for lost packets, keep alive, the idle timeout. Harmless if called early.
    pub fn on_deadline(&mut self, now: Instant) {
        self.connection.on_deadline(now);
        if self.connection.is_open() {
            self.mqtt.on_deadline(&mut self.connection, now);
        }
    }

    /// Does what is due, and says what has happened, one thing after the other; [`None`] when there is
    /// nothing new.
    pub fn poll_event(&mut self, now: Instant) -> Option<Event<'_>> {
        self.on_deadline(now);
        if !self.told && self.connection.is_established() {
            self.told = true;
            return Some(Event::Handshake {
                resumed: self.connection.resumed(),
                early_data_accepted: self.connection.early_data_accepted(),
            });
        }
        if self.connection.take_new_ticket() {
            return Some(Event::Ticket);
        }
        let Some(said) = self.mqtt.poll_event(&mut self.connection) else {
            return self.connection.take_end().map(Event::Closed);
        };
        Some(match said {
            ServerMessage::Connected { session_present } => Event::Connected { session_present },
            ServerMessage::Published { id, reason } => Event::Published { id, reason },
            ServerMessage::Subscribed { id, reason } => Event::Subscribed { id, reason },
            ServerMessage::Message { stream, topic, payload, qos, retain, duplicate } => {
                let bytes = self.connection.readable(stream);
                let part = |(start, len): (usize, usize)| bytes.get(start..start + len);
                let topic = core::str::from_utf8(part(topic).unwrap_or_default());
                Event::Message(Message {
                    topic: topic.unwrap_or_default(),
                    payload: part(payload).unwrap_or_default(),
                    qos,
                    retain,
                    duplicate,
                })
            }
        })
    }

    /// Publishes a message on the session's own stream. Gives the packet identifier of a QoS 1 message,
    /// which [`Event::Published`] will name, and 0 for a QoS 0 message.
    ///
    /// # Errors
    ///
    /// [`Error::Full`], [`Error::TooLarge`], [`Error::NotConnected`] and, for a topic that is empty or has
    /// wildcards, [`Error::Invalid`].
    pub fn publish(&mut self, topic: &str, payload: &[u8], qos: QoS) -> Result<u16, Error> {
        self.publish_on(0, topic, payload, qos)
    }

    /// Publishes like [`publish`](Self::publish) on stream `stream` (below [`STREAMS`](crate::limits::STREAMS)), so that
    /// what is lost on one stream delays nothing on the other. Stream 1 is for brokers that take MQTT on
    /// several streams, such as Fulmar, and can be used once the session is open.
    ///
    /// # Errors
    ///
    /// Those of [`publish`](Self::publish).
    pub fn publish_on(
        &mut self,
        stream: usize,
        topic: &str,
        payload: &[u8],
        qos: QoS,
    ) -> Result<u16, Error> {
        self.mqtt.publish(&mut self.connection, stream, topic, payload, qos)
    }

    /// Subscribes to `filter` with at most `qos`. Gives the packet identifier that
    /// [`Event::Subscribed`] will name.
    ///
    /// # Errors
    ///
    /// Those of [`publish`](Self::publish).
    pub fn subscribe(&mut self, filter: &str, qos: QoS) -> Result<u16, Error> {
        self.mqtt.subscribe(&mut self.connection, filter, qos)
    }

    /// The newest ticket of this connection, to be kept (in flash, say) for [`Resume`](crate::Resume), at
    /// most [`TICKET_BYTES`](crate::limits::TICKET_BYTES) long. It is secret, and servers take it once. It stays valid
    /// here until the next [`connect`](Self::connect).
    pub fn ticket(&self) -> Option<&[u8]> {
        self.connection.ticket()
    }

    /// Changes the keys of the connection (RFC 9001, section 6). Gives whether it could be done now: the
    /// handshake must be confirmed and the last change acknowledged. It is done by itself long before the
    /// keys have worn out.
    pub fn update_keys(&mut self) -> bool {
        self.connection.update_keys()
    }

    /// Whether all that was written has been acknowledged by the server's QUIC.
    pub fn is_flushed(&self) -> bool {
        self.connection.is_flushed()
    }

    /// Ends session and connection: MQTT's DISCONNECT and QUIC's CONNECTION_CLOSE are written by the next
    /// [`poll_transmit`](Self::poll_transmit). What was not acknowledged may be lost.
    pub fn close(&mut self) {
        self.mqtt.finish(&mut self.connection);
        self.connection.close(CloseReason::Local, 0, true);
    }
}

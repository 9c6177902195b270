//! The network between clients and the broker: connections and their streams, whose packets arrive when the schedule
//! decides.

use std::collections::VecDeque;

use fulmar_broker::{Connection, StreamEnd, StreamKey, Timestamp};
use fulmar_mqtt::codec::peek_frame;

use crate::overdue::Tick;

/// First byte of a DISCONNECT.
pub(crate) const DISCONNECT: u8 = 0xE0;

pub(crate) const PINGREQ: [u8; 2] = [0xC0, 0];

/// Input from a client that is in flight to the broker.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// One packet, or a flow header.
    Bytes(Vec<u8>),
    /// The client's end of the stream.
    End(StreamEnd),
}

/// One stream of a network connection.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) key: StreamKey,
    pub(crate) to_broker: VecDeque<Input>,
    pub(crate) to_client: VecDeque<Vec<u8>>,
    /// The broker does not read from it until an event.
    pub(crate) blocked: bool,
    pub(crate) opened: bool,
    /// The network accepts no more for the client until the client has read something.
    pub(crate) full: bool,
}

/// A network connection.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) worker: usize,
    /// `None` during a publication in which other workers act.
    pub(crate) connection: Option<Connection>,
    pub(crate) wires: Vec<Wire>,
    /// Whether the broker's end is open.
    pub(crate) open: bool,
    /// The client has closed it, and the broker has not detected that yet.
    pub(crate) cut: bool,
    /// Whether the transport is to ask for output.
    pub(crate) flush: bool,
    /// Packets per stream that the network holds for the client.
    pub(crate) room: usize,
    /// The broker has read the client's DISCONNECT.
    pub(crate) said_goodbye: bool,
    /// When the broker's end was closed.
    pub(crate) closed_at: Option<Timestamp>,
    /// Streams that the broker has aborted: data sent there is lost.
    pub(crate) aborted: Vec<StreamKey>,
    /// The last call of the core for this connection while a batch was overdue.
    pub(crate) stalled_in: Tick,
    /// The broker has closed it because of such a batch.
    pub(crate) closed_by_stall: bool,
    /// The client has a Keep Alive.
    pub(crate) keeps_alive: bool,
    /// Whether the client's end waits behind what the broker leaves unread.
    pub(crate) is_patient: bool,
    /// The broker knows that the client has closed its side.
    pub(crate) half_closed: bool,
}

impl Line {
    pub(crate) fn new(
        worker: usize,
        connection: Connection,
        room: usize,
        is_patient: bool,
    ) -> Line {
        Line {
            worker,
            connection: Some(connection),
            wires: vec![Wire::new(StreamKey::CONTROL)],
            open: true,
            room,
            is_patient,
            ..Line::default()
        }
    }

    /// Whether the broker may find the client's end of the connection.
    pub(crate) fn ends(&self) -> bool {
        self.cut && (!self.is_patient || self.wires.iter().all(|wire| wire.to_broker.is_empty()))
    }

    /// Whether the broker has left input unread.
    pub(crate) fn is_unread(&self) -> bool {
        self.open && self.wires.iter().any(|wire| wire.blocked && !wire.to_broker.is_empty())
    }
}

impl Wire {
    pub(crate) fn new(key: StreamKey) -> Wire {
        let (to_broker, to_client) = (VecDeque::new(), VecDeque::new());
        Wire { key, to_broker, to_client, blocked: false, opened: false, full: false }
    }

    pub(crate) fn is_readable(&self) -> bool {
        !self.blocked && !self.to_broker.is_empty()
    }

    /// Puts whole packets into the network towards the client.
    pub(crate) fn push_packets(&mut self, mut bytes: &[u8]) {
        while let Ok(Some(frame)) = peek_frame(bytes, usize::MAX) {
            self.to_client.push_back(bytes[..frame.len].to_vec());
            bytes = &bytes[frame.len..];
        }
        assert!(bytes.is_empty(), "the broker sent half a packet");
    }
}

//! Reports the path of traced publications to another part of the program: where they enter the broker, when what they
//! caused is durable, and when their receivers have them.
//!
//! The tracer decides where a publication enters whether it is traced. For the others, and without a tracer, nothing is
//! read or stored. Access rules were applied before.

use fulmar_mqtt::QoS;

use crate::message::MessageId;
use crate::publish_hook::Arrival;

/// The tracer's number of a traced publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceNumber(pub u64);

/// A traced publication has reached one receiver.
#[derive(Clone, Copy, Debug)]
pub struct Delivered<'a> {
    /// The publication; `None` if the receiver has acknowledged it later.
    pub number: Option<TraceNumber>,
    /// The message; `None` at QoS 0 if nobody keeps it.
    pub message: Option<MessageId>,
    /// Topic name.
    pub topic: &'a str,
    /// Forwardable properties in MQTT 5.0 encoding, without their length prefix.
    pub properties: &'a [u8],
    /// The receiver's client identifier.
    pub client_id: &'a str,
    /// Quality of service of this delivery.
    pub qos: QoS,
}

/// Sees traced publications. Called on the workers, so it must neither block nor be slow.
pub trait Tracer: Send + Sync {
    /// A publication that enters. Its number if it is traced.
    fn received(&self, arrival: &Arrival<'_>) -> Option<TraceNumber>;

    /// It has been handed to the sessions of this many receivers, as this message if one of them keeps it.
    fn routed(&self, number: TraceNumber, message: Option<MessageId>, receivers: usize);

    /// What it caused is durable, and its publisher gets its acknowledgement.
    fn durable(&self, number: TraceNumber);

    /// A receiver has acknowledged it or, at QoS 0, its connection has it for sending.
    fn delivered(&self, delivered: &Delivered<'_>);
}

/// A traced publication that is being handled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceInHand {
    pub(crate) number: TraceNumber,
    /// Length of the turn's batch before.
    pub(crate) batch_before: usize,
}

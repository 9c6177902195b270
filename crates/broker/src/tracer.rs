//! Reports the path of traced publications to another part of the program: where they enter the broker, when what they
//! caused is durable, and when their receivers have them.
//!
//! The tracer decides where a publication enters whether it is traced. For the others, and without a tracer, nothing is
//! read or stored. Access rules were applied before.

use std::sync::Arc;

use crate::broker::Broker;
use crate::message::{Message, MessageId, MessageParts};
use crate::publish_hook::Arrival;
use crate::session::{Outgoing, Session};
use crate::turn::{Turn, Waiter};
use fulmar_mqtt::QoS;

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
    number: TraceNumber,
    /// Length of the turn's batch before.
    batch_before: usize,
}

impl Turn {
    /// The publication that is handled next is traced, or none is.
    pub(crate) fn trace_next(&mut self, number: Option<TraceNumber>) {
        self.trace = number.map(|number| TraceInHand { number, batch_before: self.batch_len() });
    }

    /// Whether the publication in hand is traced.
    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// The publication in hand has been handed to everybody.
    #[cold]
    pub(crate) fn trace_routed(&self, message: Option<&Arc<Message>>, receivers: usize) {
        if let (Some(tracer), Some(trace)) = (self.broker.tracer(), self.trace) {
            tracer.routed(trace.number, message.map(|message| message.id()), receivers);
        }
    }

    /// The publication in hand has been handed to this session's connection at QoS 0.
    #[cold]
    pub(crate) fn trace_sent(&self, session: &Session, parts: &MessageParts<'_>) {
        let Some(tracer) = self.broker.tracer() else { return };
        tracer.delivered(&Delivered {
            number: self.trace.map(|trace| trace.number),
            message: None,
            topic: parts.topic,
            properties: parts.properties,
            client_id: session.client_id(),
            qos: QoS::AtMostOnce,
        });
    }

    /// A receiver has acknowledged a traced message.
    #[cold]
    pub(crate) fn trace_acknowledged(&self, session: &Session, outgoing: &Outgoing) {
        let Some(tracer) = self.broker.tracer() else { return };
        tracer.delivered(&Delivered {
            number: None,
            message: Some(outgoing.message.id()),
            topic: outgoing.message.topic(),
            properties: outgoing.message.properties(),
            client_id: session.client_id(),
            qos: outgoing.qos,
        });
    }

    /// The publication in hand has been handled.
    #[cold]
    pub(crate) fn trace_handled(&mut self) {
        let Some(TraceInHand { number, batch_before }) = self.trace.take() else { return };
        if self.batch_len() > batch_before {
            self.when_durable(Waiter::Trace(number));
        } else {
            self.trace_durable(number);
        }
    }

    pub(crate) fn trace_durable(&self, number: TraceNumber) {
        if let Some(tracer) = self.broker.tracer() {
            tracer.durable(number);
        }
    }
}

impl Broker {
    /// Reports traced publications to `tracer` from now on. Only the first call counts: there is one tracer in a program,
    /// set before clients come.
    pub fn set_tracer(&self, tracer: Arc<dyn Tracer>) {
        drop(self.tracer.set(tracer));
    }

    pub(crate) fn tracer(&self) -> Option<&dyn Tracer> {
        self.tracer.get().map(|tracer| &**tracer)
    }
}

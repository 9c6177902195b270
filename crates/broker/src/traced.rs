//! Where a turn calls the tracer: what happens to the traced publication that is being handled.

use std::sync::Arc;

use fulmar_mqtt::QoS;

use crate::broker::Broker;
use crate::message::{Message, MessageParts};
use crate::session::{Outgoing, Session};
use crate::tracer::{Delivered, TraceInHand, TraceNumber, Tracer};
use crate::turn::{Turn, Waiter};

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

//! Makes spans of what happens to traced publications, following OpenTelemetry's semantic conventions for messaging.
//!
//! `receive` is from a publication's arrival until it is stored, with the publisher's span as its parent. `deliver` is
//! from then until one receiver has it, and `forward` from the gateway's outbox until the upstream broker has
//! acknowledged it. The property `traceparent` is forwarded as it came (MQTT 5.0 section 3.3.2.3.7), so that the upstream
//! broker's spans have the same parent.
//!
//! Publications without a recorded trace cost a look at their properties; without `[otlp]`, not even that.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fulmar_broker::message::MessageId;
use fulmar_broker::{Arrival, Delivered, TraceNumber, Tracer};
use fulmar_gateway::outbox::Stored;
use fulmar_mqtt::{Properties, QoS};
use fulmar_part::Spans;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::context::Context;
use super::counts::Counts;
use super::span::{Attribute, Kind, Span, new_id, now_ns};

/// Publications whose deliveries are reported; the oldest makes room for a new one.
const MAX_OPEN: usize = 4096;
/// Bytes of a topic, client or message identifier that a span shows: those that wait have a bound.
const MAX_TEXT_BYTES: usize = 512;
/// Deliveries of one publication that are reported.
const MAX_DELIVERIES: usize = 16;

/// Makes spans, and hands them to the exporter.
pub(crate) struct SpanMaker {
    spans: mpsc::Sender<Span>,
    counts: Arc<Counts>,
    table: Mutex<Table>,
}

/// Publications of which more may be reported.
#[derive(Default)]
struct Table {
    last: u64,
    open: HashMap<u64, Open>,
    by_message: HashMap<MessageId, u64>,
    /// From the oldest.
    order: VecDeque<u64>,
}

struct Open {
    parent: Context,
    span_id: [u8; 8],
    began_ns: u64,
    topic: Box<str>,
    client_id: Box<str>,
    bytes: usize,
    receivers: usize,
    message: Option<MessageId>,
    deliveries: usize,
}

impl SpanMaker {
    pub(super) fn new(spans: mpsc::Sender<Span>, counts: Arc<Counts>) -> SpanMaker {
        SpanMaker { spans, counts, table: Mutex::default() }
    }

    /// Never waits: without room, the span is dropped and counted.
    fn report(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.counts.dropped(1);
        }
    }
}

impl Spans for SpanMaker {
    fn forwarded(&self, messages: &[Stored], gateway: &str, url: &str) {
        for message in messages {
            let properties = Properties::from_forwardable(&message.properties);
            let Some(parent) = Context::read(properties) else { continue };
            let mut attributes = attributes("forward", "send", &message.topic, gateway);
            attributes
                .push(("messaging.message.id", Attribute::Text(shown(&message.id).to_owned())));
            attributes.push(("messaging.message.body.size", number(message.payload.len())));
            attributes.push(("server.address", Attribute::Text(host(url).to_owned())));
            self.report(Span {
                parent,
                span_id: new_id(),
                name: "forward",
                kind: Kind::Producer,
                began_ns: message.entered_ms.saturating_mul(1_000_000),
                ended_ns: now_ns(),
                attributes,
            });
        }
    }
}

impl Tracer for SpanMaker {
    fn received(&self, arrival: &Arrival<'_>) -> Option<TraceNumber> {
        let parent = Context::read(Properties::from_forwardable(arrival.properties))?;
        let open = Open {
            parent,
            span_id: new_id(),
            began_ns: now_ns(),
            topic: shown(arrival.topic).into(),
            client_id: shown(arrival.client_id).into(),
            bytes: arrival.payload.len(),
            receivers: 0,
            message: None,
            deliveries: 0,
        };
        Some(TraceNumber(self.table.lock().insert(open)))
    }

    fn routed(&self, number: TraceNumber, message: Option<MessageId>, receivers: usize) {
        let mut table = self.table.lock();
        let Some(open) = table.open.get_mut(&number.0) else { return };
        (open.receivers, open.message) = (receivers, message);
        if let Some(message) = message {
            table.by_message.insert(message, number.0);
        }
    }

    fn durable(&self, number: TraceNumber) {
        let table = self.table.lock();
        let Some(open) = table.open.get(&number.0) else {
            drop(table);
            return self.counts.dropped(1);
        };
        let mut attributes = attributes("receive", "receive", &open.topic, &open.client_id);
        attributes.push(("messaging.message.body.size", self::number(open.bytes)));
        attributes.push(("fulmar.receivers", self::number(open.receivers)));
        let span = Span {
            parent: open.parent,
            span_id: open.span_id,
            name: "receive",
            kind: Kind::Consumer,
            began_ns: open.began_ns,
            ended_ns: now_ns(),
            attributes,
        };
        drop(table);
        self.report(span);
    }

    fn delivered(&self, delivered: &Delivered<'_>) {
        let mut table = self.table.lock();
        let known = delivered.number.map(|number| number.0).or_else(|| {
            delivered.message.and_then(|message| table.by_message.get(&message).copied())
        });
        let Some(open) = known.and_then(|number| table.open.get_mut(&number)) else { return };
        open.deliveries += 1;
        if open.deliveries > MAX_DELIVERIES {
            return;
        }
        let parent = Context { span_id: open.span_id, ..open.parent };
        let began_ns = open.began_ns;
        drop(table);
        let mut attributes = attributes("deliver", "send", delivered.topic, delivered.client_id);
        let qos = match delivered.qos {
            QoS::AtMostOnce => 0,
            QoS::AtLeastOnce => 1,
            QoS::ExactlyOnce => 2,
        };
        attributes.push(("fulmar.qos", Attribute::Number(qos)));
        self.report(Span {
            parent,
            span_id: new_id(),
            name: "deliver",
            kind: Kind::Producer,
            began_ns,
            ended_ns: now_ns(),
            attributes,
        });
    }
}

impl Table {
    fn insert(&mut self, open: Open) -> u64 {
        if self.order.len() >= MAX_OPEN
            && let Some(oldest) = self.order.pop_front()
            && let Some(message) = self.open.remove(&oldest).and_then(|open| open.message)
        {
            self.by_message.remove(&message);
        }
        self.last += 1;
        self.order.push_back(self.last);
        self.open.insert(self.last, open);
        self.last
    }
}

/// Attributes that every span has, with the operation's name and type.
fn attributes(
    operation: &str,
    kind: &str,
    topic: &str,
    client_id: &str,
) -> Vec<(&'static str, Attribute)> {
    let text = |text: &str| Attribute::Text(shown(text).to_owned());
    vec![
        ("messaging.system", text("mqtt")),
        ("messaging.operation.name", text(operation)),
        ("messaging.operation.type", text(kind)),
        ("messaging.destination.name", text(topic)),
        ("messaging.client.id", text(client_id)),
    ]
}

/// Returns the beginning of a text that fits into a span.
fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

fn number(number: usize) -> Attribute {
    Attribute::Number(number as u64)
}

/// The host of an upstream broker's URL, without credentials.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or_default(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fulmar_mqtt::{Property, PropertyBuf};

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn arrive(maker: &SpanMaker, traceparent: &str) -> Option<TraceNumber> {
        let mut properties = PropertyBuf::new();
        properties.push(Property::UserProperty("traceparent", traceparent));
        maker.received(&Arrival {
            topic: "sensor/a",
            payload: b"12",
            properties: properties.as_properties().raw(),
            client_id: "probe",
            external_user: None,
            packet_id: None,
            dup: false,
        })
    }

    fn deliver(maker: &SpanMaker, message: u64) {
        maker.delivered(&Delivered {
            number: None,
            message: Some(MessageId(message)),
            topic: "sensor/a",
            properties: b"",
            client_id: "office",
            qos: QoS::AtLeastOnce,
        });
    }

    #[test]
    fn a_publications_spans_are_one_trace_and_few() {
        let (sender, mut spans) = mpsc::channel(64);
        let counts = Arc::new(Counts::default());
        let maker = SpanMaker::new(sender, Arc::clone(&counts));
        assert_eq!(arrive(&maker, &TRACE.replace("-01", "-00")), None);
        let number = arrive(&maker, TRACE).unwrap();
        maker.routed(number, Some(MessageId(7)), 100);
        maker.durable(number);
        for _ in 0..100 {
            deliver(&maker, 7);
        }
        deliver(&maker, 8);
        let first = spans.try_recv().unwrap();
        assert_eq!(first.name, "receive");
        assert_eq!(first.parent.span_id, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        for _ in 0..MAX_DELIVERIES {
            let span = spans.try_recv().unwrap();
            assert_eq!((span.name, span.parent.trace_id), ("deliver", first.parent.trace_id));
            assert_eq!(span.parent.span_id, first.span_id);
        }
        assert!(spans.try_recv().is_err());
    }

    #[test]
    fn publications_that_nobody_exports_are_dropped_and_counted() {
        let (sender, mut spans) = mpsc::channel(1);
        let counts = Arc::new(Counts::default());
        let maker = SpanMaker::new(sender, Arc::clone(&counts));
        let numbers: Vec<_> = (0..=MAX_OPEN).map(|_| arrive(&maker, TRACE).unwrap()).collect();
        assert_eq!(maker.table.lock().open.len(), MAX_OPEN);
        // The oldest has made room, and there is room for one span.
        numbers.into_iter().take(3).for_each(|number| maker.durable(number));
        assert!(spans.try_recv().is_ok());
        assert_eq!(counts.spans_dropped(), 2);
    }

    #[test]
    fn long_names_are_cut() {
        let (sender, mut spans) = mpsc::channel(1);
        let maker = SpanMaker::new(sender, Arc::default());
        let mut properties = PropertyBuf::new();
        properties.push(Property::UserProperty("traceparent", TRACE));
        let topic = "é".repeat(30_000);
        let number = maker.received(&Arrival {
            topic: &topic,
            payload: b"",
            properties: properties.as_properties().raw(),
            client_id: &topic,
            external_user: None,
            packet_id: None,
            dup: false,
        });
        maker.durable(number.unwrap());
        let span = spans.try_recv().unwrap();
        let longest = span.attributes.iter().filter_map(|(_, value)| match value {
            Attribute::Text(text) => Some(text.len()),
            Attribute::Number(_) => None,
        });
        assert_eq!(longest.max(), Some(MAX_TEXT_BYTES));
        assert!(maker.table.lock().open.values().all(|open| open.topic.len() <= MAX_TEXT_BYTES));
    }

    #[test]
    fn of_an_upstream_broker_the_host_is_shown() {
        for url in ["quic://a.example:14567", "mqtts://u:p@a.example/x", "mqtt://a.example"] {
            assert_eq!(host(url), "a.example", "{url}");
        }
        assert_eq!(host("quic://[2001:db8::1]:14567"), "2001:db8::1");
    }
}

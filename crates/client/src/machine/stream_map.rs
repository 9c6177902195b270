//! The stream map: which topics and filters use which data stream, and what happens to a flow when
//! its stream, its connection or the server's memory of it is lost.
//!
//! Data stream `i` carries flow `i + 1`; flow 0 is the control flow. Streams are either all plain (no header, as in
//! EMQX's multi-stream mode: the server forgets a stream's QoS state and
//! subscriptions with the stream) or all persistent (a header of the MQTT-next draft names the flow, and
//! both ends keep its state). Only persistent streams carry QoS 2: on a plain one a message could
//! arrive twice.
//!
//! A data stream is folded where there can be none (TCP) or the server refuses it: its flow's
//! messages and requests move to the control flow.

use std::collections::HashMap;

use fulmar_mqtt::QoS;
use fulmar_mqtt::flow::{DataFlow, FlowFlags, FlowHeader, StreamError};
use fulmar_mqtt::packet::{RetainHandling, SubscribeOptions};
use fulmar_mqtt::session::Inbound;

use super::flow::{Ask, Flow, Request};
use super::{Machine, Outcome, Phase};
use crate::message::Message;
use crate::options::{Options, Streams};

/// Filters of one SUBSCRIBE when subscriptions are restored.
const FILTERS_PER_PACKET: usize = 64;

/// A data stream that was lost this often in one connection stays folded until the next.
const MAX_FAILURES: u8 = 3;

/// Seconds a persistent flow outlives its stream at least: longer than any attempt to connect.
const LEAST_FLOW_EXPIRY_S: u32 = 60;

/// The control flow's index.
pub const CONTROL: usize = 0;

/// Why a data stream is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamLoss {
    /// The server reset or stopped it with this code.
    Reset(u64),
    /// The server finished it.
    Finished,
    /// The server did not allow it to be opened in time.
    NotOpened,
}

#[derive(Clone, Debug, Default)]
struct DataStream {
    /// Whether it is open in the current connection.
    open: bool,
    /// Whether the server has sent something on this flow, so it knows the flow.
    established: bool,
    /// To be opened although there is nothing to send, because the server may have messages.
    wanted: bool,
    folded: bool,
    failures: u8,
}

#[derive(Debug)]
pub(super) struct StreamMap {
    streams: Vec<DataStream>,
    strategy: Streams,
    persistent: bool,
    expiry_s: u32,
    /// Topics and filters that have their own stream, as far as there are enough.
    owners: HashMap<Box<str>, usize>,
    /// Publications in flight on the control flow that belonged to a data stream: until they are acknowledged
    /// no publication on a data stream may overtake them.
    held_up: usize,
}

/// A subscription that the server has accepted.
#[derive(Clone, Debug)]
pub(super) struct Accepted {
    pub(super) filter: String,
    pub(super) options: SubscribeOptions,
    pub(super) flow: usize,
    /// The server delivers on another flow than wanted: the client subscribes again.
    moved: bool,
}

impl Accepted {
    pub(super) fn new(filter: String, options: SubscribeOptions, flow: usize) -> Accepted {
        Accepted { filter, options, flow, moved: false }
    }
}

impl StreamMap {
    pub(super) fn new(options: &Options) -> StreamMap {
        let most = match options.streams {
            Streams::Single => 0,
            _ => usize::from(options.max_data_streams),
        };
        StreamMap {
            streams: vec![DataStream::default(); most],
            strategy: options.streams,
            persistent: options.persistent_flows,
            expiry_s: options.session_expiry_s.max(LEAST_FLOW_EXPIRY_S),
            owners: HashMap::new(),
            held_up: 0,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.streams.len()
    }

    /// The flow of a message.
    pub(super) fn of_message(&mut self, message: &Message) -> usize {
        let spread = matches!(self.strategy, Streams::PerTopic | Streams::PerTopicAndSubscription);
        if spread { self.place(&message.topic, message.qos) } else { CONTROL }
    }

    /// The flow of a request, which all its filters share.
    pub(super) fn of_ask(&mut self, ask: &Ask, kept: &[Accepted]) -> usize {
        match ask {
            Ask::Subscribe(filters) => {
                let one = matches!(
                    self.strategy,
                    Streams::PerSubscription | Streams::PerTopicAndSubscription
                );
                let qos = filters.iter().map(|(_, options)| options.qos).max().unwrap_or_default();
                match filters.first().filter(|_| one) {
                    Some((filter, _)) => self.place(filter, qos),
                    None => CONTROL,
                }
            }
            // The flow of the subscription.
            Ask::Unsubscribe(filters) => {
                let known = kept.iter().find(|kept| filters.contains(&kept.filter));
                known.map_or(CONTROL, |kept| kept.flow)
            }
        }
    }

    /// The first names get a stream of their own. Later names share one, chosen by hash, so that a name
    /// keeps its stream and its messages their order.
    fn place(&mut self, name: &str, qos: QoS) -> usize {
        if self.streams.is_empty() || (qos == QoS::ExactlyOnce && !self.persistent) {
            return CONTROL;
        }
        let stream = match self.owners.get(name) {
            Some(stream) => *stream,
            None if self.owners.len() < self.streams.len() => {
                let stream = self.owners.len();
                self.owners.insert(name.into(), stream);
                stream
            }
            None => hash(name) % self.streams.len(),
        };
        if self.streams[stream].folded { CONTROL } else { stream + 1 }
    }

    pub(super) fn is_open(&self, flow: usize) -> bool {
        flow == CONTROL || self.streams[flow - 1].open
    }

    /// Whether publications of a flow may be sent.
    pub(super) fn may_publish(&self, flow: usize) -> bool {
        flow == CONTROL || self.held_up == 0
    }

    pub(super) fn any_open(&self) -> bool {
        self.streams.iter().any(|stream| stream.open)
    }

    /// A publication of the control flow is acknowledged.
    pub(super) fn control_published(&mut self) {
        self.held_up = self.held_up.saturating_sub(1);
    }

    /// The server has sent something on this flow.
    pub(super) fn heard(&mut self, flow: usize) {
        if flow != CONTROL {
            let stream = &mut self.streams[flow - 1];
            stream.established = self.persistent;
            stream.failures = 0;
        }
    }

    /// The connection was lost.
    pub(super) fn down(&mut self) {
        for stream in &mut self.streams {
            (stream.open, stream.failures) = (false, 0);
        }
    }

    fn header(&self, flow: usize) -> Option<FlowHeader> {
        if !self.persistent {
            return None;
        }
        let known =
            if self.streams[flow - 1].established { FlowFlags::ABORT_IF_NO_STATE } else { 0 };
        let kept = FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS;
        let flags = FlowFlags(kept | known);
        // A client's flows have even identifiers (draft section 9.5).
        let (id, expiry_s) = (flow as u64 * 2, u64::from(self.expiry_s));
        Some(FlowHeader::ClientData(DataFlow { id, expiry_s, flags }))
    }
}

/// FNV-1a: the same in every process, so that a resumed session finds its topics on the same flows.
fn hash(name: &str) -> usize {
    let start = 0xCBF2_9CE4_8422_2325_u64;
    let mixed = name
        .bytes()
        .fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    (mixed >> 32) as usize
}

impl<P, R> Machine<P, R> {
    /// The next flow that wants a stream of its own.
    pub(crate) fn stream_wanted(&self) -> Option<usize> {
        if self.phase != Phase::Up || self.finishing {
            return None;
        }
        let streams = self.stream_map.streams.iter().zip(&self.flows[1..]);
        let wants = |(stream, flow): (&DataStream, &Flow<P, R>)| {
            !stream.open && !stream.folded && (stream.wanted || !flow.is_idle())
        };
        streams.into_iter().position(wants).map(|stream| stream + 1)
    }

    /// Data streams that are open.
    pub(crate) fn open_streams(&self) -> usize {
        self.stream_map.streams.iter().filter(|stream| stream.open).count()
    }

    /// A flow's stream was opened.
    pub(crate) fn stream_opened(&mut self, flow: usize) {
        if let Some(header) = self.stream_map.header(flow) {
            fulmar_mqtt::flow::encode(&header, &mut self.flows[flow].out);
        }
        let stream = &mut self.stream_map.streams[flow - 1];
        (stream.open, stream.wanted) = (true, false);
        self.flows[flow].resume();
        self.pump();
    }

    /// A data stream was lost while its connection continues.
    pub(crate) fn stream_lost(&mut self, flow: usize, loss: StreamLoss) {
        let no_state = loss == StreamLoss::Reset(StreamError::NoFlowState as u64);
        tracing::debug!(flow, ?loss, "data stream lost");
        self.flow_down(flow);
        let stream = &mut self.stream_map.streams[flow - 1];
        stream.open = false;
        stream.failures += 1;
        let hopeless = loss == StreamLoss::NotOpened || stream.failures >= MAX_FAILURES;
        // A server that resets a stream before it has sent anything on it does not support data streams.
        let refused = matches!(loss, StreamLoss::Reset(_)) && !stream.established && !no_state;
        if hopeless || (refused && self.stream_map.persistent) {
            tracing::info!(
                flow,
                ?loss,
                "the server refused this data stream; continuing without it"
            );
            self.fold(flow);
            self.restore_moved();
        } else if no_state || !self.stream_map.persistent {
            self.forget_flow(flow);
        } else {
            stream.wanted = true;
        }
        self.pump();
    }

    /// A flow has lost its stream; the machine's own requests on it are to be sent again.
    pub(super) fn flow_down(&mut self, flow: usize) {
        for ask in self.flows[flow].down() {
            let Ask::Subscribe(filters) = ask else { continue };
            let asked =
                |kept: &&mut Accepted| filters.iter().any(|(filter, _)| *filter == kept.filter);
            self.subscriptions.iter_mut().filter(asked).for_each(|kept| kept.moved = true);
        }
    }

    /// The server has lost a data stream's flow.
    fn forget_flow(&mut self, flow: usize) {
        self.stream_map.streams[flow - 1].established = false;
        let doubtful = self.flows[flow].forgotten(&mut self.desk);
        self.doubt(doubtful);
        self.subscriptions.iter_mut().filter(|kept| kept.flow == flow).for_each(|k| k.moved = true);
        self.restore_moved();
    }

    /// Reports that this many QoS 2 publications may arrive twice.
    pub(super) fn doubt(&mut self, messages: usize) {
        if messages > 0 {
            self.desk.outcomes.push_back(Outcome::MayRepeat { messages });
        }
    }

    /// A connection is about to begin, with data streams or without.
    pub(super) fn prepare_streams(&mut self, streams: bool) {
        self.stream_map.held_up = 0;
        if streams {
            return self.unfold();
        }
        for flow in 1..self.flows.len() {
            if !self.stream_map.streams[flow - 1].folded {
                // Without data streams, the server moves their messages to the control flow.
                self.flows[flow].inbound = Inbound::new();
                self.fold(flow);
            }
        }
    }

    /// Moves a data stream's state to the control flow.
    fn fold(&mut self, flow: usize) {
        let doubtful = self.flows[flow].send_as_new(&mut self.desk);
        self.doubt(doubtful);
        let stream = &mut self.stream_map.streams[flow - 1];
        (stream.folded, stream.established, stream.wanted) = (true, false, false);
        for kept in self.subscriptions.iter_mut().filter(|kept| kept.flow == flow) {
            (kept.flow, kept.moved) = (CONTROL, true);
        }
        let queue = std::mem::take(&mut self.flows[flow].queue);
        let waiting = std::mem::take(&mut self.flows[flow].waiting);
        self.flows[CONTROL].queue.extend(queue);
        self.flows[CONTROL].waiting.extend(waiting);
    }

    /// Data streams are possible again: queued messages go back to theirs.
    fn unfold(&mut self) {
        if self.stream_map.streams.iter().all(|stream| !stream.folded) {
            return;
        }
        self.stream_map.streams.iter_mut().for_each(|stream| stream.folded = false);
        self.stream_map.held_up = self.flows[CONTROL].outbound.in_flight();
        for pending in std::mem::take(&mut self.flows[CONTROL].queue) {
            let flow = self.stream_map.of_message(&pending.message);
            self.flows[flow].queue.push_back(pending);
        }
    }

    /// CONNACK has arrived: brings the data streams into the state that the server has.
    pub(super) fn streams_up(&mut self, session_present: bool, first: bool) {
        for flow in 1..self.flows.len() {
            let kept_by_server = session_present && self.stream_map.persistent;
            let idle = self.flows[flow].is_idle();
            let stream = &mut self.stream_map.streams[flow - 1];
            if stream.folded {
                continue;
            }
            if kept_by_server {
                // An earlier process may have left something in any flow.
                stream.wanted = first || stream.established || !idle;
                continue;
            }
            (stream.established, stream.wanted) = (false, false);
            let doubtful = self.flows[flow].forgotten(&mut self.desk);
            self.doubt(doubtful);
            // A plain stream's subscriptions went with it, or to the control flow.
            let of_this = self.subscriptions.iter_mut().filter(|kept| kept.flow == flow);
            of_this.for_each(|kept| kept.moved = true);
        }
        if session_present {
            self.restore_moved();
        } else {
            self.restore_all();
        }
    }

    /// Subscribes again where the server delivers on another flow or not at all; asks for retained messages again
    /// only where the server had lost the subscription.
    fn restore_moved(&mut self) {
        let moved = self.subscriptions.iter_mut().filter(|kept| kept.moved);
        let mut again: Vec<_> = moved
            .map(|kept| {
                kept.moved = false;
                kept.clone()
            })
            .collect();
        for kept in &mut again {
            if kept.options.retain_handling == RetainHandling::Always {
                kept.options.retain_handling = RetainHandling::IfNew;
            }
        }
        self.restore(&again);
    }

    /// The server has lost the session: all subscriptions are made again.
    fn restore_all(&mut self) {
        self.subscriptions.iter_mut().for_each(|kept| kept.moved = false);
        self.restore(&self.subscriptions.clone());
    }

    fn restore(&mut self, kept: &[Accepted]) {
        for (index, flow) in self.flows.iter_mut().enumerate() {
            let filters = kept.iter().filter(|kept| kept.flow == index);
            let filters: Vec<_> = filters.map(|kept| (kept.filter.clone(), kept.options)).collect();
            for filters in filters.chunks(FILTERS_PER_PACKET).rev() {
                let ask = Ask::Subscribe(filters.to_vec());
                flow.waiting.push_front(Request { ask, token: None });
            }
        }
    }
}

//! Data streams of a session: which topics and filters go on which, and what becomes of a flow when
//! its stream, its connection or the server's memory of it is lost.
//!
//! A lane is a place for one data stream; lane `i` carries flow `i + 1`, flow 0 is the control flow.
//! A lane's stream is plain (no header, as EMQX has it: the server forgets its QoS state and
//! subscriptions with the stream) or persistent (a header of the MQTT-next draft names the flow, and
//! both ends keep its state). QoS 2 is carried by persistent lanes only: on a plain one it could
//! arrive twice.
//!
//! A lane is folded where there can be no data streams (TCP) or the server does not take this one:
//! what is in it goes to the control flow.

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

/// A lane that lost so many streams of one connection is folded for the rest of it.
const MAX_FAILURES: u8 = 3;

/// Seconds a persistent flow outlives its stream at least: longer than any attempt to connect.
const LEAST_FLOW_EXPIRY_S: u32 = 60;

/// The control flow's index.
pub(crate) const CONTROL: usize = 0;

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
struct Lane {
    /// A stream carries it.
    open: bool,
    /// The server has answered on this flow, so it knows it.
    established: bool,
    /// To be opened although there is nothing to send: the server may have something.
    wanted: bool,
    folded: bool,
    failures: u8,
}

#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    strategy: Streams,
    persistent: bool,
    expiry_s: u32,
    /// Topics and filters that have a lane to themselves as far as the lanes suffice.
    owners: HashMap<Box<str>, usize>,
    /// Publications in flight on the control flow that were a lane's: until they are acknowledged
    /// nothing of the lanes may overtake them.
    held_up: usize,
}

/// A subscription the server has accepted.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) filter: String,
    pub(super) options: SubscribeOptions,
    pub(super) flow: usize,
    /// Where the server delivers is not where it is wanted any more: to be made again.
    moved: bool,
}

impl Kept {
    pub(super) fn new(filter: String, options: SubscribeOptions, flow: usize) -> Kept {
        Kept { filter, options, flow, moved: false }
    }
}

impl Lanes {
    pub(super) fn new(options: &Options) -> Lanes {
        let most = match options.streams {
            Streams::Single => 0,
            _ => usize::from(options.max_data_streams),
        };
        Lanes {
            lanes: vec![Lane::default(); most],
            strategy: options.streams,
            persistent: options.persistent_flows,
            expiry_s: options.session_expiry_s.max(LEAST_FLOW_EXPIRY_S),
            owners: HashMap::new(),
            held_up: 0,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// The flow of a message.
    pub(super) fn of_message(&mut self, message: &Message) -> usize {
        let spread = matches!(self.strategy, Streams::PerTopic | Streams::PerTopicAndSubscription);
        if spread { self.place(&message.topic, message.qos) } else { CONTROL }
    }

    /// The flow of a request; all filters of one request share it.
    pub(super) fn of_ask(&mut self, ask: &Ask, kept: &[Kept]) -> usize {
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
            // Where the subscription is.
            Ask::Unsubscribe(filters) => {
                let known = kept.iter().find(|kept| filters.contains(&kept.filter));
                known.map_or(CONTROL, |kept| kept.flow)
            }
        }
    }

    /// The first names get a lane of their own, later ones share: by their hash, so that a name
    /// stays where it is and its messages in order.
    fn place(&mut self, name: &str, qos: QoS) -> usize {
        if self.lanes.is_empty() || (qos == QoS::ExactlyOnce && !self.persistent) {
            return CONTROL;
        }
        let lane = match self.owners.get(name) {
            Some(lane) => *lane,
            None if self.owners.len() < self.lanes.len() => {
                let lane = self.owners.len();
                self.owners.insert(name.into(), lane);
                lane
            }
            None => hash(name) % self.lanes.len(),
        };
        if self.lanes[lane].folded { CONTROL } else { lane + 1 }
    }

    pub(super) fn is_open(&self, flow: usize) -> bool {
        flow == CONTROL || self.lanes[flow - 1].open
    }

    /// Whether publications of a flow may go out.
    pub(super) fn may_publish(&self, flow: usize) -> bool {
        flow == CONTROL || self.held_up == 0
    }

    pub(super) fn any_open(&self) -> bool {
        self.lanes.iter().any(|lane| lane.open)
    }

    /// A publication of the control flow is over.
    pub(super) fn control_published(&mut self) {
        self.held_up = self.held_up.saturating_sub(1);
    }

    /// The server has sent something on this flow.
    pub(super) fn heard(&mut self, flow: usize) {
        if flow != CONTROL {
            let lane = &mut self.lanes[flow - 1];
            lane.established = self.persistent;
            lane.failures = 0;
        }
    }

    /// The connection is gone.
    pub(super) fn down(&mut self) {
        for lane in &mut self.lanes {
            (lane.open, lane.failures) = (false, 0);
        }
    }

    fn header(&self, flow: usize) -> Option<FlowHeader> {
        if !self.persistent {
            return None;
        }
        let known = if self.lanes[flow - 1].established { FlowFlags::ABORT_IF_NO_STATE } else { 0 };
        let kept = FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS;
        let flags = FlowFlags(kept | known);
        // A client's flows have even identifiers (draft section 9.5).
        let (id, expiry_s) = (flow as u64 * 2, u64::from(self.expiry_s));
        Some(FlowHeader::ClientData(DataFlow { id, expiry_s, flags }))
    }
}

/// FNV-1a: the same in every process, so that a resumed session finds its topics where they were.
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
        let lanes = self.lanes.lanes.iter().zip(&self.flows[1..]);
        let wants = |(lane, flow): (&Lane, &Flow<P, R>)| {
            !lane.open && !lane.folded && (lane.wanted || !flow.is_idle())
        };
        lanes.into_iter().position(wants).map(|lane| lane + 1)
    }

    /// Data streams that are open.
    pub(crate) fn open_streams(&self) -> usize {
        self.lanes.lanes.iter().filter(|lane| lane.open).count()
    }

    /// A flow has its stream.
    pub(crate) fn stream_opened(&mut self, flow: usize) {
        if let Some(header) = self.lanes.header(flow) {
            fulmar_mqtt::flow::encode(&header, &mut self.flows[flow].out);
        }
        let lane = &mut self.lanes.lanes[flow - 1];
        (lane.open, lane.wanted) = (true, false);
        self.flows[flow].resume();
        self.pump();
    }

    /// A data stream is gone while its connection lives.
    pub(crate) fn stream_lost(&mut self, flow: usize, loss: StreamLoss) {
        let no_state = loss == StreamLoss::Reset(StreamError::NoFlowState as u64);
        tracing::debug!(flow, ?loss, "data stream lost");
        self.flow_down(flow);
        let lane = &mut self.lanes.lanes[flow - 1];
        lane.open = false;
        lane.failures += 1;
        let hopeless = loss == StreamLoss::NotOpened || lane.failures >= MAX_FAILURES;
        // Before it has said anything on it, a server that resets a stream does not know such.
        let refused = matches!(loss, StreamLoss::Reset(_)) && !lane.established && !no_state;
        if hopeless || (refused && self.lanes.persistent) {
            tracing::info!(
                flow,
                ?loss,
                "the server refused this data stream; continuing without it"
            );
            self.fold(flow);
            self.restore_moved();
        } else if no_state || !self.lanes.persistent {
            self.forget_flow(flow);
        } else {
            lane.wanted = true;
        }
        self.pump();
    }

    /// A flow has lost its stream; what the machine itself had asked there is to be asked again.
    pub(super) fn flow_down(&mut self, flow: usize) {
        for ask in self.flows[flow].down() {
            let Ask::Subscribe(filters) = ask else { continue };
            let asked = |kept: &&mut Kept| filters.iter().any(|(filter, _)| *filter == kept.filter);
            self.subscriptions.iter_mut().filter(asked).for_each(|kept| kept.moved = true);
        }
    }

    /// The server has lost a lane's flow.
    fn forget_flow(&mut self, flow: usize) {
        self.lanes.lanes[flow - 1].established = false;
        let doubtful = self.flows[flow].forgotten(&mut self.desk);
        self.doubt(doubtful);
        self.subscriptions.iter_mut().filter(|kept| kept.flow == flow).for_each(|k| k.moved = true);
        self.restore_moved();
    }

    /// So many QoS 2 publications may arrive twice.
    pub(super) fn doubt(&mut self, messages: usize) {
        if messages > 0 {
            self.desk.outcomes.push_back(Outcome::MayRepeat { messages });
        }
    }

    /// A connection is about to begin that has data streams or has none.
    pub(super) fn prepare_lanes(&mut self, streams: bool) {
        self.lanes.held_up = 0;
        if streams {
            return self.unfold();
        }
        for flow in 1..self.flows.len() {
            if !self.lanes.lanes[flow - 1].folded {
                // Without data streams the server moves what they were owed to the control flow.
                self.flows[flow].inbound = Inbound::new();
                self.fold(flow);
            }
        }
    }

    /// Moves a lane's state to the control flow.
    fn fold(&mut self, flow: usize) {
        let doubtful = self.flows[flow].send_as_new(&mut self.desk);
        self.doubt(doubtful);
        let lane = &mut self.lanes.lanes[flow - 1];
        (lane.folded, lane.established, lane.wanted) = (true, false, false);
        for kept in self.subscriptions.iter_mut().filter(|kept| kept.flow == flow) {
            (kept.flow, kept.moved) = (CONTROL, true);
        }
        let queue = std::mem::take(&mut self.flows[flow].queue);
        let waiting = std::mem::take(&mut self.flows[flow].waiting);
        self.flows[CONTROL].queue.extend(queue);
        self.flows[CONTROL].waiting.extend(waiting);
    }

    /// Data streams are possible again: what is still queued goes back to its lane.
    fn unfold(&mut self) {
        if self.lanes.lanes.iter().all(|lane| !lane.folded) {
            return;
        }
        self.lanes.lanes.iter_mut().for_each(|lane| lane.folded = false);
        self.lanes.held_up = self.flows[CONTROL].outbound.in_flight();
        for pending in std::mem::take(&mut self.flows[CONTROL].queue) {
            let flow = self.lanes.of_message(&pending.message);
            self.flows[flow].queue.push_back(pending);
        }
    }

    /// CONNACK has come; puts the lanes into the state the server is in.
    pub(super) fn lanes_up(&mut self, session_present: bool, first: bool) {
        for flow in 1..self.flows.len() {
            let kept_by_server = session_present && self.lanes.persistent;
            let idle = self.flows[flow].is_idle();
            let lane = &mut self.lanes.lanes[flow - 1];
            if lane.folded {
                continue;
            }
            if kept_by_server {
                // A process before this one may have left something in any flow.
                lane.wanted = first || lane.established || !idle;
                continue;
            }
            (lane.established, lane.wanted) = (false, false);
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

    /// Subscribes again where the server delivers elsewhere or not at all, without asking again for
    /// retained messages where it had not forgotten the subscription.
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

    fn restore(&mut self, kept: &[Kept]) {
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

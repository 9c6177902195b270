//! The client's side for one server: requests with bodies of any size, and observations that are renewed
//! (RFC 7252 section 5, RFC 7641 section 3, RFC 7959 section 2).

mod work;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coap_lite::{CoapOption, Packet};

use crate::block::MAX_SZX;
use crate::channel::{Channel, Received, Timing};
use crate::message::{self, Kind, Method, code};
use crate::response::Response;
use work::{Next, PendingCall, Role};

fulmar_text::with_defaults! {
    /// Bounds of a [`Client`], and its timing.
    #[derive(Clone, Copy, Debug)]
    pub struct ClientLimits {
        /// Transmission parameters.
        pub timing: Timing = Timing::default(),
        /// The largest body that is accepted, in bytes.
        pub max_body_bytes: usize = 16 << 20,
        /// Time limit for a response to a request that the server has acknowledged.
        pub response_timeout: Duration = Duration::from_secs(60),
        /// The largest blocks: 2^(szx + 4) bytes, at most [`MAX_SZX`].
        pub max_szx: u8 = MAX_SZX,
    }
}

/// A request to be made.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// Segments of the path, each at most 255 bytes (RFC 7252 section 5.10.1).
    pub path: Vec<String>,
    /// Arguments of the query.
    pub queries: Vec<String>,
    /// The payload's Content-Format.
    pub content_format: Option<u16>,
    /// The body.
    pub payload: Bytes,
    /// Whether to observe the resource; for GET.
    pub observe: bool,
    /// Whether it is sent again until it is acknowledged. Bodies of several blocks always are.
    pub confirmable: bool,
}

impl Call {
    /// A confirmable request without a body.
    #[must_use]
    pub fn new(method: Method, path: Vec<String>) -> Call {
        Call {
            method,
            path,
            queries: Vec::new(),
            content_format: None,
            payload: Bytes::new(),
            observe: false,
            confirmable: true,
        }
    }
}

/// Identifies a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(u64);

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The server has not answered.
    #[error("the server does not answer")]
    Timeout,
    /// The server has rejected the message.
    #[error("the server refused the message (reset)")]
    Reset,
    /// The body is larger than [`ClientLimits::max_body_bytes`].
    #[error("the answer is too large")]
    TooLarge,
    /// The blocks did not match.
    #[error("the server's blocks do not fit together")]
    Blocks,
}

/// The results of requests.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// The response. If `observing`, notifications follow until [`ClientEvent::Failed`] or a response that
    /// is not.
    Response {
        /// The request.
        id: CallId,
        /// The response.
        response: Response,
        /// Whether the server granted the observation.
        observing: bool,
    },
    /// An observed resource has changed.
    Notification {
        /// The observation.
        id: CallId,
        /// State of the resource: the server's response.
        response: Response,
    },
    /// There is no response, or an observation has ended.
    Failed {
        /// The request or observation.
        id: CallId,
        /// Why.
        failure: Failure,
    },
}

/// Sends requests to one server.
#[derive(Debug)]
pub struct Client {
    limits: ClientLimits,
    channel: Channel,
    random: fastrand::Rng,
    works: BTreeMap<u64, PendingCall>,
    next_id: u64,
    out: Vec<Vec<u8>>,
    events: VecDeque<ClientEvent>,
}

impl Client {
    /// A client without requests. `seed` is for tokens and message IDs and must be random.
    #[must_use]
    pub fn new(limits: ClientLimits, seed: u64) -> Client {
        let mut random = fastrand::Rng::with_seed(seed);
        let channel = Channel::new(limits.timing, random.u64(..));
        let limits = ClientLimits { max_szx: limits.max_szx.min(MAX_SZX), ..limits };
        let (works, out, events) = (BTreeMap::new(), Vec::new(), VecDeque::new());
        Client { limits, channel, random, works, next_id: 0, out, events }
    }

    /// Sends a request, after earlier ones.
    pub fn call(&mut self, now: Instant, call: Call) -> CallId {
        self.next_id += 1;
        let id = self.next_id;
        let [token, follow] = [self.token(), self.token()];
        self.works.insert(id, PendingCall::new(call, token, follow, self.limits.max_szx));
        self.go_on(now, id, Next::Ask);
        CallId(id)
    }

    /// Ends an observation, or drops a request.
    pub fn cancel(&mut self, id: CallId) {
        let Some(work) = self.works.remove(&id.0) else { return };
        self.channel.forget(id.0);
        if work.is_observing() {
            self.channel.non_confirmable(id.0, work.deregistration(), &mut self.out);
        }
    }

    /// Handles a datagram from the server.
    pub fn receive(&mut self, now: Instant, datagram: &[u8]) {
        let Some(packet) = message::read(datagram) else {
            return self.out.extend(message::refusal(datagram));
        };
        let (kind, id) = (message::kind_of(&packet), packet.header.message_id);
        match self.channel.receive(now, &packet) {
            Received::Repeated(answer) if kind == Kind::Confirmable => self.out.extend(answer),
            Received::Repeated(_) | Received::Nothing => {}
            Received::Refused(tag) => self.fail(tag, Failure::Reset),
            Received::Acknowledged(tag) => {
                let timeout = self.limits.response_timeout;
                match self.works.get_mut(&tag) {
                    Some(work) if message::code_of(&packet) == code::EMPTY => {
                        work.answer_by = Some(now + timeout);
                    }
                    _ => {
                        self.answer(now, &packet);
                    }
                }
            }
            Received::New => {
                let known = message::code_of(&packet) >> 5 >= 2 && self.answer(now, &packet);
                if kind == Kind::Confirmable {
                    let kind = if known { Kind::Acknowledgement } else { Kind::Reset };
                    let answer = message::bare(kind, id);
                    self.channel.answered(id, &answer);
                    // Before the datagrams that the answer causes, so that the server does not repeat it.
                    self.out.insert(0, answer);
                } else if !known {
                    self.out.push(message::bare(Kind::Reset, id));
                }
            }
        }
        self.channel.launch(now, &mut self.out);
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        (!self.out.is_empty()).then(|| self.out.remove(0))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// When [`Client::on_deadline`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let works = self.works.values().filter_map(PendingCall::deadline);
        works.chain(self.channel.deadline()).min()
    }

    /// Handles the deadlines at `now`.
    pub fn on_deadline(&mut self, now: Instant) {
        if let Some(tag) = self.channel.on_deadline(now, &mut self.out) {
            self.fail(tag, Failure::Timeout);
        }
        let due = |work: &PendingCall| work.deadline().is_some_and(|at| at <= now);
        let due: Vec<u64> =
            self.works.iter().filter(|(_, work)| due(work)).map(|(id, _)| *id).collect();
        for id in due {
            match self.works.get_mut(&id).map(|work| work.answer_by.is_some_and(|at| at <= now)) {
                Some(true) => self.fail(id, Failure::Timeout),
                // The server may have lost the observation (RFC 7641 section 3.3.1).
                Some(false) => self.go_on(now, id, Next::Ask),
                None => {}
            }
        }
        self.channel.launch(now, &mut self.out);
    }

    /// Handles a response; returns whether a request waited for it.
    fn answer(&mut self, now: Instant, packet: &Packet) -> bool {
        let token = packet.get_token();
        let found = self.works.iter_mut().find_map(|(id, w)| w.role(token).map(|r| (*id, w, r)));
        let Some((id, work, role)) = found else { return false };
        if work.awaits(role) {
            // The acknowledgement may have been lost (RFC 7252 section 5.2.2).
            self.channel.forget(id);
            work.answer_by = None;
        }
        let jitter = Duration::from_millis(self.random.u64(5_000..15_000));
        let next = work.receive(now, packet, role, &self.limits, jitter);
        self.go_on(now, id, next);
        true
    }

    fn go_on(&mut self, now: Instant, id: u64, next: Next) {
        let Some(work) = self.works.get_mut(&id) else { return };
        let id_of = CallId(id);
        match next {
            Next::Nothing => {}
            Next::Ask | Next::Follow => {
                let role = if matches!(next, Next::Follow) { Role::Follow } else { Role::Main };
                let packet = work.request(role);
                if work.is_confirmable() {
                    work.answer_by = None;
                    self.channel.confirmable(now, id, packet, &mut self.out);
                } else {
                    work.answer_by = Some(now + self.limits.response_timeout);
                    self.channel.non_confirmable(id, packet, &mut self.out);
                }
            }
            Next::Done { response, observing, first } => {
                if !observing {
                    self.works.remove(&id);
                }
                self.events.push_back(if first || !observing {
                    ClientEvent::Response { id: id_of, response, observing }
                } else {
                    ClientEvent::Notification { id: id_of, response }
                });
            }
            Next::Fail(failure) => self.fail(id, failure),
        }
    }

    fn fail(&mut self, id: u64, failure: Failure) {
        if self.works.remove(&id).is_some() {
            self.channel.forget(id);
            self.events.push_back(ClientEvent::Failed { id: CallId(id), failure });
        }
    }

    /// 64 random bits, so that an attacker who is not on the path cannot forge the server's answer (RFC 7252 section
    /// 5.3.1).
    fn token(&mut self) -> Vec<u8> {
        self.random.u64(..).to_be_bytes().to_vec()
    }
}

/// The Max-Age of a response, in seconds; 60 if it has none (RFC 7252 section 5.10.5).
fn max_age(packet: &Packet) -> u32 {
    message::number(packet, CoapOption::MaxAge).unwrap_or(60)
}

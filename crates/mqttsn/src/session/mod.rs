//! One device's session (section 6): connected, asleep or awake, with the messages in flight in both directions.
//!
//! `connect` begins it and changes its will, `up` handles messages and requests from the device, `down` messages to it.
//! `server` identifies devices and bounds their number.

mod connect;
mod down;
mod up;

use std::fmt;
use std::time::{Duration, Instant};

use fulmar_mqtt::{PacketId, ReasonCode};

pub(crate) use self::connect::{Again, Hello};
use self::connect::{AskedWill, Purpose};
use self::down::Down;
use self::up::Up;
use crate::message::{Message, ReturnCode};
use crate::request::{BrokerEvent, Request, Will};
use crate::settings::Settings;
use crate::statistics::Statistics;
use crate::topics::Topics;

/// A session's inputs, and where it puts its results.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) settings: &'a Settings,
    pub(crate) rng: &'a mut fastrand::Rng,
    pub(crate) statistics: &'a mut Statistics,
    /// Approximate bytes of one datagram that may be sent to the device now.
    pub(crate) room: usize,
    /// Datagrams for the device.
    pub(crate) datagrams: Vec<Vec<u8>>,
    /// Requests to the broker.
    pub(crate) requests: Vec<Request>,
}

impl Context<'_> {
    /// Sends a message; `false` if no datagram can hold it.
    pub(crate) fn send(&mut self, message: &Message<'_>) -> bool {
        let datagram = message.encode();
        let fits = datagram.is_some();
        self.datagrams.extend(datagram);
        fits
    }

    pub(crate) fn push_request(&mut self, request: Request) {
        self.requests.push(request);
    }
}

/// Why a session has ended here. The broker may keep it until the device returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The device has disconnected.
    Disconnected,
    /// Another device has its address.
    Replaced,
    /// Nothing was received from it for longer than its keep alive or sleep allows.
    Silent,
    /// It did not answer.
    Unanswered,
    /// The will is invalid.
    Will,
    /// It was removed to make room for another.
    Evicted,
    /// The broker refused it, or ended the connection.
    Broker(ReasonCode),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Disconnected => "it disconnected",
            End::Replaced => "another client uses its address",
            End::Silent => "it was silent for too long",
            End::Unanswered => "it does not answer",
            End::Will => "its will is invalid",
            End::Evicted => "closed to make room for another client",
            End::Broker(reason) => reason.text(),
        })
    }
}

/// When a message is sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    sent: u32,
    at: Instant,
}

impl Retry {
    /// For a message that is first sent now.
    pub(crate) fn start(cx: &Context<'_>) -> Retry {
        Retry { sent: 1, at: cx.now + cx.settings.retry }
    }

    /// The message cannot be sent now, which does not count as an attempt.
    fn postpone(&mut self, cx: &Context<'_>) {
        self.at = cx.now + cx.settings.retry;
    }

    /// It is due: counts the attempt, and returns whether it may be sent again. Each wait is twice as long as the last.
    fn again(&mut self, cx: &Context<'_>) -> bool {
        if self.sent > cx.settings.retries {
            return false;
        }
        self.at = cx.now + cx.settings.retry * (1 << self.sent.min(8));
        self.sent += 1;
        true
    }
}

/// A session's state.
enum Stage {
    /// The will was requested from the device.
    Asking(AskedWill),
    /// The broker opens the connection, or a new one.
    Opening(Purpose),
    Active,
    /// Nothing may be sent to the device.
    Asleep,
    /// The device gets waiting messages, then sleeps again.
    Awake(Probe),
}

/// Whether the broker has more messages for a device that is awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    /// The broker is to be asked.
    Due,
    Asked,
    /// The broker has sent all messages.
    Done,
}

/// A device's session.
pub(crate) struct Session {
    hello: Hello,
    stage: Stage,
    will: Option<Will>,
    /// Duration of the device's sleep, as it has stated.
    sleep: Duration,
    heard_at: Instant,
    /// Only CONNECT was received.
    fresh: bool,
    topics: Topics,
    up: Up,
    down: Down,
    ended: Option<End>,
}

impl Session {
    pub(crate) fn client_id(&self) -> &str {
        &self.hello.client_id
    }

    /// Why it has ended, once it has.
    pub(crate) fn ended(&self) -> Option<End> {
        self.ended
    }

    /// It has answered a message that only its address received.
    pub(crate) fn is_proven(&self) -> bool {
        self.down.proven
    }

    /// It has sent only CONNECT, and its address may be forged.
    pub(crate) fn may_be_nobody(&self, now: Instant, after: Duration) -> bool {
        self.fresh && !self.down.proven && now.saturating_duration_since(self.heard_at) >= after
    }

    /// When [`Session::on_deadline`] is due.
    pub(crate) fn deadline(&self, settings: &Settings) -> Option<Instant> {
        let silent = || self.heard_at + self.patience(settings);
        match &self.stage {
            Stage::Asking(asked) => Some(asked.retry.at),
            Stage::Opening(_) => None,
            Stage::Asleep => Some(silent()),
            Stage::Active | Stage::Awake(_) => {
                self.down.deadline().into_iter().chain([silent()]).min()
            }
        }
    }

    /// Longest silence of the device (sections 6.13 and 6.14): 1.5 times the duration that it has stated.
    fn patience(&self, settings: &Settings) -> Duration {
        let said = match self.stage {
            Stage::Asleep | Stage::Awake(_) => self.sleep,
            _ => self.hello.keep_alive,
        };
        if said.is_zero() { settings.max_silence } else { said + said / 2 }
    }

    /// Handles deadlines.
    pub(crate) fn on_deadline(&mut self, cx: &mut Context<'_>) {
        if self.deadline(cx.settings).is_none_or(|at| at > cx.now) {
            return;
        }
        if let Stage::Asking(asked) = &mut self.stage {
            match asked.retry.again(cx) {
                true => asked.request_will(cx),
                false => self.lose(cx, End::Unanswered),
            }
            return;
        }
        if self.heard_at + self.patience(cx.settings) <= cx.now {
            return self.lose(cx, End::Silent);
        }
        if self.down.on_deadline(cx) {
            return;
        }
        match self.stage {
            // It may have fallen asleep before PINGRESP arrived. It sends PINGREQ again.
            Stage::Awake(_) => self.fall_asleep(),
            _ => self.lose(cx, End::Unanswered),
        }
    }

    /// The device is lost: its will is published (section 6.13).
    pub(crate) fn lose(&mut self, cx: &mut Context<'_>, why: End) {
        cx.push_request(Request::Close { will: true, forget: self.hello.clean });
        // If the device is there after all, it learns that it has to connect.
        cx.send(&Message::Disconnect { duration_s: None });
        self.ended = Some(why);
    }

    /// Handles a message from the device. `server` handles CONNECT, because it knows the other devices.
    pub(crate) fn receive(&mut self, cx: &mut Context<'_>, message: &Message<'_>) {
        self.heard_at = cx.now;
        self.fresh = false;
        match *message {
            Message::WillTopic(topic) => return self.will_topic(cx, topic),
            Message::WillMsg(payload) => return self.will_message(cx, payload),
            Message::Disconnect { duration_s } => return self.disconnect(cx, duration_s),
            _ => {}
        }
        if matches!(self.stage, Stage::Asking(_) | Stage::Opening(_)) {
            // The device repeats important messages when it knows that it is connected.
            cx.statistics.ignored += 1;
            return;
        }
        let topics = &mut self.topics;
        match *message {
            Message::Register { msg_id, topic, .. } => Up::register(cx, topics, msg_id, topic),
            Message::Publish(publish) => self.up.publish(cx, topics, &publish),
            Message::Pubrel(msg_id) => self.up.release(cx, msg_id),
            Message::Subscribe { qos, msg_id, topic, .. } => {
                self.up.subscribe(cx, topics, msg_id, topic, qos);
            }
            Message::Unsubscribe { msg_id, topic } => {
                self.up.unsubscribe(cx, topics, msg_id, topic)
            }
            Message::Regack { msg_id, code, .. } => self.down.regack(cx, topics, msg_id, code),
            Message::Puback { topic_id, msg_id, code } => {
                self.down.puback(cx, topics, topic_id, msg_id, code);
            }
            Message::Pubrec(msg_id) => self.down.pubrec(cx, msg_id),
            Message::Pubcomp(msg_id) => self.down.pubcomp(cx, msg_id),
            Message::Pingreq(who) => self.ping(cx, who.is_some()),
            Message::WillTopicUpd(topic) => self.update_will_topic(cx, topic),
            Message::WillMsgUpd(payload) => self.update_will_message(cx, payload),
            _ => cx.statistics.ignored += 1,
        }
        self.go_on(cx);
    }

    /// Handles an event from the broker.
    pub(crate) fn on_broker_event(&mut self, cx: &mut Context<'_>, event: BrokerEvent) {
        match event {
            BrokerEvent::Opened { in_flight } => self.welcome(cx, in_flight),
            BrokerEvent::Closed(reason) => self.over(cx, reason),
            BrokerEvent::Answer(answer, id, reason) => self.up.answered(cx, answer, id, reason),
            BrokerEvent::Subscribed(id, reason) => {
                self.up.subscribed(cx, &mut self.topics, id, reason);
            }
            BrokerEvent::Unsubscribed(id) => self.up.unsubscribed(cx, id),
            BrokerEvent::Message(message) => {
                self.down.push(cx, message);
                self.more_may_come();
            }
            BrokerEvent::Release(id) => {
                self.down.release(cx, id, !matches!(self.stage, Stage::Asleep))
            }
            BrokerEvent::Probed => {
                if let Stage::Awake(probe @ Probe::Asked) = &mut self.stage {
                    *probe = Probe::Done;
                }
            }
        }
        self.go_on(cx);
    }

    /// Sends the messages that can be sent. A device that has all of them gets PINGRESP and sleeps again.
    fn go_on(&mut self, cx: &mut Context<'_>) {
        if self.ended.is_some() || !matches!(self.stage, Stage::Active | Stage::Awake(_)) {
            return;
        }
        self.down.pump(cx, &mut self.topics);
        if cx.requests.iter().any(|request| matches!(request, Request::Acknowledge(..))) {
            self.more_may_come();
        }
        let Stage::Awake(probe) = &mut self.stage else { return };
        if !self.down.is_idle() {
            return;
        }
        match probe {
            Probe::Due => {
                *probe = Probe::Asked;
                cx.push_request(Request::Probe);
            }
            Probe::Asked => {}
            Probe::Done => {
                cx.send(&Message::Pingresp);
                self.fall_asleep();
            }
        }
    }

    /// An acknowledgement has made room for more: the broker has to be asked again.
    fn more_may_come(&mut self) {
        if let Stage::Awake(probe @ Probe::Done) = &mut self.stage {
            *probe = Probe::Due;
        }
    }

    /// PINGREQ: a sign of life, or of a device that wakes up for its messages (section 6.14).
    fn ping(&mut self, cx: &mut Context<'_>, named: bool) {
        match &mut self.stage {
            Stage::Asleep if named => self.stage = Stage::Awake(Probe::Due),
            // The device waits: messages to it may be lost.
            Stage::Awake(_) if named => self.down.repeat(cx),
            _ => {
                cx.send(&Message::Pingresp);
            }
        }
    }

    fn fall_asleep(&mut self) {
        self.down.pause();
        self.stage = Stage::Asleep;
    }

    fn disconnect(&mut self, cx: &mut Context<'_>, duration_s: Option<u16>) {
        let connected = !matches!(self.stage, Stage::Asking(_) | Stage::Opening(_));
        match duration_s.filter(|duration| *duration > 0 && connected) {
            Some(duration) => {
                self.sleep = Duration::from_secs(duration.into());
                self.fall_asleep();
            }
            None => {
                cx.push_request(Request::Close { will: false, forget: self.hello.clean });
                self.ended = Some(End::Disconnected);
            }
        }
        cx.send(&Message::Disconnect { duration_s: None });
    }

    /// The broker has refused the connection or ended it.
    fn over(&mut self, cx: &mut Context<'_>, reason: ReasonCode) {
        match &self.stage {
            Stage::Opening(purpose) => {
                let code = return_code(reason);
                cx.send(&purpose.answer(code));
                if !matches!(purpose, Purpose::Connect) {
                    cx.send(&Message::Disconnect { duration_s: None });
                }
            }
            _ => {
                cx.send(&Message::Disconnect { duration_s: None });
            }
        }
        self.ended = Some(End::Broker(reason));
    }
}

/// The broker's reason as one of MQTT-SN's four return codes.
pub(crate) fn return_code(reason: ReasonCode) -> ReturnCode {
    match reason {
        reason if !reason.is_error() => ReturnCode::Accepted,
        ReasonCode::QuotaExceeded
        | ReasonCode::ServerBusy
        | ReasonCode::ServerUnavailable
        | ReasonCode::ServerShuttingDown
        | ReasonCode::MessageRateTooHigh
        | ReasonCode::ReceiveMaximumExceeded
        | ReasonCode::ConnectionRateExceeded
        | ReasonCode::PacketIdentifierInUse
        | ReasonCode::UnspecifiedError
        | ReasonCode::ImplementationSpecificError => ReturnCode::Congestion,
        _ => ReturnCode::NotSupported,
    }
}

/// A device's message identifier; 0 is none.
fn packet_id(cx: &mut Context<'_>, msg_id: u16) -> Option<PacketId> {
    let id = PacketId::new(msg_id);
    if id.is_none() {
        cx.statistics.ignored += 1;
    }
    id
}

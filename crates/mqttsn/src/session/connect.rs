//! The beginning of a session, and changes of its will (sections 6.2 to 6.4).
//!
//! MQTT cannot change the will of a connection. Instead, a new connection takes the session over, and messages in
//! flight are sent again.

use std::time::Duration;

use bytes::Bytes;
use fulmar_mqtt::topic::check_name;

use super::down::Down;
use super::up::Up;
use super::{Context, End, Retry, Session, Stage};
use crate::message::{Message, ReturnCode, WillTopic};
use crate::request::{Open, Request, Will};
use crate::topics::Topics;

/// The fields of CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) client_id: Box<str>,
    pub(crate) clean: bool,
    pub(crate) will: bool,
    /// Zero for none.
    pub(crate) keep_alive: Duration,
}

/// Treatment of a CONNECT from an address that has a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// A repetition: the session has answered it, or will.
    Repeated,
    /// A new session begins.
    Anew,
}

/// Why the connection to the broker is opened.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Connect,
    WillTopic,
    WillMessage,
}

impl Purpose {
    /// The answer to the device.
    pub(super) fn answer(self, code: ReturnCode) -> Message<'static> {
        match self {
            Purpose::Connect => Message::Connack(code),
            Purpose::WillTopic => Message::WillTopicResp(code),
            Purpose::WillMessage => Message::WillMsgResp(code),
        }
    }
}

/// A will that was requested from the device.
pub(super) struct AskedWill {
    /// Without a message yet.
    topic: Option<Will>,
    pub(super) retry: Retry,
}

impl AskedWill {
    pub(super) fn request_will(&self, cx: &mut Context<'_>) {
        match self.topic {
            None => cx.send(&Message::WillTopicReq),
            Some(_) => cx.send(&Message::WillMsgReq),
        };
    }
}

impl Session {
    /// Begins a session with a CONNECT. `topics` are those of the device's earlier session, if there was one.
    pub(crate) fn begin(
        cx: &mut Context<'_>,
        hello: Hello,
        mut topics: Topics,
        near: bool,
    ) -> Session {
        topics.forget_told();
        let mut session = Session {
            stage: Stage::Opening(Purpose::Connect),
            will: None,
            sleep: Duration::ZERO,
            heard_at: cx.now,
            fresh: true,
            topics,
            up: Up::default(),
            down: Down::new(near),
            ended: None,
            hello,
        };
        if session.hello.will {
            let asked = AskedWill { topic: None, retry: Retry::start(cx) };
            asked.request_will(cx);
            session.stage = Stage::Asking(asked);
        } else {
            session.open(cx, Purpose::Connect);
        }
        session
    }

    /// Handles a CONNECT from the device's address.
    pub(crate) fn connect_again(&mut self, cx: &mut Context<'_>, hello: &Hello) -> Again {
        if self.hello.client_id != hello.client_id {
            return Again::Anew;
        }
        let same = self.hello == *hello;
        match &self.stage {
            Stage::Asking(asked) if same => asked.request_will(cx),
            Stage::Opening(Purpose::Connect) if same => {}
            // The answer was lost.
            Stage::Active if same && self.fresh => {
                cx.send(&Message::Connack(ReturnCode::Accepted));
            }
            // Section 6.14: the device is awake again, with its session.
            Stage::Asleep | Stage::Awake(_) if !hello.clean && !hello.will => {
                self.hello = hello.clone();
                self.stage = Stage::Active;
                self.topics.forget_told();
                cx.send(&Message::Connack(ReturnCode::Accepted));
                self.heard_at = cx.now;
                self.go_on(cx);
            }
            _ => return Again::Anew,
        }
        self.heard_at = cx.now;
        Again::Repeated
    }

    /// Ends this session for a new one at the same address; returns its topics, if they are still valid.
    pub(crate) fn give_way(self, cx: &mut Context<'_>, to: &Hello) -> Option<Topics> {
        let same = self.hello.client_id == to.client_id;
        if !same {
            cx.push_request(Request::Close { will: true, forget: self.hello.clean });
        }
        (same && !to.clean).then_some(self.topics)
    }

    fn open(&mut self, cx: &mut Context<'_>, purpose: Purpose) {
        let clean_start = self.hello.clean && matches!(purpose, Purpose::Connect);
        cx.push_request(Request::Open(Open {
            client_id: self.hello.client_id.clone(),
            clean_start,
            forget: self.hello.clean,
            will: self.will.clone(),
        }));
        self.stage = Stage::Opening(purpose);
    }

    /// The broker has opened the connection.
    pub(super) fn welcome(&mut self, cx: &mut Context<'_>, in_flight: u16) {
        let Stage::Opening(purpose) = self.stage else { return };
        // Messages in flight are sent again by both sides.
        self.up.restart(in_flight);
        self.down.restart();
        self.stage = Stage::Active;
        cx.send(&purpose.answer(ReturnCode::Accepted));
    }

    pub(super) fn will_topic(&mut self, cx: &mut Context<'_>, topic: Option<WillTopic<'_>>) {
        let Stage::Asking(asked) = &mut self.stage else {
            cx.statistics.ignored += 1;
            return;
        };
        match topic {
            // The device has no will.
            None => self.open(cx, Purpose::Connect),
            Some(topic) if check_name(topic.topic).is_ok() => {
                asked.topic = Some(will(&topic, Bytes::new()));
                asked.retry = Retry::start(cx);
                asked.request_will(cx);
            }
            Some(_) => {
                cx.send(&Message::Connack(ReturnCode::NotSupported));
                self.ended = Some(End::Will);
            }
        }
    }

    pub(super) fn will_message(&mut self, cx: &mut Context<'_>, payload: &[u8]) {
        let Stage::Asking(asked) = &mut self.stage else {
            cx.statistics.ignored += 1;
            return;
        };
        let Some(topic) = asked.topic.take() else { return };
        self.will = Some(Will { payload: Bytes::copy_from_slice(payload), ..topic });
        self.open(cx, Purpose::Connect);
    }

    pub(super) fn update_will_topic(&mut self, cx: &mut Context<'_>, topic: Option<WillTopic<'_>>) {
        let possible = topic.is_none_or(|topic| check_name(topic.topic).is_ok());
        if !possible || !matches!(self.stage, Stage::Active) {
            cx.send(&Message::WillTopicResp(ReturnCode::NotSupported));
            return;
        }
        let payload = self.will.take().map(|will| will.payload).unwrap_or_default();
        self.will = topic.map(|topic| will(&topic, payload));
        self.open(cx, Purpose::WillTopic);
    }

    pub(super) fn update_will_message(&mut self, cx: &mut Context<'_>, payload: &[u8]) {
        match &mut self.will {
            Some(will) if matches!(self.stage, Stage::Active) => {
                will.payload = Bytes::copy_from_slice(payload);
                self.open(cx, Purpose::WillMessage);
            }
            _ => {
                cx.send(&Message::WillMsgResp(ReturnCode::NotSupported));
            }
        }
    }
}

fn will(topic: &WillTopic<'_>, payload: Bytes) -> Will {
    Will { topic: topic.topic.into(), payload, qos: topic.qos, retain: topic.retain }
}

//! The message layer for one peer (RFC 7252 section 4): sends confirmable messages again until they are acknowledged,
//! one at a time (NSTART). A repeated message is answered again, but handled once.
//!
//! It is independent of requests: the sender gives a message a tag, and gets its result with the tag.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use coap_lite::Packet;

use crate::message::{self, Kind};

fulmar_text::with_defaults! {
    /// Transmission parameters (RFC 7252 section 4.8).
    #[derive(Clone, Copy, Debug)]
    pub struct Timing {
        /// Time before the first repetition, times a random factor from 1 to 1.5 (ACK_TIMEOUT).
        pub ack_timeout: Duration = Duration::from_secs(2),
        /// Repetitions before a message has failed (MAX_RETRANSMIT).
        pub max_retransmit: u8 = 4,
        /// Time for which a request may wait for its response before it gets an empty acknowledgement.
        pub processing_delay: Duration = Duration::from_millis(500),
        /// Time for which a received message is remembered, to recognise a repetition (EXCHANGE_LIFETIME).
        pub exchange_lifetime: Duration = Duration::from_secs(247),
    }
}

/// The sender's name for a message.
pub(crate) type Tag = u64;

/// Messages of a peer that are remembered to recognise repetitions. A peer that complies with NSTART has one in flight,
/// and the network delivers delayed ones after few others.
const MAX_SEEN: usize = 32;

/// The longest answer that is stored to be repeated. Longer ones are contents, and handling those requests twice does
/// no harm (RFC 7252 section 4.2 allows it).
const MAX_KEPT_ANSWER: usize = 128;

/// The meaning of a received message for reliability.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A message to be handled.
    New,
    /// A message that was handled before, with its answer if that was stored.
    Repeated(Option<Vec<u8>>),
    /// The acknowledgement of the message with this tag; it may contain an answer.
    Acknowledged(Tag),
    /// The message with this tag was refused.
    Refused(Tag),
    /// A message to ignore.
    Nothing,
}

#[derive(Debug)]
struct Flight {
    id: u16,
    tag: Tag,
    datagram: Vec<u8>,
    due: Instant,
    timeout: Duration,
    repeated: u8,
}

#[derive(Debug)]
struct RecentMessage {
    id: u16,
    until: Instant,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    /// No answer yet, or none at all.
    None,
    Kept(Vec<u8>),
    /// Too long to be stored: the request is handled again.
    Again,
}

/// One peer's message layer.
#[derive(Debug)]
pub(crate) struct Channel {
    timing: Timing,
    random: fastrand::Rng,
    next_id: u16,
    flight: Option<Flight>,
    waiting: VecDeque<(Tag, Packet)>,
    seen: VecDeque<RecentMessage>,
    /// Message IDs of non-confirmable messages that a reset may still refuse.
    non_confirmable: VecDeque<(u16, Tag)>,
}

impl Channel {
    pub(crate) fn new(timing: Timing, seed: u64) -> Channel {
        let mut random = fastrand::Rng::with_seed(seed);
        // Section 4.4: the first one is random, so that attackers cannot guess it.
        let next_id = random.u16(..);
        Channel {
            timing,
            random,
            next_id,
            flight: None,
            waiting: VecDeque::new(),
            seen: VecDeque::new(),
            non_confirmable: VecDeque::new(),
        }
    }

    /// A message ID that was not used recently.
    pub(crate) fn take_id(&mut self) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    /// Handles a received message.
    pub(crate) fn receive(&mut self, now: Instant, packet: &Packet) -> Received {
        let id = packet.header.message_id;
        match message::kind_of(packet) {
            Kind::Acknowledgement => match self.land(|flight| flight.id == id) {
                Some(tag) => Received::Acknowledged(tag),
                None => Received::Nothing,
            },
            Kind::Reset => match self.land(|flight| flight.id == id) {
                Some(tag) => Received::Refused(tag),
                None => {
                    let found = self.non_confirmable.iter().position(|(sent, _)| *sent == id);
                    let non_confirmable = found.and_then(|at| self.non_confirmable.remove(at));
                    non_confirmable.map_or(Received::Nothing, |(_, tag)| Received::Refused(tag))
                }
            },
            Kind::Confirmable | Kind::NonConfirmable => self.receive_new(now, id),
        }
    }

    fn receive_new(&mut self, now: Instant, id: u16) -> Received {
        while self.seen.front().is_some_and(|seen| seen.until <= now) {
            self.seen.pop_front();
        }
        if let Some(seen) = self.seen.iter().find(|seen| seen.id == id) {
            return match &seen.answer {
                Answer::None => Received::Repeated(None),
                Answer::Kept(answer) => Received::Repeated(Some(answer.clone())),
                Answer::Again => Received::New,
            };
        }
        if self.seen.len() >= MAX_SEEN {
            self.seen.pop_front();
        }
        let until = now + self.timing.exchange_lifetime;
        self.seen.push_back(RecentMessage { id, until, answer: Answer::None });
        Received::New
    }

    /// Stores the answer to the peer's message `id`.
    pub(crate) fn answered(&mut self, id: u16, answer: &[u8]) {
        if let Some(seen) = self.seen.iter_mut().rev().find(|seen| seen.id == id) {
            let keep = answer.len() <= MAX_KEPT_ANSWER;
            seen.answer = if keep { Answer::Kept(answer.to_vec()) } else { Answer::Again };
        }
    }

    /// Sends a confirmable message, after earlier ones are acknowledged or have failed.
    pub(crate) fn confirmable(
        &mut self,
        now: Instant,
        tag: Tag,
        mut packet: Packet,
        out: &mut Vec<Vec<u8>>,
    ) {
        packet.header.set_type(Kind::Confirmable);
        self.waiting.push_back((tag, packet));
        self.launch(now, out);
    }

    /// Sends a non-confirmable message.
    pub(crate) fn non_confirmable(&mut self, tag: Tag, mut packet: Packet, out: &mut Vec<Vec<u8>>) {
        packet.header.set_type(Kind::NonConfirmable);
        packet.header.message_id = self.take_id();
        if self.non_confirmable.len() >= MAX_SEEN {
            self.non_confirmable.pop_front();
        }
        self.non_confirmable.push_back((packet.header.message_id, tag));
        out.push(message::write(&packet));
    }

    /// Removes all messages with this tag: they are answered or no longer needed.
    pub(crate) fn forget(&mut self, tag: Tag) {
        self.land(|flight| flight.tag == tag);
        self.waiting.retain(|(other, _)| *other != tag);
    }

    /// Messages in flight or waiting with this tag.
    pub(crate) fn pending(&self, tag: Tag) -> usize {
        let flying = self.flight.as_ref().is_some_and(|flight| flight.tag == tag);
        usize::from(flying) + self.waiting.iter().filter(|(other, _)| *other == tag).count()
    }

    /// Messages in flight or waiting.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.flight.is_some()) + self.waiting.len()
    }

    /// Drops the oldest message with this tag that has not been sent.
    pub(crate) fn drop_oldest_waiting(&mut self, tag: Tag) {
        if let Some(at) = self.waiting.iter().position(|(other, _)| *other == tag) {
            self.waiting.remove(at);
        }
    }

    /// Sends the next message if none is in flight.
    pub(crate) fn launch(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        if self.flight.is_some() {
            return;
        }
        let Some((tag, mut packet)) = self.waiting.pop_front() else { return };
        let id = self.take_id();
        packet.header.message_id = id;
        let datagram = message::write(&packet);
        // ACK_RANDOM_FACTOR of 1.5.
        let timeout = self.timing.ack_timeout.mul_f64(1.0 + self.random.f64() / 2.0);
        out.push(datagram.clone());
        self.flight = Some(Flight { id, tag, datagram, due: now + timeout, timeout, repeated: 0 });
    }

    /// Handles deadlines; returns the tag of a message that was not acknowledged.
    pub(crate) fn on_deadline(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) -> Option<Tag> {
        let max_retransmit = self.timing.max_retransmit;
        let flight = self.flight.as_mut().filter(|flight| flight.due <= now)?;
        if flight.repeated >= max_retransmit {
            let tag = flight.tag;
            self.flight = None;
            return Some(tag);
        }
        flight.repeated += 1;
        flight.timeout *= 2;
        flight.due = now + flight.timeout;
        out.push(flight.datagram.clone());
        None
    }

    /// When the next deadline is.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.flight.as_ref().map(|flight| flight.due)
    }

    fn land(&mut self, is_it: impl FnOnce(&Flight) -> bool) -> Option<Tag> {
        self.flight.take_if(|flight| is_it(flight)).map(|flight| flight.tag)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn request(id: u16) -> Packet {
        message::new(Kind::Confirmable, 1, id, &[1])
    }

    #[test]
    fn a_message_is_repeated_with_growing_pauses_and_then_given_up() {
        let start = Instant::now();
        let mut channel = Channel::new(Timing::default(), 7);
        let mut out = Vec::new();
        channel.confirmable(start, 5, request(0), &mut out);
        let mut at = Vec::new();
        let failed = loop {
            let due = channel.deadline().unwrap();
            at.push(due - start);
            if let Some(tag) = channel.on_deadline(due, &mut out) {
                break tag;
            }
        };
        assert_eq!((failed, out.len()), (5, 5), "MAX_RETRANSMIT is 4");
        assert!(out.windows(2).all(|pair| pair[0] == pair[1]));
        assert!((2.0..=3.0).contains(&at[0].as_secs_f64()));
        // MAX_TRANSMIT_WAIT (section 4.8.2) is 93 s.
        assert!((62.0..=93.0).contains(&at[4].as_secs_f64()), "{at:?}");
        assert_eq!(channel.deadline(), None);
    }

    #[test]
    fn one_message_is_on_its_way_at_a_time() {
        let now = Instant::now();
        let mut channel = Channel::new(Timing::default(), 7);
        let mut out = Vec::new();
        channel.confirmable(now, 1, request(0), &mut out);
        channel.confirmable(now, 2, request(0), &mut out);
        assert_eq!(out.len(), 1);
        let id = message::read(&out[0]).unwrap().header.message_id;
        let ack = message::new(Kind::Acknowledgement, 0, id, &[]);
        assert_eq!(channel.receive(now, &ack), Received::Acknowledged(1));
        assert_eq!(channel.receive(now, &ack), Received::Nothing, "it came twice");
        channel.launch(now, &mut out);
        assert_eq!(out.len(), 2);
    }

    #[test]
    fn what_comes_twice_is_handled_once_until_its_time_is_over() {
        let now = Instant::now();
        let mut channel = Channel::new(Timing::default(), 7);
        assert_eq!(channel.receive(now, &request(9)), Received::New);
        assert_eq!(channel.receive(now, &request(9)), Received::Repeated(None));
        channel.answered(9, b"answer");
        assert_eq!(channel.receive(now, &request(9)), Received::Repeated(Some(b"answer".to_vec())));
        channel.answered(9, &[0; 500]);
        assert_eq!(channel.receive(now, &request(9)), Received::New, "too long to be kept");
        let later = now + Timing::default().exchange_lifetime;
        assert_eq!(channel.receive(later, &request(9)), Received::New);
        for id in 100..200 {
            channel.receive(now, &request(id));
        }
        assert!(channel.seen.len() <= MAX_SEEN);
    }
}

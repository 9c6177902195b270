//! A wake, from the first datagram to the last.

use fulmar_tiny::limits::RECEIVE_DATAGRAM_BYTES;
use fulmar_tiny::{Client, CloseReason, Error, Event, Instant, KeyPair, Options, QoS, Resume};
use fulmar_tiny::{Session, Trust};

use crate::board::{Board, Word};
use crate::kept::StoredTicket;
use crate::settings::Settings;
use Word::{Bytes, Number, Text};

/// Longest time awake; what is not done by then has failed, and the next wake tries again.
const AWAKE_MS: u32 = 30_000;
/// Time in which the last acknowledgements should go out before the connection is closed.
const PARTING_MS: u32 = 1000;
/// Time for which the broker keeps the session of a device that does not come back, in seconds: a week.
const SESSION_S: u32 = 7 * 86_400;
/// Commands that change the time between two wakes: `every SECONDS`.
const EVERY: &[u8] = b"every ";
/// Room for a topic and for a reading.
const TOPIC_BYTES: usize = 96;
const READING_BYTES: usize = 64;
/// Room for the headers of the driver that wants most.
const MAX_HEADROOM: usize = 64;

/// Outcome of a wake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The broker has the reading for good.
    pub published: bool,
    /// It was sent in 0-RTT packets, and taken.
    pub early: bool,
    /// Commands received.
    pub commands: u16,
    /// Milliseconds from the beginning to the broker's PUBACK.
    pub puback_ms: u32,
}

/// Datagrams and their bytes.
#[derive(Clone, Copy, Default)]
struct Count {
    datagrams: u32,
    bytes: u32,
}

impl Count {
    fn add(&mut self, len: usize) {
        self.datagrams += 1;
        self.bytes += len as u32;
    }
}

/// A sensor with its memory: zero all over at first, so that a static one takes no flash.
pub struct Sensor {
    client: Client,
    buffer: [u8; MAX_HEADROOM + RECEIVE_DATAGRAM_BYTES],
    kept: StoredTicket,
    /// Made while there was nothing to do.
    key: Option<KeyPair>,
    interval_s: u32,
    commands: Commands,
}

/// Whether the broker gives us our commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Commands {
    /// It is to be asked.
    #[default]
    Wanted,
    /// It was asked and has not answered.
    Asked,
    /// It will, for as long as it keeps our session.
    Subscribed,
    /// It will not, or cannot be asked, this time.
    Refused,
}

/// State of a wake.
#[derive(Default)]
struct Wake {
    began: Instant,
    /// When something of use last came.
    heard: Instant,
    reading: u16,
    outcome: Outcome,
    connected: bool,
    commands: Commands,
    sent: Count,
    received: Count,
    closed: Option<CloseReason>,
}

impl Sensor {
    /// A sensor that has never been awake.
    #[must_use]
    pub const fn new() -> Sensor {
        Sensor {
            client: Client::new(),
            buffer: [0; MAX_HEADROOM + RECEIVE_DATAGRAM_BYTES],
            kept: StoredTicket::new(),
            key: None,
            interval_s: 0,
            commands: Commands::Wanted,
        }
    }

    /// Data that are to survive a loss of power.
    pub fn kept(&mut self) -> &mut StoredTicket {
        &mut self.kept
    }

    /// Seconds until the next wake: the settings', or what the broker has said since.
    #[must_use]
    pub fn interval_s(&self, settings: &Settings<'_>) -> u32 {
        if self.interval_s == 0 { settings.interval_s } else { self.interval_s }
    }

    /// Makes the next connection's key pair, which takes a microcontroller a tenth of a second: to be
    /// called before it goes to sleep, not when it is in a hurry.
    pub fn prepare<B: Board>(&mut self, board: &mut B) {
        if self.key.is_none() {
            let mut entropy = [0; 32];
            board.entropy(&mut entropy);
            self.key = Some(KeyPair::new(&entropy));
        }
    }

    /// Wakes: publishes a reading, hears commands, says goodbye.
    pub fn wake<B: Board>(&mut self, board: &mut B, settings: &Settings<'_>) -> Outcome {
        const { assert!(B::HEADROOM <= MAX_HEADROOM) };
        self.prepare(board);
        if !board.begin(&mut self.buffer) {
            board.log(&[Text("failed: no network")]);
            return Outcome::default();
        }
        let now = board.now();
        let commands = self.commands.at_wake();
        let mut wake = Wake { began: now, heard: now, commands, ..Wake::default() };
        if let Err(error) = self.connect(board, settings, now) {
            board.log(&[Text("failed: cannot connect, "), Text(error_text(error))]);
            return wake.outcome;
        }
        if let Err(error) = self.publish_reading(board, settings, &mut wake) {
            board.log(&[Text("failed: cannot publish, "), Text(error_text(error))]);
        }
        self.exchange(board, settings, &mut wake);
        self.part(board, &mut wake);
        self.commands = wake.commands;
        report(board, &wake);
        wake.outcome
    }

    fn connect<B: Board>(
        &mut self,
        board: &mut B,
        settings: &Settings<'_>,
        now: Instant,
    ) -> Result<(), Error> {
        let calendar_s = board.calendar_s();
        let trust = trust(
            settings,
            #[cfg(feature = "x509")]
            calendar_s,
        );
        let trust = trust.ok_or(Error::Invalid)?;
        let mut entropy = [0; 32];
        board.entropy(&mut entropy);
        let key = self.key.take().ok_or(Error::Invalid)?;
        let session = Session {
            client_id: settings.client_id,
            user: settings.user,
            password: settings.password,
            keep_alive_s: 0,
            clean_start: false,
            expiry_s: SESSION_S,
        };
        let ticket = self.kept.get(calendar_s).filter(|_| settings.resume);
        let resume = ticket.map(|(ticket, age_ms)| Resume { ticket, age_ms, early_data: true });
        let mut options = Options { server_name: settings.server_name, trust, resume, session };
        let mut begun = self.client.connect(&options, &key, &entropy, now);
        if begun == Err(Error::BadTicket) {
            board.log(&[Text("the ticket is damaged")]);
            options.resume = None;
            begun = self.client.connect(&options, &key, &entropy, now);
        }
        // Whatever comes of it, the broker takes a ticket once.
        self.kept.clear();
        begun
    }

    fn publish_reading<B: Board>(
        &mut self,
        board: &mut B,
        settings: &Settings<'_>,
        wake: &mut Wake,
    ) -> Result<(), Error> {
        let mut text = [0; READING_BYTES];
        let len = board.measure(&mut text).min(READING_BYTES);
        let mut topic = [0; TOPIC_BYTES];
        let topic = topic_of(&mut topic, settings, "/reading").ok_or(Error::TooLarge)?;
        wake.reading = self.client.publish(topic, &text[..len], QoS::AtLeastOnce)?;
        Ok(())
    }

    /// Until the reading is acknowledged and no command has come for a while, or all is lost.
    fn exchange<B: Board>(&mut self, board: &mut B, settings: &Settings<'_>, wake: &mut Wake) {
        loop {
            self.turn(board, settings, wake);
            let now = board.now();
            let quiet = now.since(wake.heard) >= u32::from(settings.listen_ms);
            let done = wake.outcome.published && wake.connected && wake.commands.settled() && quiet;
            if done || wake.closed.is_some() || now.since(wake.began) >= AWAKE_MS {
                return;
            }
            board.doze();
        }
    }

    /// One round: what has come, what is due, what has happened, what is to go out.
    fn turn<B: Board>(&mut self, board: &mut B, settings: &Settings<'_>, wake: &mut Wake) {
        let now = self.receive_datagrams(board, wake);
        let mut ticket = false;
        // This does what is due, too.
        while let Some(event) = self.client.poll_event(now) {
            ticket |= event == Event::Ticket;
            wake.on_event(board, event, now, &mut self.interval_s);
        }
        if ticket && let Some(ticket) = self.client.ticket() {
            self.kept.set(ticket, board.calendar_s());
        }
        if wake.connected && wake.commands == Commands::Wanted && wake.closed.is_none() {
            self.subscribe(board, settings, wake);
        }
        self.flush(board, wake);
    }

    /// Takes the datagrams that have come, and gives the time when.
    #[inline(never)]
    fn receive_datagrams<B: Board>(&mut self, board: &mut B, wake: &mut Wake) -> Instant {
        let now = board.now();
        while let Some(place) = board.receive(&mut self.buffer) {
            wake.received.add(place.len());
            if let Some(datagram) = self.buffer.get_mut(place) {
                self.client.receive(datagram, now);
            }
        }
        now
    }

    fn subscribe<B: Board>(&mut self, board: &mut B, settings: &Settings<'_>, wake: &mut Wake) {
        let mut topic = [0; TOPIC_BYTES];
        let Some(filter) = topic_of(&mut topic, settings, "/command") else { return };
        match self.client.subscribe(filter, QoS::AtLeastOnce) {
            Ok(_) => wake.commands = Commands::Asked,
            // Acknowledgements make room.
            Err(Error::Full) => {}
            Err(error) => {
                wake.commands = Commands::Refused;
                board.log(&[Text("cannot subscribe: "), Text(error_text(error))]);
            }
        }
    }

    fn flush<B: Board>(&mut self, board: &mut B, wake: &mut Wake) {
        let now = board.now();
        while let Some(len) = self.client.poll_transmit(&mut self.buffer[B::HEADROOM..], now) {
            wake.sent.add(len);
            board.send(&mut self.buffer, len);
        }
    }

    /// Gives acknowledgements a chance to arrive, then closes.
    fn part<B: Board>(&mut self, board: &mut B, wake: &mut Wake) {
        let begun = board.now();
        while wake.closed.is_none() && !self.client.is_flushed() {
            if board.now().since(begun) >= PARTING_MS {
                break;
            }
            board.doze();
            let now = self.receive_datagrams(board, wake);
            self.client.on_deadline(now);
            self.flush(board, wake);
        }
        self.client.close();
        self.flush(board, wake);
    }
}

impl Default for Sensor {
    fn default() -> Sensor {
        Sensor::new()
    }
}

impl Commands {
    /// State at the beginning of a connection: an answer that did not come, or was no, is asked for again.
    fn at_wake(self) -> Commands {
        if self == Commands::Subscribed { self } else { Commands::Wanted }
    }

    /// Whether nothing more is to be waited for.
    fn settled(self) -> bool {
        matches!(self, Commands::Subscribed | Commands::Refused)
    }
}

impl Wake {
    fn on_event<B: Board>(
        &mut self,
        board: &mut B,
        event: Event<'_>,
        now: Instant,
        interval_s: &mut u32,
    ) {
        self.heard = now;
        let after = Number(now.since(self.began));
        match event {
            Event::Handshake { resumed, early_data_accepted } => {
                self.outcome.early = early_data_accepted;
                let early = if early_data_accepted { ", early data accepted" } else { "" };
                let kind = if resumed { "resumed" } else { "new" };
                board.log(&[Text("handshake: "), Text(kind), Text(early), Text(", ms "), after]);
            }
            Event::Connected { session_present } => {
                self.connected = true;
                // That it knows the session does not say that our question ever reached it.
                if !session_present {
                    self.commands = Commands::Wanted;
                }
                let kind = if session_present { "present" } else { "new" };
                board.log(&[Text("connected: session "), Text(kind), Text(", ms "), after]);
            }
            Event::Published { id, reason } if id == self.reading => {
                self.outcome.published = reason < 0x80;
                self.outcome.puback_ms = now.since(self.began);
                board.log(&[
                    Text("published: reason "),
                    Number(reason.into()),
                    Text(", ms "),
                    after,
                ]);
            }
            Event::Subscribed { reason, .. } => {
                let granted = reason < 0x80;
                self.commands = if granted { Commands::Subscribed } else { Commands::Refused };
                board.log(&[Text("subscribed: reason "), Number(reason.into())]);
            }
            Event::Message(message) => {
                self.outcome.commands += 1;
                board.log(&[Text("command: "), Bytes(message.payload)]);
                match message.payload.strip_prefix(EVERY).and_then(number) {
                    Some(seconds) => *interval_s = seconds,
                    None if board.obey(message.payload) => {}
                    None => board.log(&[Text("unknown command")]),
                }
            }
            Event::Closed(reason) => self.closed = Some(reason),
            _ => {}
        }
    }
}

fn report<B: Board>(board: &mut B, wake: &Wake) {
    let out_of_time = (", out of time ", 0);
    match wake.closed.map(reason_text) {
        None if wake.outcome.published => board.log(&[Text("done")]),
        closed => {
            let (why, code) = closed.unwrap_or(out_of_time);
            let result = if wake.outcome.published { "done" } else { "failed" };
            board.log(&[Text(result), Text(why), Number(code)]);
        }
    }
    let (out, back) = (wake.sent, wake.received);
    board.log(&[
        Text("datagrams out "),
        Number(out.datagrams),
        Text(", in "),
        Number(back.datagrams),
    ]);
    board.log(&[Text("bytes out "), Number(out.bytes), Text(", in "), Number(back.bytes)]);
}

fn trust<'a>(settings: &Settings<'a>, #[cfg(feature = "x509")] unix_s: u32) -> Option<Trust<'a>> {
    #[cfg(feature = "x509")]
    if settings.authority {
        let key = settings.server_key.as_array()?;
        return Some(Trust::Authority { key, unix_s: unix_s.into() });
    }
    #[cfg(feature = "ed25519")]
    if let Some(key) = settings.server_key.as_array::<32>() {
        return Some(Trust::Ed25519(key));
    }
    #[cfg(feature = "p256")]
    if let Some(key) = settings.server_key.as_array::<65>() {
        return Some(Trust::P256(key));
    }
    None
}

/// `sensors/CLIENT` and what follows.
fn topic_of<'a>(
    room: &'a mut [u8; TOPIC_BYTES],
    settings: &Settings<'_>,
    end: &str,
) -> Option<&'a str> {
    let mut len = 0;
    for part in ["sensors/", settings.client_id, end] {
        room.get_mut(len..len + part.len())?.copy_from_slice(part.as_bytes());
        len += part.len();
    }
    core::str::from_utf8(&room[..len]).ok()
}

/// A decimal number from 1 to a year in seconds.
fn number(digits: &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for digit in digits {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        value = value.checked_mul(10)?.checked_add(digit.into())?;
    }
    (1..=366 * 86_400).contains(&value).then_some(value)
}

fn error_text(error: Error) -> &'static str {
    match error {
        Error::Full => "no room",
        Error::TooLarge => "too large",
        Error::NotConnected => "not connected",
        Error::BadTicket => "bad ticket",
        Error::Invalid => "bad settings",
        _ => "",
    }
}

fn reason_text(reason: CloseReason) -> (&'static str, u32) {
    match reason {
        CloseReason::Local => (", closed ", 0),
        CloseReason::IdleTimeout => (", idle ", 0),
        CloseReason::Reset => (", forgotten by the broker ", 0),
        CloseReason::Version => (", no common version ", 0),
        CloseReason::Tls(alert) => (", TLS alert ", alert.into()),
        CloseReason::Transport(code) => (", QUIC error ", code),
        CloseReason::Mqtt => (", MQTT error ", 0),
        CloseReason::PeerTransport(code) => (", broker's QUIC error ", code),
        CloseReason::PeerApplication(code) => (", broker's code ", code),
        CloseReason::Refused(reason) => (", refused ", reason.into()),
        _ => (", lost ", 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A board that hears and says nothing.
    struct Mute;

    impl Board for Mute {
        const HEADROOM: usize = 0;
        fn now(&mut self) -> Instant {
            Instant::default()
        }
        fn calendar_s(&mut self) -> u32 {
            0
        }
        fn entropy(&mut self, _: &mut [u8; 32]) {}
        fn doze(&mut self) {}
        fn receive(&mut self, _: &mut [u8]) -> Option<core::ops::Range<usize>> {
            None
        }
        fn send(&mut self, _: &mut [u8], _: usize) -> bool {
            false
        }
        fn begin(&mut self, _: &mut [u8]) -> bool {
            false
        }
        fn measure(&mut self, _: &mut [u8]) -> usize {
            0
        }
        fn obey(&mut self, _: &[u8]) -> bool {
            false
        }
        fn log(&mut self, _: &[Word<'_>]) {}
    }

    /// Returns the sensor's state after these events of a wake.
    fn after(before: Commands, events: &[Event<'_>]) -> Commands {
        let mut wake = Wake { commands: before.at_wake(), ..Wake::default() };
        for event in events {
            wake.on_event(&mut Mute, *event, Instant::default(), &mut 0);
        }
        wake.commands
    }

    #[test]
    fn a_question_that_got_lost_is_asked_again() {
        let (new, known) = (
            Event::Connected { session_present: false },
            Event::Connected { session_present: true },
        );
        // The broker made a session, and then the connection died.
        assert_eq!(after(Commands::Asked, &[known]), Commands::Wanted);
        assert_eq!(after(Commands::Wanted, &[known]), Commands::Wanted);
        assert_eq!(after(Commands::Subscribed, &[known]), Commands::Subscribed);
        // It has forgotten the session, and what we wanted with it.
        assert_eq!(after(Commands::Subscribed, &[new]), Commands::Wanted);
        let granted = Event::Subscribed { id: 1, reason: 1 };
        assert_eq!(after(Commands::Wanted, &[new, granted]), Commands::Subscribed);
        let refused = Event::Subscribed { id: 1, reason: 0x87 };
        assert_eq!(after(Commands::Wanted, &[new, refused]), Commands::Refused);
        assert_eq!(after(Commands::Refused, &[known]), Commands::Wanted);
    }

    #[test]
    fn topics_that_do_not_fit_are_not_made() {
        let page = [
            &b"FLM\x01"[..],
            &[1, 6, 10, 0, 2, 2, 0x38, 0xe7, 2, 1, b'b', 3, 32],
            &[7; 32],
            &[5, 6, 2, 2, 2, 2, 2, 2, 4, 90],
            &[b'x'; 90],
            &[0xff],
        ]
        .concat();
        let mut settings = Settings::read(&page).expect("good settings");
        assert_eq!(topic_of(&mut [0; TOPIC_BYTES], &settings, "/reading"), None);
        settings.client_id = "s1";
        assert_eq!(
            topic_of(&mut [0; TOPIC_BYTES], &settings, "/reading"),
            Some("sensors/s1/reading")
        );
    }

    #[test]
    fn intervals_are_numbers_of_seconds_within_a_year() {
        for (text, value) in [
            (&b"1"[..], Some(1)),
            (b"86400", Some(86_400)),
            (b"0", None),
            (b"", None),
            (b"-1", None),
            (b"99999999999", None),
            (b"40000000", None),
        ] {
            assert_eq!(number(text), value);
        }
    }
}

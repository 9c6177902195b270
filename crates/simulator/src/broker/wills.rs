//! Tracks each client's will: whether it may be published, and whether it must (MQTT 5.0 section 3.1.2.5). A will is
//! a message in the ledger that its client never sends itself.

use std::time::Duration;

use fulmar_broker::Timestamp;
use fulmar_broker::storage::SessionRecord;

use crate::broker::client::Client;
use crate::broker::ledger::{Ledger, message_of};
use crate::broker::schedule::{TOPICS, Will};
use crate::world::World;

/// The will of a client's last connection.
#[derive(Clone, Copy, Debug)]
struct Current {
    message: usize,
    line: usize,
    delay: Duration,
    durable: bool,
    /// CONNACK was received, so the broker has it.
    greeted: bool,
    fate: Fate,
    /// The latest time at which the broker detected the end of the connection.
    noticed: Option<Timestamp>,
    /// Whether the broker has read DISCONNECT.
    is_gone: bool,
}

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is open.
    There,
    /// It has broken.
    Lost,
    /// The client has sent DISCONNECT.
    Left,
    /// The client has returned.
    Over,
}

/// The wills of all clients, by client.
#[derive(Debug, Default)]
pub(crate) struct Wills {
    current: Vec<Option<Current>>,
    /// Wills that must be published, unless a crash changes that.
    due: Vec<Current>,
}

impl Wills {
    pub(crate) fn new(clients: usize) -> Wills {
        Wills { current: vec![None; clients], due: Vec::new() }
    }

    /// A client is about to connect on `line`; records its CONNECT's will. `clean` if it wants a new session.
    pub(crate) fn connecting(
        &mut self,
        client: &Client,
        clean: bool,
        line: usize,
        world: &World,
        ledger: &mut Ledger,
    ) -> Option<(Will, String)> {
        self.comes_back(client, clean, world, ledger);
        if clean {
            // A will that a crash has kept is due at the end of the session.
            ledger.wills_may_come(client.index);
        }
        let nature = client.nature;
        let Some(will) = nature.will else {
            self.current[client.index] = None;
            return None;
        };
        let topic = client.index % TOPICS.len();
        let message =
            ledger.will(client.index, topic, will.qos, will.expiry_s.filter(|_| nature.v5));
        let payload = ledger.payload(message, line);
        let delay_s = if nature.v5 && nature.durable { will.delay_s } else { 0 };
        self.current[client.index] = Some(Current {
            message,
            line,
            delay: Duration::from_secs(delay_s.into()),
            durable: nature.durable,
            greeted: false,
            fate: Fate::There,
            noticed: None,
            is_gone: false,
        });
        Some((will, payload))
    }

    pub(crate) fn greeted(&mut self, client: usize) {
        if let Some(will) = &mut self.current[client] {
            will.greeted = true;
        }
    }

    /// The broker has refused a client's CONNECT, and its will with it.
    pub(crate) fn refused(&mut self, client: usize, ledger: &mut Ledger) -> Result<(), String> {
        let Some(will) = self.current[client].take() else { return Ok(()) };
        ledger.must_not_come(will.message);
        match ledger.has_arrived(will.message) {
            true => Err(format!("message {}, the will of a refused client, came", will.message)),
            false => Ok(()),
        }
    }

    /// A client's connection has broken, or was replaced by a new one.
    pub(crate) fn lost(&mut self, client: usize, ledger: &mut Ledger) {
        if let Some(will) = &mut self.current[client]
            && will.fate == Fate::There
        {
            will.fate = Fate::Lost;
            ledger.bequeath(will.message, ledger.now + will.delay);
        }
    }

    /// A client has sent DISCONNECT. Until the broker reads it, the connection may break.
    pub(crate) fn left(&mut self, client: usize, ledger: &mut Ledger) {
        if let Some(will) = &mut self.current[client]
            && will.fate == Fate::There
        {
            will.fate = Fate::Left;
            ledger.may_come(will.message);
        }
    }

    fn comes_back(&mut self, client: &Client, clean: bool, world: &World, ledger: &mut Ledger) {
        self.lost(client.index, ledger);
        self.record_detected(world, ledger);
        let Some(will) = &mut self.current[client.index] else { return };
        let fate = std::mem::replace(&mut will.fate, Fate::Over);
        let is_due = will.noticed.is_some_and(|at| at + will.delay + ledger.late <= ledger.now);
        match fate {
            Fate::Lost if will.greeted && (will.delay.is_zero() || is_due) => {
                ledger.acknowledged(will.message);
                self.due.push(*will);
            }
            // At the end of the session it is due at once.
            Fate::Lost if clean => ledger.may_come(will.message),
            Fate::Lost | Fate::Left | Fate::There | Fate::Over => {}
        }
    }

    /// Records what the broker has detected by now.
    pub(crate) fn record_detected(&mut self, world: &World, ledger: &mut Ledger) {
        for will in self.current.iter_mut().flatten() {
            let Some(line) = world.lines.get(will.line) else { continue };
            match will.fate {
                // Closed by the broker.
                Fate::There if line.closed_at.is_some() => {
                    (will.fate, will.noticed) = (Fate::Lost, line.closed_at);
                    let at = line.closed_at.unwrap_or(ledger.now);
                    ledger.bequeath(will.message, at + will.delay);
                }
                Fate::Left if line.said_goodbye && !will.is_gone => {
                    will.is_gone = true;
                    ledger.must_not_come(will.message);
                }
                Fate::Lost if will.noticed.is_none() => will.noticed = line.closed_at,
                _ => {}
            }
        }
    }

    /// The broker has crashed. Afterwards its duties about wills follow from the state in storage, which may be newer
    /// than what was known to be durable. The new process begins at `time`.
    pub(crate) fn crash(
        &mut self,
        sessions: &[SessionRecord],
        time: Timestamp,
        ledger: &mut Ledger,
    ) {
        for client in 0..self.current.len() {
            self.lost(client, ledger);
        }
        let stored = |message: usize| {
            let is_it = |session: &&SessionRecord| {
                session.will.as_ref().is_some_and(|will| message_of(&will.payload) == Some(message))
            };
            sessions.iter().find(is_it).map(|session| session.will_at)
        };
        let now = ledger.now;
        for session in sessions {
            let current = self.current.iter().flatten().map(|will| will.message);
            let message = session.will.as_ref().and_then(|will| message_of(&will.payload));
            // A will whose end was not stored.
            if let Some(message) =
                message.filter(|message| !current.clone().any(|own| own == *message))
            {
                ledger.may_come(message);
            }
        }
        for will in self.current.iter_mut().flatten() {
            will.line = usize::MAX;
            match (will.fate, stored(will.message)) {
                (Fate::Left, Some(_)) => ledger.may_come(will.message),
                (Fate::Lost, Some(_)) => will.noticed = Some(now),
                // It was removed from storage in the batch of its publication.
                (Fate::Lost, None) if will.durable && will.greeted => {
                    will.fate = Fate::Over;
                    ledger.acknowledged(will.message);
                    self.due.push(*will);
                }
                (Fate::Lost, None) => will.fate = Fate::Over,
                _ => {}
            }
        }
        self.due.retain(|will| {
            let goes_on = match stored(will.message) {
                Some(at) => will.delay.is_zero() || at.is_some_and(|at| at <= time),
                None => will.durable,
            };
            if !goes_on {
                ledger.sent[will.message].acknowledged = false;
            }
            goes_on
        });
    }

    /// Everything has come to rest: clients that are not connected have not returned in time.
    pub(crate) fn at_the_end(&mut self, ledger: &mut Ledger) {
        for will in self.current.iter().flatten() {
            let must = will.fate == Fate::Lost && will.greeted && !will.durable;
            if must && will.noticed.is_some() {
                ledger.acknowledged(will.message);
            }
        }
    }
}

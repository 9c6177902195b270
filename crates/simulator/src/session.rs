//! The client library's session machine over a connection of a simulated world.

use std::sync::Arc;
use std::time::Instant;

use fulmar_broker::StreamKey;
use fulmar_client::simulation::{CONTROL, Machine, Outcome};
use fulmar_client::{Error, Message, Options, ReasonCode, Version};
use fulmar_mqtt::codec::peek_frame;

use crate::world::World;

/// A session; `P` is the handle of a publication, `R` of a request.
pub(crate) struct Session<P, R = ()> {
    options: Arc<Options>,
    /// The machine, for requests; [`Session::flush`] sends them.
    pub(crate) machine: Machine<P, R>,
    line: Option<usize>,
    /// Whether CONNACK has been received on this connection.
    greeted: bool,
}

/// The options of a client whose session lasts for a day.
pub(crate) fn session_options(client_id: &str) -> Result<Options, String> {
    let mut options = Options::new("mqtt://broker").map_err(|error| error.to_string())?;
    client_id.clone_into(&mut options.client_id);
    options.session_expiry_s = 86_400;
    options.keep_alive_s = 0;
    Ok(options)
}

impl<P, R> Session<P, R> {
    /// A client that has not connected yet.
    pub(crate) fn new(options: Options, now: Instant) -> Session<P, R> {
        let options = Arc::new(options);
        let machine = Machine::new(Arc::clone(&options), now);
        Session { machine, options, line: None, greeted: false }
    }

    /// The same client without its memory.
    pub(crate) fn replaced(&self, now: Instant) -> Session<P, R> {
        Session::new(Options::clone(&self.options), now)
    }

    /// Whether it speaks MQTT 5.0.
    pub(crate) fn is_v5(&self) -> bool {
        self.options.version == Version::V5
    }

    /// Whether it has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.line.is_some()
    }

    /// Opens a connection; an earlier one ends, and the broker reads what is left of it first, or never.
    pub(crate) fn connect(&mut self, world: &mut World, worker: usize, now: Instant) {
        self.cut(world, true);
        self.line = world.open(worker, false, usize::MAX);
        if let Some(line) = self.line {
            world.lines[line].keeps_alive = self.options.keep_alive_s > 0;
            self.machine.connect(now, false, false);
            self.flush(world, now);
        }
    }

    /// Publishes a message, now or with the next connection.
    pub(crate) fn publish(&mut self, world: &mut World, message: Message, token: P, now: Instant) {
        self.machine.publish(message, token);
        self.flush(world, now);
    }

    /// Reads one packet. False if there is none. The broker may end the connection for the reasons `may_end`.
    pub(crate) fn receive(
        &mut self,
        world: &mut World,
        now: Instant,
        may_end: &[ReasonCode],
    ) -> Result<bool, String> {
        let Some(line) = self.line else { return Ok(false) };
        let Some(packet) = world.receive(line, StreamKey::CONTROL) else {
            if !world.is_open(line) {
                self.lost();
            }
            return Ok(false);
        };
        match self.machine.receive(now, CONTROL, &packet) {
            Ok(_) => {
                self.greeted = true;
                self.flush(world, now);
            }
            Err(Error::Refused { reason, .. } | Error::Disconnected(reason))
                if may_end.contains(&reason) =>
            {
                self.cut(world, true);
            }
            Err(error) => return Err(format!("{}: {error}", self.options.client_id)),
        }
        Ok(true)
    }

    /// The next outcome of what it has sent.
    pub(crate) fn outcome(&mut self) -> Option<Outcome<P, R>> {
        self.machine.poll_event()
    }

    /// The connection breaks, with what was sent last if `lossy`.
    pub(crate) fn cut(&mut self, world: &mut World, lossy: bool) {
        if let Some(line) = self.line {
            // A CONNECT that is read after a later one would take the session back, and perhaps clear it.
            world.cut(line, lossy || !self.greeted);
        }
        self.lost();
    }

    /// The broker's process has died, or its end of the connection is closed.
    pub(crate) fn lost(&mut self) {
        self.greeted = false;
        if self.line.take().is_some() {
            self.machine.disconnected();
        }
    }

    /// Sends what the machine has written, packet by packet.
    pub(crate) fn flush(&mut self, world: &mut World, now: Instant) {
        let Some(line) = self.line else { return };
        loop {
            let out = self.machine.output(CONTROL).to_vec();
            let mut rest = &*out;
            while let Ok(Some(frame)) = peek_frame(rest, usize::MAX) {
                world.client_sends(line, StreamKey::CONTROL, rest[..frame.len].to_vec());
                rest = &rest[frame.len..];
            }
            if out.is_empty() {
                return;
            }
            assert!(rest.is_empty(), "the client has written half a packet");
            self.machine.sent(CONTROL, out.len(), now);
        }
    }
}

//! A client inside the process, as `local_client.rs` of `crates/part` and its users have it: a durable session that
//! acknowledges by hand. It is the client library's session machine.

use std::time::Instant;

use fulmar_client::simulation::Outcome;
use fulmar_client::{Message, QoS, ReasonCode, Receipt, RetainHandling, SubscribeOptions};

use crate::session::{Session, session_options};
use crate::world::World;

/// Why the broker may end the connection: an older one, which it has read later, has taken the session back, or its
/// storage stands still.
pub(crate) const MAY_END: [ReasonCode; 3] = [
    ReasonCode::SessionTakenOver,
    ReasonCode::ServerUnavailable,
    ReasonCode::ImplementationSpecificError,
];

/// The session.
pub(crate) struct Subscriber {
    pub(crate) session: Session<()>,
    /// Receipts of what was received and is not acknowledged. Nothing is read, and no connection is opened, before it is.
    receipts: Vec<Receipt>,
}

impl Subscriber {
    pub(crate) fn new(
        client_id: &str,
        filters: &[&str],
        no_local: bool,
        now: Instant,
    ) -> Result<Subscriber, String> {
        let mut options = session_options(client_id)?;
        options.session_expiry_s = u32::MAX;
        (options.clean_start, options.acknowledge_by_hand) = (false, true);
        let subscribe = SubscribeOptions {
            qos: QoS::AtLeastOnce,
            no_local,
            retain_as_published: no_local,
            retain_handling: RetainHandling::Never,
        };
        let mut session = Session::new(options, now);
        let filters = filters.iter().map(|filter| ((*filter).to_owned(), subscribe));
        session.machine.subscribe(filters.collect(), ());
        Ok(Subscriber { session, receipts: Vec::new() })
    }

    /// Opens a connection, when it has acknowledged what it received before.
    pub(crate) fn connect(&mut self, world: &mut World, worker: usize, now: Instant) {
        if self.receipts.is_empty() {
            self.session.connect(world, worker, now);
        }
    }

    /// Reads up to `most` packets, and shows the messages to `see`; returns whether it has read any packet.
    pub(crate) fn read(
        &mut self,
        world: &mut World,
        most: usize,
        now: Instant,
        mut see: impl FnMut(Message),
    ) -> Result<bool, String> {
        if self.has_received() {
            return Ok(false);
        }
        let mut count = 0;
        while count < most && self.session.receive(world, now, &MAY_END)? {
            count += 1;
            while let Some(outcome) = self.session.outcome() {
                match outcome {
                    Outcome::Message(mut message) => {
                        self.receipts.extend(message.receipt.take());
                        see(message);
                    }
                    Outcome::Answered((), Ok(codes))
                        if codes.iter().any(|code| code.is_error()) =>
                    {
                        return Err(format!("a subscription was refused: {codes:?}"));
                    }
                    _ => {}
                }
            }
        }
        Ok(count > 0)
    }

    /// True if it has received messages and not acknowledged them.
    pub(crate) fn has_received(&self) -> bool {
        !self.receipts.is_empty()
    }

    /// Acknowledges what was received, if that connection is still there. Returns whether there was something.
    pub(crate) fn acknowledge(&mut self, world: &mut World, now: Instant) -> bool {
        let had_received = self.has_received();
        self.receipts.drain(..).for_each(|receipt| self.session.machine.acknowledge(&receipt));
        self.session.flush(world, now);
        had_received
    }
}

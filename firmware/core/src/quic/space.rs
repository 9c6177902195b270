//! A packet number space (RFC 9000, section 12.3): its keys, what was received in it and when that is to be
//! acknowledged. What was sent is in `recovery`.

use super::ranges::Ranges;
use crate::Instant;
use crate::crypto::PacketKeys;

/// A packet number space with its keys.
// In this order for the sake of flash: what is near the beginning is reached by shorter instructions.
#[repr(C)]
pub(super) struct PacketSpace {
    pub(super) can_send: bool,
    pub(super) can_receive: bool,
    pub(super) next_number: u32,
    pub(super) largest_acked: Option<u32>,
    /// Packets below were received, or are no longer wanted.
    pub(super) floor: u32,
    pub(super) largest_at: Instant,
    /// Ack-eliciting packets not acknowledged yet.
    pub(super) unacked: u8,
    pub(super) ack_now: bool,
    pub(super) ack_at: Option<Instant>,
    /// When packets older than an acknowledged one count as lost.
    pub(super) loss_at: Option<Instant>,
    pub(super) probe: bool,
    pub(super) received: Ranges,
    pub(super) send: PacketKeys,
    pub(super) receive: PacketKeys,
}

impl PacketSpace {
    pub(super) const fn new() -> Self {
        Self {
            send: PacketKeys::none(),
            receive: PacketKeys::none(),
            can_send: false,
            can_receive: false,
            next_number: 0,
            largest_acked: None,
            received: Ranges::new(),
            floor: 0,
            largest_at: Instant::from_millis(0),
            unacked: 0,
            ack_now: false,
            ack_at: None,
            loss_at: None,
            probe: false,
        }
    }

    pub(super) fn start(&mut self) {
        self.next_number = 0;
        self.largest_acked = None;
        self.received.clear();
        self.floor = 0;
        self.discard();
    }

    pub(super) fn discard(&mut self) {
        self.can_send = false;
        self.can_receive = false;
        self.unacked = 0;
        self.ack_now = false;
        self.ack_at = None;
        self.loss_at = None;
        self.probe = false;
    }
}

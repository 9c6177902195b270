//! What a connection does as time passes: losses and probes (RFC 9002, section 6), late acknowledgements, the
//! idle and the handshake's timeout; and what becomes of what was in packets that are lost or have arrived.
//! The table of packets on their way, round trips and congestion are in `recovery`.

use super::packet::SPACES;
use super::recovery::{Content, SentPacket};
use super::stream::Outbound;
use super::{Connection, FIRST_STREAM, Space, State, control};
use crate::limits::HANDSHAKE_MS;
use crate::{CloseReason, Instant};

impl Connection {
    /// When [`on_deadline`](Self::on_deadline) has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if !self.is_open() {
            return None;
        }
        let acks = self.spaces.iter().filter_map(|space| space.ack_at);
        let all = acks.chain(self.loss_deadline()).chain(self.idle_deadline());
        all.chain(self.previous_until).chain(self.handshake_deadline()).reduce(Instant::min)
    }

    fn idle_deadline(&self) -> Option<Instant> {
        (self.idle_ms != 0).then(|| {
            // At least three probes must fit in (section 10.1).
            let least = 3 * self.recovery.backed_off(self.recovery.probe_ms());
            self.idle_from.after(self.idle_ms.max(least))
        })
    }

    /// A server that answers but never comes to an end would keep us for ever.
    fn handshake_deadline(&self) -> Option<Instant> {
        (self.state == State::Handshake).then(|| self.started_at.after(HANDSHAKE_MS))
    }

    /// When a packet counts as lost or a probe is due.
    fn loss_deadline(&self) -> Option<Instant> {
        let loss = self.spaces.iter().filter_map(|space| space.loss_at).reduce(Instant::min);
        loss.or_else(|| self.probe_deadline().map(|(_, deadline)| deadline))
    }

    /// RFC 9002, section 6.2.
    fn probe_deadline(&self) -> Option<(Space, Instant)> {
        let mut earliest: Option<(Space, Instant)> = None;
        for space in SPACES {
            // Early data goes again with the Initial packets it came with.
            if space == Space::Data && !self.confirmed {
                continue;
            }
            let Some(last) = self.recovery.last_sent(space) else { continue };
            let delay = if space == Space::Data { self.max_ack_delay_ms } else { 0 };
            let period = self.recovery.backed_off(self.recovery.probe_ms() + delay);
            let deadline = last.after(period);
            if earliest.is_none_or(|(_, other)| !deadline.reached(other)) {
                earliest = Some((space, deadline));
            }
        }
        if earliest.is_none() && !self.confirmed {
            // The server may be waiting for a sign that our address is ours (section 6.2.2.1).
            let handshake = self.spaces[Space::Handshake as usize].can_send;
            let space = if handshake { Space::Handshake } else { Space::Initial };
            let period = self.recovery.backed_off(self.recovery.probe_ms());
            let sent_something = self.spaces[Space::Initial as usize].next_number > 0;
            earliest = sent_something.then(|| (space, self.sent_at.after(period)));
        }
        earliest
    }

    /// Does what is due.
    pub(crate) fn on_deadline(&mut self, now: Instant) {
        if !self.is_open() {
            return;
        }
        if self.idle_deadline().is_some_and(|deadline| now.reached(deadline)) {
            return self.end(CloseReason::IdleTimeout);
        }
        if self.handshake_deadline().is_some_and(|deadline| now.reached(deadline)) {
            return self.close(CloseReason::HandshakeTimeout, 0, false);
        }
        if self.previous_until.is_some_and(|until| now.reached(until)) {
            self.previous_until = None;
        }
        for space in &mut self.spaces {
            if space.ack_at.is_some_and(|at| now.reached(at)) {
                space.ack_now = true;
                space.ack_at = None;
            }
        }
        if !self.loss_deadline().is_some_and(|deadline| now.reached(deadline)) {
            return;
        }
        let mut lost = false;
        for space in SPACES {
            if self.spaces[space as usize].loss_at.is_some_and(|at| now.reached(at)) {
                self.detect_losses(space, u32::MAX, now);
                lost = true;
            }
        }
        if !lost && let Some((space, _)) = self.probe_deadline() {
            self.probe(space);
        }
    }

    /// Sends again what is on its way, without taking it for lost.
    fn probe(&mut self, space: Space) {
        self.recovery.probes += 1;
        self.spaces[space as usize].probe = true;
        for again in SPACES {
            // Before the handshake is confirmed nothing else would repeat early data.
            if again == space || again == Space::Data && !self.confirmed {
                for place in 0..crate::limits::SENT_PACKETS {
                    let content = self.recovery.outstanding(again).nth(place);
                    let Some(content) = content.map(|sent| sent.content) else { break };
                    self.requeue(content);
                }
            }
        }
    }

    /// Packets of `space` that count as lost are sent again. Those below `acked_below` have been followed
    /// by nothing that was acknowledged.
    pub(super) fn detect_losses(&mut self, space: Space, acked_below: u32, now: Instant) {
        let Some(largest) = self.spaces[space as usize].largest_acked else { return };
        let mut span: Option<(Instant, Instant)> = None;
        while let Some(sent) = self.recovery.take_lost(space, largest, now) {
            let (oldest, newest) = span.unwrap_or((sent.at, sent.at));
            let unbroken = sent.number < acked_below;
            span = Some((
                if unbroken { oldest.min(sent.at) } else { oldest },
                if sent.at.reached(newest) { sent.at } else { newest },
            ));
            self.requeue(sent.content);
        }
        if let Some((oldest, newest)) = span {
            self.recovery.on_loss(oldest, newest, self.max_ack_delay_ms, now);
        }
        self.spaces[space as usize].loss_at = self.recovery.loss_deadline(space, largest);
    }

    /// Queues the content of a packet to be sent again.
    pub(super) fn requeue(&mut self, content: Content) {
        self.control |= content.control & !control::RETIRE & !control::PING;
        if content.control & control::RETIRE != 0 {
            // There is room: it was taken out to be sent, and what came since is bounded by the server's
            // need of our answers. If not, the server asks again.
            let _ = self.ids.retire(content.retired);
        }
        if let Some(out) = self.outbound(content.source) {
            out.lose(content.range);
        }
    }

    pub(super) fn outbound(&mut self, source: u8) -> Option<&mut Outbound> {
        let source = usize::from(source);
        match source.checked_sub(FIRST_STREAM) {
            None => self.crypto_out.get_mut(source),
            Some(stream) => self.streams.get_mut(stream).map(|stream| &mut stream.out),
        }
    }

    /// A packet arrived.
    pub(super) fn acknowledged(&mut self, sent: &SentPacket) {
        let content = sent.content;
        let Some(out) = self.outbound(content.source) else { return };
        let moved = out.acknowledge(content.range);
        let stream = usize::from(content.source).checked_sub(FIRST_STREAM);
        if let Some(stream) = stream.and_then(|stream| self.streams.get_mut(stream)) {
            stream.written.copy_within(moved.., 0);
        }
    }

    /// Keys of `space` are no longer needed (RFC 9001, section 4.9).
    pub(super) fn discard(&mut self, space: Space) {
        if self.spaces[space as usize].can_send {
            self.spaces[space as usize].discard();
            while self.recovery.forget_next(space).is_some() {}
            self.recovery.probes = 0;
        }
    }
}

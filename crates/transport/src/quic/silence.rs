//! How long a connection may be silent.
//!
//! QUIC's idle timeout is agreed on in the handshake, before CONNECT contains the client's Keep Alive. So the server
//! agrees to any timeout (`super::config`) and keeps time itself: the listener's idle timeout before CONNECT and for
//! clients without Keep Alive; with one, the client may be silent for as long as that allows, and the core closes the
//! connection. HTTP/3, whose connections may carry WebTransport sessions, keeps time by the same rules
//! (`fulmar-http`).
//!
//! A client may have an idle timeout shorter than the silence that its Keep Alive allows, because libraries have
//! defaults for both. It would close the connection although it kept its Keep Alive. The server therefore sends it a
//! PING (RFC 9000 section 10.1.2) before that. A client that wants to sleep has a long idle timeout and gets none.

use std::time::{Duration, Instant};

use fulmar_broker::grace_after_pause;
use quinn_proto::transport_parameters::TransportParameters;

/// Action when a time is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilenceAction {
    /// A PING, so that the client does not close the connection.
    Ask,
    /// The client has been silent for too long: the connection has ended.
    GiveUp,
}

/// Time for which a QUIC connection has been silent, and what to do about it: a PING, or the end.
#[derive(Debug)]
pub struct Silence {
    received_at: Instant,
    /// The listener's idle timeout.
    limit_ms: u32,
    /// The client's; `u32::MAX` if it has none.
    clients_ms: u32,
    /// Whether the client was pinged since the last packet was received.
    pinged: bool,
}

impl Silence {
    /// For a connection that has just received a packet, at a listener with this idle timeout.
    pub fn new(now: Instant, limit: Duration) -> Silence {
        let limit_ms = milliseconds(limit);
        Silence { received_at: now, limit_ms, clients_ms: u32::MAX, pinged: false }
    }

    /// The idle timeout is another one now.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit_ms = milliseconds(limit);
    }

    /// A datagram for the connection was received.
    pub fn heard(&mut self, now: Instant) {
        self.received_at = now;
        self.pinged = false;
    }

    /// Waits longer, if the end is found so late that the process or the machine was paused. Returns whether it does.
    pub fn excuse_pause(&mut self, late: Duration) -> bool {
        let Some(grace) = grace_after_pause(late) else { return false };
        self.received_at += late + grace;
        true
    }

    /// The client has been sent a PING.
    pub fn has_asked(&mut self) {
        self.pinged = true;
    }

    /// Takes the client's own idle timeout from its transport parameters.
    pub fn learn(&mut self, parameters: &TransportParameters) {
        self.clients_ms = match max_idle_timeout_ms(parameters) {
            0 => u32::MAX,
            ms => u32::try_from(ms).unwrap_or(u32::MAX),
        };
    }

    /// The interval at which to check for received packets, if there is no notification: an eighth of the shortest
    /// timeout, so that a late check still leaves time to ask the client.
    pub fn look_every(&self) -> Duration {
        Duration::from_millis((self.limit_ms.min(self.clients_ms) / 8).max(1).into())
    }

    /// The next action and its time, for a client whose Keep Alive allows this silence, if it has one.
    pub fn next(
        &self,
        allowed: Option<Duration>,
        rtt: Duration,
    ) -> Option<(Instant, SilenceAction)> {
        let Some(allowed) = allowed else {
            return Some((self.after(self.limit_ms, rtt), SilenceAction::GiveUp));
        };
        let own = self.clients_ms;
        if Duration::from_millis(own.into()) >= allowed {
            return None;
        }
        Some(match self.pinged {
            // Time for it to answer, and to be pinged again if that is lost.
            false => (
                self.received_at + Duration::from_millis(u64::from(own) * 2 / 3),
                SilenceAction::Ask,
            ),
            true => (self.after(own, rtt), SilenceAction::GiveUp),
        })
    }

    /// Idle timeouts are no shorter than three probe timeouts (RFC 9000 section 10.1).
    fn after(&self, ms: u32, rtt: Duration) -> Instant {
        self.received_at + Duration::from_millis(ms.into()).max(rtt * 4)
    }
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// The idle timeout among transport parameters, 0 for none. quinn has no other way to read it than to
/// write them all (RFC 9000 section 18).
fn max_idle_timeout_ms(parameters: &TransportParameters) -> u64 {
    const MAX_IDLE_TIMEOUT: u64 = 0x01;
    let mut written = Vec::new();
    parameters.write(&mut written);
    let mut rest = &written[..];
    while let (Some(id), Some(length)) = (varint(&mut rest), varint(&mut rest)) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some((mut value, after)) = rest.split_at_checked(length) else { break };
        if id == MAX_IDLE_TIMEOUT {
            return varint(&mut value).unwrap_or(0);
        }
        rest = after;
    }
    0
}

/// A variable-length integer (RFC 9000 section 16).
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let length = 1 << (bytes.first()? >> 6);
    let (head, tail) = bytes.split_at_checked(length)?;
    *bytes = tail;
    let value = head.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    Some(value & (u64::MAX >> (66 - 8 * length)))
}

#[cfg(test)]
mod tests {
    use quinn_proto::Side;

    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn client(now: Instant, idle_timeout: &[u8]) -> Silence {
        let mut silence = Silence::new(now, seconds(30));
        // Its connection identifier, which is empty, and the timeout.
        let bytes = [&[0x0F, 0x00], idle_timeout].concat();
        let parameters = TransportParameters::read(Side::Server, &mut &bytes[..]);
        silence.learn(&parameters.expect("transport parameters"));
        silence
    }

    #[test]
    fn without_keep_alive_the_listeners_idle_timeout_holds() {
        let now = Instant::now();
        for own in [&[][..], &[0x01, 0x04, 0x80, 0x01, 0x5F, 0x90]] {
            let mut silence = client(now, own);
            assert_eq!(silence.next(None, RTT), Some((now + seconds(30), SilenceAction::GiveUp)));
            silence.heard(now + seconds(29));
            assert_eq!(silence.next(None, RTT), Some((now + seconds(59), SilenceAction::GiveUp)));
            let far = seconds(20);
            assert_eq!(silence.next(None, far), Some((now + seconds(109), SilenceAction::GiveUp)));
        }
    }

    #[test]
    fn a_client_is_not_given_up_for_a_pause_of_the_server() {
        let now = Instant::now();
        let mut silence = client(now, &[]);
        let (late, end) = (seconds(100), now + seconds(30));
        assert!(silence.excuse_pause(late));
        assert_eq!(
            silence.next(None, RTT),
            Some((end + late + seconds(60), SilenceAction::GiveUp))
        );
        assert!(!silence.excuse_pause(Duration::from_millis(3)));
    }

    #[test]
    fn a_keep_alive_holds_where_the_client_waits_as_long_itself() {
        let now = Instant::now();
        // None at all, 0 for none, 90 s, and longer than fits.
        for own in [
            &[][..],
            &[0x01, 0x01, 0x00],
            &[0x01, 0x04, 0x80, 0x01, 0x5F, 0x90],
            &[0x01, 0x08, 0xC0, 0, 0, 1, 0, 0, 0, 0],
        ] {
            assert_eq!(client(now, own).next(Some(seconds(90)), RTT), None, "{own:x?}");
        }
    }

    #[test]
    fn a_client_that_would_let_go_sooner_is_asked_before() {
        let now = Instant::now();
        // 30 s.
        let mut silence = client(now, &[0x01, 0x04, 0x80, 0x00, 0x75, 0x30]);
        let allowed = Some(seconds(90));
        assert_eq!(silence.next(allowed, RTT), Some((now + seconds(20), SilenceAction::Ask)));
        silence.has_asked();
        assert_eq!(silence.next(allowed, RTT), Some((now + seconds(30), SilenceAction::GiveUp)));
        silence.heard(now + seconds(21));
        assert_eq!(silence.next(allowed, RTT), Some((now + seconds(41), SilenceAction::Ask)));
    }
}

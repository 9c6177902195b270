//! The Echo option (RFC 9175 section 2): a peer that returns the server's value has the address that it claims.
//!
//! The value is a time and a MAC over it and the peer, so that nothing is stored for peers that have not answered.

use std::time::{Duration, Instant};

use ring::hmac;

/// Largest age of a returned value.
const FRESH: Duration = Duration::from_secs(60);
/// Bytes of the MAC: an attacker has one guess per datagram.
const MAC_BYTES: usize = 8;

/// Creates and checks values.
#[derive(Debug)]
pub(crate) struct Echo {
    key: hmac::Key,
    start: Instant,
}

impl Echo {
    pub(crate) fn new(secret: &[u8; 32], start: Instant) -> Echo {
        Echo { key: hmac::Key::new(hmac::HMAC_SHA256, secret), start }
    }

    pub(crate) fn value_for(&self, now: Instant, peer: &[u8]) -> Vec<u8> {
        let seconds = self.seconds(now).to_be_bytes();
        let mut value = seconds.to_vec();
        value.extend_from_slice(&self.mac(seconds, peer)[..MAC_BYTES]);
        value
    }

    /// Whether the value was created for this peer recently.
    pub(crate) fn is_fresh(&self, now: Instant, peer: &[u8], value: &[u8]) -> bool {
        let Some((seconds, mac)) = value.split_first_chunk::<4>() else { return false };
        let age = self.seconds(now).wrapping_sub(u32::from_be_bytes(*seconds));
        let expected = self.mac(*seconds, peer);
        let differences = mac.iter().zip(&expected[..MAC_BYTES]).fold(0, |d, (a, b)| d | (a ^ b));
        mac.len() == MAC_BYTES && u64::from(age) <= FRESH.as_secs() && differences == 0
    }

    fn seconds(&self, now: Instant) -> u32 {
        u32::try_from(now.saturating_duration_since(self.start).as_secs()).unwrap_or(u32::MAX)
    }

    fn mac(&self, seconds: [u8; 4], peer: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&seconds);
        context.update(peer);
        let mut mac = [0; 32];
        mac.copy_from_slice(context.sign().as_ref());
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_peer_it_was_made_for_and_only_for_a_while() {
        let start = Instant::now();
        let echo = Echo::new(&[3; 32], start);
        let value = echo.value_for(start, b"a");
        assert!(echo.is_fresh(start + FRESH, b"a", &value));
        assert!(!echo.is_fresh(start + FRESH * 2, b"a", &value));
        assert!(!echo.is_fresh(start, b"b", &value));
        assert!(!echo.is_fresh(start, b"a", &value[..11]));
        assert!(!echo.is_fresh(start, b"a", &[]));
        let mut forged = value.clone();
        forged[11] ^= 1;
        assert!(!echo.is_fresh(start, b"a", &forged));
        assert!(!Echo::new(&[4; 32], start).is_fresh(start, b"a", &value));
    }
}

//! What a client remembers of its server from one connection to the next: session tickets, which are in the
//! TLS configuration, proofs of its address, how long a round trip took, and what was lost.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quinn::TokenMemoryCache;

/// Lets clients return to a server in fewer round trips, and with shorter timeouts.
#[derive(Clone, Default)]
pub struct Tickets {
    pub(crate) tls: Option<rustls::ClientConfig>,
    /// Tokens that prove the client's address to the server at once (RFC 9000 section 8.1.3), which then need not ask
    /// for it, and may send as much as it has to, copies included. Each is used once.
    pub(crate) tokens: Arc<TokenMemoryCache>,
    pub(crate) round_trip: RoundTrip,
    pub(crate) losses: Losses,
}

/// The round-trip time to assume before one was measured (RFC 9002 section 6.2.2); the first probe is sent after
/// three of them.
const USUAL: Duration = Duration::from_millis(333);
/// With less, a slow server's first packets would be sent twice.
const LEAST: Duration = Duration::from_millis(50);

/// The last connection's round-trip time in µs; 0 if unknown.
#[derive(Clone, Default)]
pub(crate) struct RoundTrip(Arc<AtomicU64>);

impl RoundTrip {
    /// The initial round-trip time of the next connection, as RFC 9002 section 6.2.2 allows for the same network. On
    /// another network, the first packet may be sent twice, or its loss be detected late.
    pub(crate) fn to_begin_with(&self) -> Duration {
        match self.0.load(Relaxed) {
            0 => USUAL,
            known => Duration::from_micros(known).max(LEAST),
        }
    }

    /// Stores the round-trip time of a connection. Losses in its handshake may have made that much longer than the
    /// path is, so it grows by a quarter at a time.
    pub(crate) fn store(&self, measured: Duration) {
        let most = USUAL.max(self.to_begin_with() * 5 / 4);
        let kept = measured.min(most).as_micros();
        self.0.store(u64::try_from(kept).unwrap_or(0), Relaxed);
    }
}

/// The share of its packets that the last connection lost, from which address and when. Another address is another
/// network.
#[derive(Clone, Default)]
pub(crate) struct Losses(Arc<Mutex<Option<(IpAddr, Instant, f64)>>>);

/// Time for which the stored loss is used.
const BELIEVED: Duration = Duration::from_secs(3600);

impl Losses {
    /// Returns the loss that a connection from this address is to expect; 0 where nothing is known.
    pub(crate) fn to_expect(&self, local: IpAddr, now: Instant) -> f64 {
        let kept = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |(address, at, _): &(IpAddr, Instant, f64)| {
            *address == local && now.saturating_duration_since(*at) <= BELIEVED
        };
        kept.filter(fits).map_or(0.0, |(_, _, share)| share)
    }

    /// Keeps what a connection has lost.
    pub(crate) fn store(&self, local: IpAddr, now: Instant, share: f64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((local, now, share));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_remembered_for_the_same_network_and_an_hour() {
        let (memory, now) = (Losses::default(), Instant::now());
        let [here, there] = [IpAddr::from([192, 0, 2, 1]), IpAddr::from([198, 51, 100, 1])];
        let expected = |local, after| memory.clone().to_expect(local, now + after);
        assert_eq!(expected(here, Duration::ZERO), 0.0);
        memory.store(here, now, 0.25);
        assert_eq!(expected(here, BELIEVED), 0.25);
        assert_eq!(expected(here, BELIEVED + Duration::from_secs(1)), 0.0);
        assert_eq!(expected(there, Duration::ZERO), 0.0);
    }

    #[test]
    fn a_round_trip_is_remembered_and_a_long_one_believed_step_by_step() {
        let memory = RoundTrip::default();
        let ms = Duration::from_millis;
        assert_eq!(memory.to_begin_with(), USUAL);
        memory.store(ms(100));
        assert_eq!(memory.clone().to_begin_with(), ms(100));
        memory.store(ms(1100));
        assert_eq!(memory.to_begin_with(), USUAL);
        memory.store(ms(700));
        assert_eq!(memory.to_begin_with(), USUAL * 5 / 4);
        for _ in 0..4 {
            memory.store(ms(700));
        }
        assert_eq!(memory.to_begin_with(), ms(700));
        memory.store(ms(2));
        assert_eq!(memory.to_begin_with(), LEAST);
    }
}

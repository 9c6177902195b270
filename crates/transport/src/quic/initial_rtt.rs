//! Configurations for clients whose network has lost packets before, by the round trip that was measured then.
//!
//! A server that knows nothing repeats a lost first flight after a second. RFC 9002 section 6.2.2 allows a new connection
//! over the same network to begin with the round trip of the last one, three of which pass until the first repetition.
//! Round trips are rounded up, so that few configurations serve all connections.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::ServerConfig;

use super::config::QuicSettings;

/// The shortest one; that of a client nearby may come from another machine behind the same address.
const SHORTEST_MS: u64 = 20;
/// Two steps are a factor of two. Beyond the last, 320 ms, the usual 333 ms serve as well.
const STEPS: usize = 9;

/// A configuration for each step, once it was used.
#[derive(Debug, Default)]
pub(super) struct ByRoundTrip([Option<Arc<ServerConfig>>; STEPS]);

impl ByRoundTrip {
    /// For a client with this round trip; `None` if `usual` serves it.
    pub(super) fn config(
        &mut self,
        round_trip: Duration,
        settings: &QuicSettings,
        usual: &ServerConfig,
    ) -> Option<Arc<ServerConfig>> {
        let step = (0..STEPS).find(|step| round_trip <= at(*step))?;
        let config = self.0[step].get_or_insert_with(|| {
            let mut transport = settings.transport();
            transport.initial_rtt(at(step));
            let mut config = usual.clone();
            config.transport_config(Arc::new(transport));
            Arc::new(config)
        });
        Some(Arc::clone(config))
    }
}

fn at(step: usize) -> Duration {
    let doubled = SHORTEST_MS << (step / 2);
    Duration::from_millis(if step.is_multiple_of(2) { doubled } else { doubled * 141 / 100 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_rounded_up_and_long_ones_are_the_usual() {
        let chosen = |ms| (0..STEPS).map(at).find(|at| Duration::from_millis(ms) <= *at);
        let expected = [(0, 20), (20, 20), (21, 28), (70, 80), (100, 112), (300, 320)];
        for (ms, step) in expected {
            assert_eq!(chosen(ms), Some(Duration::from_millis(step)), "{ms}");
        }
        assert_eq!(chosen(321), None);
    }
}

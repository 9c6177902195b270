//! A TCP flow with BBR version 1 (draft-cardwell-iccrg-bbr-congestion-control-00), modelled as far as its share of a
//! bottleneck requires: whole packets, one acknowledgement each, losses without effect. It always has data to send.

use std::collections::VecDeque;
use std::time::Duration;

use super::cubic::PACKET_BYTES;

/// STARTUP's gain, which doubles the rate per round trip, and the gains of the PROBE_BW cycle.
const STARTUP_GAIN: f64 = 2.885;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const WINDOW_GAIN: f64 = 2.0;
/// The rounds of the maximum filter for the rate, and the age of the minimum RTT.
const ROUNDS: usize = 10;
const SHORTEST_FOR: Duration = Duration::from_secs(10);
/// Packets in flight in PROBE_RTT, and its duration.
const FEW: f64 = 4.0;
const PROBE_RTT: Duration = Duration::from_millis(200);

/// Acknowledgements come in bursts, so the fastest delivery exceeds the link's rate.
const BURSTS: f64 = 1.05;

#[derive(Debug, PartialEq)]
enum State {
    /// The highest rate so far, and the rounds that did not raise it.
    Startup(f64, u32),
    Drain,
    /// The phase of the cycle, and its beginning.
    ProbeRate(usize, Duration),
    ProbeRtt(Duration),
}

/// A packet in flight: how much had been delivered when it was sent, and when the last of that was.
#[derive(Debug)]
struct Flying {
    delivered: u64,
    at: Duration,
}

#[derive(Debug)]
pub struct Bbr {
    state: State,
    flying: VecDeque<Flying>,
    next: Duration,
    delivered: u64,
    delivered_at: Duration,
    /// The fastest delivery of each of the last rounds, in packets per second.
    rates: VecDeque<f64>,
    round_ends: u64,
    shortest: Option<(Duration, Duration)>,
    pub delivered_bytes: u64,
}

impl Default for Bbr {
    fn default() -> Bbr {
        Bbr {
            state: State::Startup(0.0, 0),
            flying: VecDeque::new(),
            next: Duration::ZERO,
            delivered: 0,
            delivered_at: Duration::ZERO,
            rates: VecDeque::from([0.0]),
            round_ends: 0,
            shortest: None,
            delivered_bytes: 0,
        }
    }
}

impl Bbr {
    /// Packets per second.
    fn rate(&self) -> f64 {
        let best = self.rates.iter().copied().fold(0.0, f64::max);
        if best > 0.0 { best * BURSTS } else { 200.0 }
    }

    fn gains(&self) -> (f64, f64) {
        match self.state {
            State::Startup(..) => (STARTUP_GAIN, STARTUP_GAIN),
            State::Drain => (1.0 / STARTUP_GAIN, STARTUP_GAIN),
            State::ProbeRate(phase, _) => (CYCLE[phase], WINDOW_GAIN),
            State::ProbeRtt(_) => (1.0, 0.0),
        }
    }

    /// Packets that the path holds without a queue (the BDP).
    fn path(&self) -> f64 {
        self.rate() * self.shortest.map_or(0.05, |(rtt, _)| rtt.as_secs_f64())
    }

    /// When the next packet may be sent, unless acknowledgements must arrive first.
    pub fn next(&self) -> Option<Duration> {
        let window = (self.gains().1 * self.path()).max(FEW);
        ((self.flying.len() as f64) < window).then_some(self.next)
    }

    pub fn sent(&mut self, now: Duration) {
        if self.flying.is_empty() {
            self.delivered_at = now;
        }
        self.flying.push_back(Flying { delivered: self.delivered, at: self.delivered_at });
        self.next = now + Duration::from_secs_f64(1.0 / (self.gains().0 * self.rate()));
    }

    pub fn lost(&mut self, now: Duration) {
        self.flying.pop_front();
        self.go_on(now, false);
    }

    pub fn acknowledged(&mut self, now: Duration, rtt: Duration) {
        let Some(packet) = self.flying.pop_front() else { return };
        self.delivered += 1;
        self.delivered_at = now;
        self.delivered_bytes += PACKET_BYTES as u64;
        let round = packet.delivered >= self.round_ends;
        if round {
            self.round_ends = self.delivered;
            self.rates.push_front(0.0);
            self.rates.truncate(ROUNDS);
        }
        let elapsed = now.saturating_sub(packet.at).as_secs_f64();
        if elapsed > 0.0 {
            let rate = (self.delivered - packet.delivered) as f64 / elapsed;
            self.rates[0] = self.rates[0].max(rate);
        }
        let old = self.shortest.is_none_or(|(_, at)| now > at + SHORTEST_FOR);
        if old && self.shortest.is_some() && !matches!(self.state, State::ProbeRtt(_)) {
            self.state = State::ProbeRtt(now + rtt + PROBE_RTT);
        }
        if old || self.shortest.is_some_and(|(shortest, _)| rtt <= shortest) {
            self.shortest = Some((rtt, now));
        }
        self.go_on(now, round);
    }

    fn go_on(&mut self, now: Duration, round: bool) {
        let (rate, flying, path) = (self.rate(), self.flying.len() as f64, self.path());
        let rtt = self.shortest.map_or(PROBE_RTT, |(rtt, _)| rtt);
        match self.state {
            State::Startup(best, _) if round && rate > best * 1.25 => {
                self.state = State::Startup(rate, 0);
            }
            State::Startup(_, 2) if round => self.state = State::Drain,
            State::Startup(best, rounds) if round => self.state = State::Startup(best, rounds + 1),
            State::Drain if flying <= path => self.state = State::ProbeRate(2, now),
            State::ProbeRate(phase, since) => {
                let over = now > since + rtt;
                let next = match phase {
                    // Until the queue holds the packets of the probe, or a packet was lost.
                    0 => over && (flying >= 1.25 * path || now > since + 2 * rtt),
                    1 => over || flying <= path,
                    _ => over,
                };
                if next {
                    self.state = State::ProbeRate((phase + 1) % CYCLE.len(), now);
                }
            }
            State::ProbeRtt(until) if now > until => {
                self.shortest = self.shortest.map(|(rtt, _)| (rtt, now));
                self.state = State::ProbeRate(2, now);
            }
            _ => {}
        }
    }
}

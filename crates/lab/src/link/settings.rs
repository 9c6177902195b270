//! Settings of links as text: `loss = 5%`, `up.rate = 64k`, the same on the command line, in experiment files and in
//! profiles.

use std::path::Path;
use std::sync::Arc;

use super::{
    Bursts, ConfigError, Impairments, JitterShape, LinkConfig, NatChange, NatConfig, QueueKind,
    QueueLimit, Rate, Trace,
};
use crate::units::{UnitError, parse_rate, parse_share, parse_size, parse_time};

/// The settings of a link and their meanings. Those before `nat-rebind-every` are per direction: `loss` sets both,
/// `up.loss` and `down.loss` one.
pub const SETTINGS: &[(&str, &str)] = &[
    ("delay", "one-way delay: 150ms"),
    ("jitter", "spread of the delay: 20ms"),
    ("jitter-shape", "uniform (within ± jitter) or normal (jitter is the standard deviation)"),
    ("jitter-reorders", "yes: jitter may let packets overtake; no: order is kept (default)"),
    ("rate", "bits per second: 64k, 1.5M; or unlimited"),
    ("trace", "file of a recorded link in Mahimahi's format, instead of rate"),
    ("queue", "drop-tail (default), codel or fq-codel"),
    ("queue-limit", "capacity of the queue: 64kB, or 200ms of the rate (default, at least 15kB)"),
    ("loss", "random loss: 5% or 0.05"),
    ("drop-every", "drop every Nth packet of each flow: 10; 0: none"),
    ("bursts", "Gilbert-Elliott loss, per packet: to-bad,to-good[,loss-good,loss-bad]: 1%,30%"),
    ("corrupt", "share of packets with a flipped bit: 0.1%"),
    ("corrupt-valid", "share of those that arrive as wrong data, with a right checksum: 20%"),
    ("duplicate", "share of packets that arrive twice: 1%"),
    ("reorder", "share of packets that are held back; needs reorder-by: 1%"),
    ("reorder-by", "how long they are held back: 20ms"),
    ("mtu", "largest IP packet in bytes: 1280; larger ones get an ICMP answer"),
    ("mtu-silent", "yes: without the ICMP answer"),
    ("down", "outages, from-to: 10s-12s,30s-31s"),
    ("down-every", "interval between outages, the first after one interval: 30s; needs down-for"),
    ("down-for", "duration of each such outage: 2s"),
    ("nat-rebind-every", "interval at which a NAT before the first host forgets its mappings: 10s"),
    ("nat-rebind-at", "times at which it does: 5s,12s"),
    ("nat-change", "what a rebinding changes: port (default) or address"),
    ("address-change-every", "interval at which the first host gets another address: 10s"),
    ("address-change-at", "times at which it does: 5s,12s"),
    ("address-change-of", "host whose address changes: first (default) or second"),
    ("profile", "a named link to start from; see `fulmar lab link --list`"),
];

impl LinkConfig {
    /// Sets one setting from text.
    ///
    /// # Errors
    /// Unknown key, or a value that cannot be read; the error says what is allowed. Whether the
    /// settings go together is said by [`LinkConfig::check`].
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let explain = |reason: String| ConfigError::new(key, reason);
        let (name, up, down) = match key.split_once('.') {
            Some(("up", name)) => (name, true, false),
            Some(("down", name)) => (name, false, true),
            _ => (key, true, true),
        };
        if self.set_whole(name, value).map_err(|error| explain(error.0))? {
            return if up && down {
                Ok(())
            } else {
                Err(explain(format!("`{name}` applies to both directions; remove the prefix")))
            };
        }
        for impairments in
            [up.then_some(&mut self.up), down.then_some(&mut self.down)].into_iter().flatten()
        {
            impairments.set(name, value).map_err(|error| explain(error.0))?;
        }
        Ok(())
    }

    /// Settings of the whole link; false if `name` is not one.
    fn set_whole(&mut self, name: &str, value: &str) -> Result<bool, Reason> {
        match name {
            "profile" => {
                *self =
                    crate::profile::find(value).map_err(|error| Reason(error.to_string()))?.link;
            }
            "nat-rebind-every" => self.nat().rebind.every = parse_time(value)?,
            "nat-rebind-at" => self.nat().rebind.at = list(value, parse_time)?,
            "nat-change" => {
                self.nat().change =
                    choice(value, &[("port", NatChange::Port), ("address", NatChange::Address)])?;
            }
            "address-change-every" => self.address_changes.every = parse_time(value)?,
            "address-change-at" => self.address_changes.at = list(value, parse_time)?,
            "address-change-of" => {
                self.second_moves = choice(value, &[("first", false), ("second", true)])?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn nat(&mut self) -> &mut NatConfig {
        self.nat.get_or_insert_with(|| NatConfig {
            rebind: Default::default(),
            change: NatChange::Port,
        })
    }
}

impl Impairments {
    fn set(&mut self, name: &str, value: &str) -> Result<(), Reason> {
        match name {
            "delay" => self.delay = parse_time(value)?,
            "jitter" => self.jitter = parse_time(value)?,
            "jitter-shape" => {
                let shapes = [("uniform", JitterShape::Uniform), ("normal", JitterShape::Normal)];
                self.jitter_shape = choice(value, &shapes)?;
            }
            "jitter-reorders" => self.jitter_reorders = yes_or_no(value)?,
            "rate" if value == "unlimited" => self.rate = Rate::Unlimited,
            "rate" => self.rate = Rate::Constant(parse_rate(value)?),
            "trace" => self.rate = Rate::Trace(read_trace(Path::new(value))?),
            "queue" => {
                let kinds = [
                    ("drop-tail", QueueKind::DropTail),
                    ("codel", QueueKind::Codel),
                    ("fq-codel", QueueKind::FqCodel),
                ];
                self.queue = choice(value, &kinds)?;
            }
            "queue-limit" => {
                self.queue_limit = Some(match parse_time(value) {
                    Ok(time) if time > 0 => QueueLimit::Time(time),
                    _ => QueueLimit::Bytes(parse_size(value)?),
                });
            }
            "loss" => self.loss = parse_share(value)?,
            "drop-every" => self.drop_every = count(value)?,
            "bursts" => self.bursts = Some(bursts(value)?),
            "corrupt" => self.corrupt = parse_share(value)?,
            "corrupt-valid" => self.corrupt_valid = parse_share(value)?,
            "duplicate" => self.duplicate = parse_share(value)?,
            "reorder" => self.reorder = parse_share(value)?,
            "reorder-by" => self.reorder_by = parse_time(value)?,
            "mtu" => {
                let bytes = parse_size(value)?;
                let range = "must be 68 to 65535 bytes";
                self.mtu = Some(u16::try_from(bytes).map_err(|_| Reason(range.into()))?);
            }
            "mtu-silent" => self.mtu_silent = yes_or_no(value)?,
            "down" => self.outage.windows = list(value, window)?,
            "down-every" => self.outage.every = parse_time(value)?,
            "down-for" => self.outage.lasting = parse_time(value)?,
            _ => {
                let known: Vec<_> = SETTINGS.iter().map(|(key, _)| *key).collect();
                return Err(Reason(format!("unknown setting; use one of: {}", known.join(", "))));
            }
        }
        Ok(())
    }
}

/// Fault in a value.
struct Reason(String);

impl From<UnitError> for Reason {
    fn from(error: UnitError) -> Reason {
        Reason(error.to_string())
    }
}

fn choice<T: Copy>(value: &str, choices: &[(&str, T)]) -> Result<T, Reason> {
    choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        Reason(format!("{value:?} is not one of {}", names.join(", ")))
    })
}

fn yes_or_no(value: &str) -> Result<bool, Reason> {
    choice(value, &[("yes", true), ("no", false), ("true", true), ("false", false)])
}

fn count(value: &str) -> Result<u64, Reason> {
    value.parse().map_err(|_| Reason(format!("{value:?} is not a whole number, 0 or more")))
}

fn list<T, E>(value: &str, read: impl Fn(&str) -> Result<T, E>) -> Result<Vec<T>, Reason>
where
    Reason: From<E>,
{
    value.split(',').map(|part| read(part.trim()).map_err(Reason::from)).collect()
}

fn window(text: &str) -> Result<(u64, u64), Reason> {
    let (from, to) = text
        .split_once('-')
        .ok_or_else(|| Reason(format!("{text:?} is not an outage such as 10s-12s")))?;
    Ok((parse_time(from)?, parse_time(to)?))
}

fn bursts(value: &str) -> Result<Bursts, Reason> {
    let probabilities = list(value, parse_share)?;
    match probabilities[..] {
        [to_bad, to_good] => Ok(Bursts { to_bad, to_good, loss_good: 0.0, loss_bad: 1.0 }),
        [to_bad, to_good, loss_good, loss_bad] => {
            Ok(Bursts { to_bad, to_good, loss_good, loss_bad })
        }
        _ => Err(Reason("expected to-bad,to-good or to-bad,to-good,loss-good,loss-bad".into())),
    }
}

fn read_trace(path: &Path) -> Result<Arc<Trace>, Reason> {
    let reason = |error: &dyn std::fmt::Display| Reason(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| reason(&error))?;
    Trace::parse(&text).map(Arc::new).map_err(|error| reason(&error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::units::{MILLISECOND, SECOND};

    #[test]
    fn settings_reach_one_direction_or_both() {
        let mut link = LinkConfig::default();
        link.set("delay", "150ms").unwrap();
        link.set("up.rate", "64k").unwrap();
        link.set("down.bursts", "1%,30%").unwrap();
        assert_eq!((link.up.delay, link.down.delay), (150 * MILLISECOND, 150 * MILLISECOND));
        assert_eq!((&link.up.rate, &link.down.rate), (&Rate::Constant(64_000), &Rate::Unlimited));
        assert_eq!(link.down.bursts.map(|bursts| bursts.loss_bad), Some(1.0));
        link.set("down", "1s-2s, 5s-6s").unwrap();
        assert_eq!(link.up.outage.windows, [(SECOND, 2 * SECOND), (5 * SECOND, 6 * SECOND)]);
        link.set("nat-rebind-every", "3s").unwrap();
        assert_eq!(link.nat.as_ref().map(|nat| nat.rebind.every), Some(3 * SECOND));
        link.check().unwrap();
    }

    #[test]
    fn every_setting_that_is_listed_can_be_set() {
        for (key, _) in SETTINGS {
            let error = LinkConfig::default().set(key, "nonsense").unwrap_err();
            assert!(!error.reason.contains("unknown setting"), "{error}");
        }
    }

    #[test]
    fn mistakes_say_what_is_allowed() {
        let said =
            |key: &str, value: &str| LinkConfig::default().set(key, value).unwrap_err().to_string();
        assert!(said("los", "5%").contains("loss"), "{}", said("los", "5%"));
        assert!(said("up.queue", "red").contains("fq-codel"));
        assert!(said("loss", "5 of 100").contains("5%"));
        assert!(said("up.nat-change", "port").contains("prefix"));
        assert!(said("sideways.loss", "5%").contains("unknown setting"));
        assert!(said("trace", "/nonexistent").contains("/nonexistent"));
    }
}

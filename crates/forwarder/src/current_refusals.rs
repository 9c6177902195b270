//! What the upstream broker or the local one currently refuses, as metrics and as text for the operator, who has to
//! act on it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fulmar_mqtt::ReasonCode;

use super::wall_clock::time_of;

/// Maximum number of lines of text of each kind.
const MAX_SHOWN: usize = 20;

/// A refusal that lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// A topic, a filter, or the error of the connection.
    pub(super) what: String,
    pub(super) reason: ReasonCode,
    /// Since when, in milliseconds since the Unix epoch.
    pub(super) since_ms: u64,
}

/// All that is refused now.
#[derive(Clone, Debug, Default)]
pub(crate) struct CurrentRefusals {
    /// The connection; at most one.
    pub(super) connection: Option<Refused>,
    /// Topics whose messages wait.
    pub(super) topics: Vec<Refused>,
    /// Subscriptions of `[[upstream.down]]`.
    pub(super) filters: Vec<Refused>,
    /// Topics of messages from upstream that the local broker refuses.
    pub(super) down: Vec<Refused>,
}

impl CurrentRefusals {
    fn kinds(&self) -> [(&'static str, &[Refused]); 4] {
        [
            ("connection", self.connection.as_slice()),
            ("publish", &self.topics),
            ("subscribe", &self.filters),
            ("deliver", &self.down),
        ]
    }

    /// Numbers by kind and reason.
    pub(super) fn counts(&self) -> BTreeMap<(&'static str, String), u64> {
        let mut counts = BTreeMap::new();
        for (kind, refused) in self.kinds() {
            for one in refused {
                *counts.entry((kind, label(one.reason))).or_default() += 1;
            }
        }
        counts
    }

    /// When the oldest began.
    pub(super) fn since_ms(&self) -> Option<u64> {
        self.kinds().iter().flat_map(|(_, all)| all.iter()).map(|one| one.since_ms).min()
    }

    /// Text for the operator; empty if nothing is refused. `label` is the upstream broker's name, if it has one.
    pub(super) fn text(&self, label: Option<&str>) -> String {
        let mut text = String::new();
        let upstream =
            label.map_or_else(|| "upstream".to_owned(), |label| format!("upstream {label}"));
        for (kind, all) in self.kinds() {
            for one in all.iter().take(MAX_SHOWN) {
                let what = match kind {
                    "connection" => one.what.clone(),
                    "publish" => format!("publishing to {:?} is refused", one.what),
                    "deliver" => {
                        format!("delivering to {:?} is refused by the local broker", one.what)
                    }
                    _ => format!("subscribing to {:?} is refused", one.what),
                };
                // Writing to a string cannot fail.
                let since = time_of(one.since_ms);
                let _ = writeln!(text, "{upstream}: {what}: {}, since {since}", one.reason);
            }
            if all.len() > MAX_SHOWN {
                let _ = writeln!(text, "{upstream}: and {} more", all.len() - MAX_SHOWN);
            }
        }
        text
    }
}

/// A reason as a label: `not_authorized`.
fn label(reason: ReasonCode) -> String {
    reason.text().to_lowercase().replace([' ', '-'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_counted_by_reason_and_named() {
        let refused = |what: &str, since_ms| Refused {
            what: what.into(),
            reason: ReasonCode::NotAuthorized,
            since_ms,
        };
        let mut refusals = CurrentRefusals::default();
        assert_eq!((refusals.text(None), refusals.since_ms()), (String::new(), None));
        refusals.topics = vec![refused("a/1", 60_000), refused("a/2", 1_000)];
        assert_eq!(
            refusals.counts(),
            BTreeMap::from([(("publish", "not_authorized".to_owned()), 2)])
        );
        assert_eq!(refusals.since_ms(), Some(1_000));
        let expected = "upstream: publishing to \"a/1\" is refused: Not authorized (0x87), since 1970-01-01T00:01:00Z\n";
        assert!(refusals.text(None).starts_with(expected), "{}", refusals.text(None));
        assert!(refusals.text(Some("cloud")).starts_with("upstream cloud: publishing to"));
    }
}

//! The health of the server: one verdict with its reasons, for the page and for `fulmar ctl status`.

use serde::Serialize;
use utoipa::ToSchema;

use crate::server::{Certificate, ServerState, Upstream};

const DAY_MS: u64 = 86_400_000;
/// A certificate that ends within this time wants attention, unless the server replaces it.
const SOON_MS: u64 = 21 * DAY_MS;
/// The share of a budget above which it wants attention, in percent.
const NEARLY_FULL: u64 = 90;

/// The urgency: nothing to do, to be examined, or something does not work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    #[default]
    Good,
    Warn,
    Bad,
}

/// A condition that wants attention.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Reason {
    /// The urgency.
    verdict: Verdict,
    /// The condition, and the next step.
    text: String,
}

/// The verdict, and what leads to it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// The most urgent of the reasons.
    verdict: Verdict,
    /// The most urgent first; empty if all is well.
    reasons: Vec<Reason>,
}

/// A part of a budget: of which, the part, and bytes used and available.
pub(crate) type Part<'a> = (&'static str, &'a str, u64, u64);

impl Health {
    pub(crate) fn new<'a>(
        now_ms: u64,
        storage_problem: Option<&str>,
        server: &ServerState,
        budgets: impl Iterator<Item = Part<'a>>,
    ) -> Health {
        let storage = storage_problem.map(|problem| {
            format!("Messages cannot be stored: {problem}. Publishers are refused until that works again.")
        });
        let cut_off = server.cluster.as_ref().filter(|cluster| !cluster.is_connected);
        let cut_off = cut_off.map(|_| "NATS does not answer; nothing is acknowledged.".to_owned());
        let budgets = budgets.filter_map(|(budget, part, used, limit)| {
            let percent = used.saturating_mul(100) / limit.max(1);
            let full = format!(
                "The {budget} budget for {part} is {percent} % full; above it, the broker refuses."
            );
            let text = format!("{full} Raise [limits] {budget}.");
            (percent > NEARLY_FULL).then_some((Verdict::Warn, text))
        });
        let found = storage.into_iter().chain(cut_off).map(|text| (Verdict::Bad, text));
        let found =
            found.chain(server.certificates.iter().filter_map(|one| of_certificate(one, now_ms)));
        let found = found.chain(server.upstreams.iter().filter_map(|one| of_upstream(one, now_ms)));
        let mut reasons: Vec<Reason> =
            found.chain(budgets).map(|(verdict, text)| Reason { verdict, text }).collect();
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.verdict));
        let verdict = reasons.first().map(|reason| reason.verdict).unwrap_or_default();
        Health { verdict, reasons }
    }
}

fn of_certificate(one: &Certificate, now_ms: u64) -> Option<(Verdict, String)> {
    let left = one.expires_ms.saturating_sub(now_ms);
    // One that the server replaces may be short-lived: then it is replaced in time.
    let (verdict, when) = match left {
        0 => (Verdict::Bad, "has expired: clients refuse it".to_owned()),
        1..SOON_MS if !one.is_renewed => {
            (Verdict::Warn, format!("expires in {} days", left / DAY_MS))
        }
        _ => return None,
    };
    let first = if one.renewed_at_reload { "R" } else { "Replace it, then r" };
    Some((
        verdict,
        format!("The certificate “{}” {when}. {first}eload the server (SIGHUP).", one.name),
    ))
}

fn of_upstream(one: &Upstream, now_ms: u64) -> Option<(Verdict, String)> {
    let name = one.name.as_deref().unwrap_or("Upstream broker");
    if !one.problem.is_empty() {
        return Some((Verdict::Bad, format!("{name}: {}", one.problem)));
    }
    let since = one.down_since_ms.filter(|_| one.transport.is_none())?;
    let minutes = now_ms.saturating_sub(since) / 60_000;
    let why = one.down_reason.as_deref().unwrap_or_default();
    let text =
        format!("{name} is not connected for {minutes} min ({why}); messages wait in the outbox.");
    Some((Verdict::Warn, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(server: &ServerState, storage: Option<&str>, full: u64) -> Vec<String> {
        let health =
            Health::new(DAY_MS, storage, server, [("disk", "store", full, 100)].into_iter());
        assert_eq!(health.verdict == Verdict::Good, health.reasons.is_empty());
        let first = health.reasons.first().map_or(Verdict::Good, |reason| reason.verdict);
        assert_eq!(health.verdict, first);
        health
            .reasons
            .into_iter()
            .map(|reason| format!("{:?} {}", reason.verdict, reason.text))
            .collect()
    }

    #[test]
    fn what_is_most_urgent_comes_first_with_its_reason() {
        let certificate = |expires_ms, is_renewed| Certificate {
            name: "listeners",
            expires_ms,
            is_renewed,
            renewed_at_reload: false,
        };
        let upstream = |transport| Upstream {
            transport,
            down_since_ms: Some(DAY_MS - 300_000),
            down_reason: Some("no route to host".to_owned()),
            ..Upstream::default()
        };
        let mut server = ServerState {
            certificates: vec![certificate(2 * DAY_MS, true), certificate(30 * DAY_MS, false)],
            upstreams: vec![upstream(Some("quic"))],
            ..ServerState::default()
        };
        assert!(health(&server, None, 90).is_empty());
        server.certificates = vec![certificate(5 * DAY_MS, false), certificate(DAY_MS, true)];
        server.upstreams = vec![upstream(None)];
        let found = health(&server, Some("the disk is full"), 91);
        let expected = [
            "Bad Messages cannot be stored: the disk is full",
            "Bad The certificate “listeners” has expired",
            "Warn The certificate “listeners” expires in 4 days",
            "Warn Upstream broker is not connected for 5 min (no route to host)",
            "Warn The disk budget for store is 91 % full",
        ];
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }
}

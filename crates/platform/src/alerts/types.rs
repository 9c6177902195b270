//! The types of rules and alerts.

use super::machine::{Condition, LimitSide};
use crate::measurements::Quantity;
use crate::values::*;

words! {
    /// The severity of an alert.
    Severity {
        /// For information.
        Info = "info",
        /// Requires an action.
        Warning = "warning",
        /// Requires an action at once.
        Critical = "critical",
    }
}

words! {
    /// The state of an alert.
    AlertState {
        /// The value violates the limit, and the alert is not acknowledged.
        Active = "active",
        /// The value violates the limit, and the alert is acknowledged.
        Acknowledged = "acknowledged",
        /// The value is within the limit again.
        Cleared = "cleared",
    }
}

words! {
    /// An event of an alert.
    AlertEvent {
        /// The value violates the limit.
        Raised = "raised",
        /// The value is within the limit again.
        Cleared = "cleared",
        /// The alert was acknowledged.
        Acknowledged = "acknowledged",
    }
}

/// When sensors' measurements, or their absence, raise an alert. Exactly one of `above`, `below` and `silent_s` is
/// set.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Rule {
    pub(crate) id: Name,
    pub(crate) name: String,
    /// The quantity; null, only with `silent_s`, for all quantities of a device.
    pub(crate) quantity: Option<Quantity>,
    /// The home; null for all.
    pub(crate) home: Option<Name>,
    pub(crate) severity: Severity,
    /// Values above this limit raise an alert, in the quantity's unit.
    pub(crate) above: Option<f64>,
    /// Values below this limit raise an alert.
    pub(crate) below: Option<f64>,
    /// Values at this or beyond it clear the alert; null for the limit itself.
    pub(crate) clear: Option<f64>,
    /// Time for which the value must violate the limit, in seconds.
    pub(crate) for_s: u32,
    /// The averaging time in seconds; 0 for single values.
    pub(crate) averaging_s: u32,
    /// Seconds without a measurement after which an alert is raised.
    pub(crate) silent_s: Option<u32>,
    /// The source of the limit.
    pub(crate) source: Option<String>,
    pub(crate) enabled: bool,
    pub(crate) etag: String,
}

/// A new rule.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewRule {
    /// Generated if missing.
    pub(crate) id: Option<Name>,
    pub(crate) name: Title,
    pub(crate) quantity: Option<Quantity>,
    pub(crate) home: Option<Name>,
    pub(crate) severity: Severity,
    pub(crate) above: Option<Amount>,
    pub(crate) below: Option<Amount>,
    pub(crate) clear: Option<Amount>,
    #[serde(default)]
    #[schema(maximum = 2592000)]
    pub(crate) for_s: u32,
    #[serde(default)]
    #[schema(maximum = 2592000)]
    pub(crate) averaging_s: u32,
    #[schema(minimum = 60, maximum = 2592000)]
    pub(crate) silent_s: Option<u32>,
    pub(crate) source: Option<Note>,
    /// The default is true.
    pub(crate) enabled: Option<bool>,
}

/// A violation of a rule, now or in the past.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Alert {
    pub(crate) id: Uuid,
    pub(crate) rule: Name,
    pub(crate) rule_name: String,
    /// The sensor's home when the alert was raised.
    pub(crate) home: Option<Name>,
    pub(crate) home_name: Option<String>,
    pub(crate) device: Name,
    pub(crate) quantity: Option<Quantity>,
    pub(crate) severity: Severity,
    pub(crate) state: AlertState,
    /// The rule's last value: a measurement or a mean; null for silence.
    pub(crate) value: Option<f64>,
    /// The value furthest beyond the limit so far.
    pub(crate) peak: Option<f64>,
    /// The unit of value, peak and threshold.
    pub(crate) unit: String,
    /// The rule's limit when the alert was raised.
    pub(crate) threshold: f64,
    /// The time of the measurement that raised the alert.
    pub(crate) raised_at: Time,
    /// When the platform detected the violation: later than `raised_at`, if measurements were late.
    pub(crate) noticed_at: Time,
    /// Whether the violation was detected more than ten minutes after the measurement.
    pub(crate) late: bool,
    /// The time of the measurement that cleared the alert.
    pub(crate) cleared_at: Option<Time>,
    pub(crate) acknowledged_at: Option<Time>,
    pub(crate) acknowledged_by: Option<Name>,
    pub(crate) note: Option<String>,
}

page_query! {
    /// Selects alerts.
    AlertQuery, 1000 {
        state: AlertState,
        /// Only of this home.
        home: Name,
        /// Only alerts noticed at this time or later.
        since: Time,
    }
}

/// Alerts detected later than this after the measurement are late.
const LATE_MS: i64 = 10 * 60 * SECOND_MS;

impl Alert {
    /// A new alert of this rule about a device; what is not known yet is for the caller to set.
    pub(crate) fn new(rule: &Rule, device: &Name, raised_at: Time, noticed_at: Time) -> Alert {
        Alert {
            id: Uuid::new_v4(),
            rule: rule.id.clone(),
            rule_name: rule.name.clone(),
            home: None,
            home_name: None,
            device: device.clone(),
            quantity: rule.quantity.clone(),
            severity: rule.severity,
            state: AlertState::Active,
            value: None,
            peak: None,
            unit: "s".to_owned(),
            threshold: rule.threshold(),
            raised_at,
            noticed_at,
            late: false,
            cleared_at: None,
            acknowledged_at: None,
            acknowledged_by: None,
            note: None,
        }
    }

    /// The notification of an event.
    pub(crate) fn notification(&self, event: AlertEvent) -> AlertNotification {
        AlertNotification { event, alert: self.clone() }
    }

    /// Sets the values that follow from others.
    pub(crate) fn finished(mut self) -> Alert {
        self.late = self.noticed_at.ms_since(self.raised_at) > LATE_MS;
        self.state = match (self.cleared_at, self.acknowledged_at) {
            (Some(_), _) => AlertState::Cleared,
            (None, Some(_)) => AlertState::Acknowledged,
            (None, None) => AlertState::Active,
        };
        self
    }
}

/// A change of an alert, for subscribers and webhooks.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AlertNotification {
    pub(crate) event: AlertEvent,
    pub(crate) alert: Alert,
}

impl Rule {
    /// The condition for the rule's machine; `None` if the rule is about silence.
    pub(crate) fn condition(&self, gap_ms: i64) -> Option<Condition> {
        let (side, limit) = match (self.above, self.below) {
            (Some(limit), _) => (LimitSide::Above, limit),
            (None, Some(limit)) => (LimitSide::Below, limit),
            (None, None) => return None,
        };
        Some(Condition {
            side,
            limit,
            clear: self.clear.unwrap_or(limit),
            for_ms: i64::from(self.for_s) * SECOND_MS,
            averaging_ms: i64::from(self.averaging_s) * SECOND_MS,
            gap_ms,
        })
    }

    /// The limit as a number.
    pub(crate) fn threshold(&self) -> f64 {
        self.above.or(self.below).or(self.silent_s.map(f64::from)).unwrap_or_default()
    }

    /// Checks that the rule is consistent: one limit, and the other values on the correct side of it.
    pub(crate) fn check(&self) -> Result<()> {
        let limits = [self.above.is_some(), self.below.is_some(), self.silent_s.is_some()];
        if limits.iter().filter(|set| **set).count() != 1 {
            let detail = "expected exactly one of above, below and silent_s";
            return Err(Problem::invalid("above", detail));
        }
        if self.silent_s.is_none() && self.quantity.is_none() {
            return Err(Problem::invalid("quantity", "expected a quantity"));
        }
        let wanted = match (self.above, self.below, self.clear) {
            (Some(above), _, Some(clear)) if clear > above => {
                Some("expected a value at or below `above`")
            }
            (_, Some(below), Some(clear)) if clear < below => {
                Some("expected a value at or above `below`")
            }
            (None, None, Some(_)) => Some("only a rule with `above` or `below` has this value"),
            _ => None,
        };
        if let Some(wanted) = wanted {
            return Err(Problem::invalid("clear", wanted));
        }
        for (field, seconds, range) in [
            ("for_s", Some(self.for_s), 0..=MAX_RULE_S),
            ("averaging_s", Some(self.averaging_s), 0..=MAX_RULE_S),
            ("silent_s", self.silent_s, 60..=MAX_RULE_S),
        ] {
            if seconds.is_some_and(|seconds| !range.contains(&seconds)) {
                let (least, most) = range.into_inner();
                return Err(Problem::invalid(field, format!("expected {least} to {most}")));
            }
        }
        Ok(())
    }
}

/// Longest duration, average and silence: 30 days.
const MAX_RULE_S: u32 = 30 * 24 * 3600;

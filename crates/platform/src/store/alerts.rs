//! Rules, their state between measurements, and alerts in the database.

use super::filter::Column;
use super::prelude::*;
use crate::alerts::machine::Machine;
use crate::alerts::types::{Alert, AlertQuery, AlertState, Rule};
use crate::measurements::Quantity;

const RULE: &str =
    "r.id, r.name, r.quantity, r.home, r.severity, r.above, r.below, r.clear, r.for_s,
    r.averaging_s, r.silent_s, r.source, r.enabled, '\"r' || r.revision || '\"'";

from_row! {
    Rule {
        id, name, quantity, home, severity, above, below, clear, for_s, averaging_s, silent_s, source, enabled, etag
    }
    Silence { rule, twin, home, device, last_at }
    Alert {
        id, rule, rule_name, home, home_name, device, quantity, severity, state = AlertState::Active, value, peak, unit,
        threshold, raised_at, noticed_at, late = false, cleared_at, acknowledged_at, acknowledged_by, note,
    }.finished
}

pub(crate) fn rule_of(db: TwinDb<'_>, id: &str) -> Result<Option<Rule>> {
    let sql = format!("SELECT {RULE} FROM alert_rule r WHERE r.twin = ?1 AND r.id = ?2");
    db.find(&sql, [db.twin, id])
}

/// Up to `limit` rules in the order of their identifiers, after `after`.
pub(crate) fn rules(db: TwinDb<'_>, after: &str, limit: usize) -> Result<Vec<Rule>> {
    let sql = format!(
        "SELECT {RULE} FROM alert_rule r WHERE r.twin = ?1 AND r.id > ?2 ORDER BY r.id LIMIT ?3"
    );
    db.list(&sql, params![db.twin, after, limit])
}

/// Number of rules that the twin has.
pub(crate) fn count_rules(db: TwinDb<'_>) -> Result<usize> {
    db.get("SELECT count(*) FROM alert_rule WHERE twin = ?1", [db.twin])
}

/// The rules for this home only.
pub(crate) fn rules_of_home(db: TwinDb<'_>, home: &str) -> Result<Vec<Name>> {
    db.list("SELECT id FROM alert_rule WHERE twin = ?1 AND home = ?2", [db.twin, home])
}

/// The rules that apply to a quantity in a home, or to a device without a home.
pub(crate) fn rules_for(db: TwinDb<'_>, quantity: &str, home: Option<&str>) -> Result<Vec<Rule>> {
    let sql = format!(
        "SELECT {RULE} FROM alert_rule r WHERE r.twin = ?1 AND r.quantity = ?2 AND r.enabled = 1
         AND r.silent_s IS NULL AND (r.home IS NULL OR r.home = ?3) ORDER BY r.id"
    );
    db.list(&sql, params![db.twin, quantity, home])
}

/// Creates or replaces a rule, and deletes its state.
pub(crate) fn put_rule(db: TwinDb<'_>, rule: &Rule) -> Result<()> {
    let columns = columns!(
        rule; id, name, quantity, home, severity, above, below, clear, for_s, averaging_s, silent_s, source, enabled
    );
    filter::upsert(db, "alert_rule", columns, "")?;
    let sql = "DELETE FROM alert_state WHERE twin = ?1 AND rule = ?2";
    db.execute(sql, params![db.twin, rule.id]).map(drop)
}

/// Removes a rule; its alerts stay.
pub(crate) fn remove_rule(db: TwinDb<'_>, id: &str) -> Result<()> {
    db.execute("DELETE FROM alert_rule WHERE twin = ?1 AND id = ?2", [db.twin, id]).map(drop)
}

/// Creates the default rules of each twin, once.
pub(crate) fn make_usual_rules(db: &Db) -> Result<()> {
    let twins: Vec<Name> = db.list("SELECT id FROM twin WHERE rules_made = 0", ())?;
    for twin in twins {
        for rule in crate::alerts::defaults::rules() {
            put_rule(db.within(&twin), &rule)?;
        }
        db.execute("UPDATE twin SET rules_made = 1 WHERE id = ?1", [&*twin])?;
    }
    Ok(())
}

/// The rule's state for the series.
pub(crate) fn machine(db: TwinDb<'_>, rule: &str, series: i64) -> Result<Machine> {
    let sql = "SELECT state FROM alert_state WHERE twin = ?1 AND rule = ?2 AND series = ?3";
    let state: Option<String> = db.find(sql, params![db.twin, rule, series])?;
    // A state that another version wrote and this one cannot parse starts anew.
    Ok(state.and_then(|state| serde_json::from_str(&state).ok()).unwrap_or_default())
}

pub(crate) fn set_machine(
    db: TwinDb<'_>,
    rule: &str,
    series: i64,
    machine: &Machine,
) -> Result<()> {
    let state = serde_json::to_string(machine)?;
    let sql = "INSERT INTO alert_state (twin, rule, series, state) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (twin, rule, series) DO UPDATE SET state = excluded.state";
    db.execute(sql, params![db.twin, rule, series, state]).map(drop)
}

const ALERT: &str =
    "a.id, a.rule, a.rule_name, a.home, h.name, a.device, a.quantity, a.severity, a.value,
    a.peak, a.unit, a.threshold, a.raised_at, a.noticed_at, a.cleared_at, a.acknowledged_at,
    a.acknowledged_by, a.note, a.seq
    FROM alert a LEFT JOIN home h ON h.twin = a.twin AND h.id = a.home";

pub(crate) fn get(db: TwinDb<'_>, id: Uuid) -> Result<Option<Alert>> {
    let sql = format!("SELECT {ALERT} WHERE a.twin = ?1 AND a.id = ?2");
    db.find(&sql, params![db.twin, id])
}

/// The raised alert of a rule for this device and quantity.
pub(crate) fn raised(
    db: TwinDb<'_>,
    rule: &str,
    device: &str,
    quantity: Option<&Quantity>,
) -> Result<Option<Alert>> {
    let sql = format!(
        "SELECT {ALERT} WHERE a.twin = ?1 AND a.device = ?2 AND a.rule = ?3
         AND coalesce(a.quantity, '') = coalesce(CAST(?4 AS TEXT), '') AND a.cleared_at IS NULL"
    );
    db.find(&sql, params![db.twin, device, rule, quantity])
}

pub(crate) fn raised_by(db: TwinDb<'_>, rule: &str) -> Result<Vec<Alert>> {
    let sql = format!("SELECT {ALERT} WHERE a.twin = ?1 AND a.rule = ?2 AND a.cleared_at IS NULL");
    db.list(&sql, [db.twin, rule])
}

pub(crate) fn raised_about(db: TwinDb<'_>, device: &str) -> Result<Vec<Alert>> {
    let sql =
        format!("SELECT {ALERT} WHERE a.twin = ?1 AND a.device = ?2 AND a.cleared_at IS NULL");
    db.list(&sql, [db.twin, device])
}

/// Deletes rules' states of a device.
pub(crate) fn forget_machines(db: TwinDb<'_>, device: &str) -> Result<()> {
    let sql = "DELETE FROM alert_state WHERE twin = ?1 AND series IN
         (SELECT seq FROM series WHERE twin = ?1 AND device = ?2)";
    db.execute(sql, [db.twin, device]).map(drop)
}

/// Number of a rule's alerts about a device that are examined for one that overlaps a period. Its alerts hardly ever
/// overlap one another, only where the rule was changed.
const EXAMINED: usize = 16;

/// The same rule's alerts are in order of time in their index: only the last ones that began by `?6` can still have been
/// raised at `?5`, and those before them, which may be any number, are not read.
fn overlapping_sql() -> String {
    format!(
        "SELECT {ALERT} WHERE a.seq IN (SELECT seq FROM alert WHERE twin = ?1 AND device = ?3
             AND rule = ?2 AND raised_at <= ?6 ORDER BY raised_at DESC LIMIT {EXAMINED})
         AND coalesce(a.quantity, '') = coalesce(CAST(?4 AS TEXT), '')
         AND (a.cleared_at IS NULL OR a.cleared_at >= ?5) ORDER BY a.raised_at LIMIT 1"
    )
}

/// The rule's first alert for this device and quantity that overlaps this period.
pub(crate) fn overlapping(db: TwinDb<'_>, like: &Alert, until: Time) -> Result<Option<Alert>> {
    let values = params![db.twin, like.rule, like.device, like.quantity, like.raised_at, until];
    db.find(&overlapping_sql(), values)
}

pub(crate) fn add(db: TwinDb<'_>, alert: &Alert) -> Result<()> {
    let columns = columns!(
        alert; id, rule, rule_name, home, device, quantity, severity, value, peak, unit, threshold, raised_at, noticed_at,
        cleared_at, revision = 1_i64
    );
    filter::insert(db, "alert", columns)
}

/// Stores the changeable fields of an alert.
pub(crate) fn update(db: TwinDb<'_>, alert: &Alert) -> Result<()> {
    let columns: &[Column<'_>] = columns!(
        alert; value, peak, cleared_at, acknowledged_at, acknowledged_by, note, raised_at
    );
    let columns: Vec<_> = columns.iter().map(|(name, value)| (*name, Some(*value))).collect();
    filter::change(db, "alert", &alert.id, &columns)
}

/// Up to `limit` alerts, the last noticed first, each with its number.
pub(crate) fn list(
    db: TwinDb<'_>,
    query: &AlertQuery,
    before: Option<i64>,
    limit: usize,
) -> Result<Vec<(Alert, i64)>> {
    let mut filter = Filter::default();
    filter.and("a.twin = ?", [Box::new(db.twin)]);
    match query.state {
        Some(AlertState::Active) => {
            filter.and("a.cleared_at IS NULL AND a.acknowledged_at IS NULL", [])
        }
        Some(AlertState::Acknowledged) => {
            filter.and("a.cleared_at IS NULL AND a.acknowledged_at IS NOT NULL", [])
        }
        Some(AlertState::Cleared) => filter.and("a.cleared_at IS NOT NULL", []),
        None => &mut filter,
    };
    filter.and_if("a.home = ?", query.home.as_deref());
    filter.and_if("a.noticed_at >= ?", query.since);
    filter.and_if("a.seq < ?", before);
    let select = format!("SELECT {ALERT}");
    filter.list(db, &select, "a.seq DESC", limit)
}

/// A device that has been silent for longer than a rule allows, without an alert for it.
pub(crate) struct Silence {
    pub(crate) twin: Name,
    pub(crate) rule: Rule,
    pub(crate) home: Option<Name>,
    pub(crate) device: Name,
    pub(crate) last_at: Time,
}

/// Rules about silence, and the sensors to which they apply: one that has a quantity is about its series only. `CROSS JOIN`
/// says to SQLite in which order to search: rules are few, and most quantities have none.
const WATCHED_SENSORS: &str = "FROM alert_rule r CROSS JOIN sensor w
    LEFT JOIN alert a ON a.twin = r.twin AND a.device = w.device AND a.rule = r.id AND a.cleared_at IS NULL
    WHERE r.silent_s IS NOT NULL AND r.enabled = 1 AND r.quantity IS NULL AND w.twin = r.twin
    AND (r.home IS NULL OR r.home = w.home)";
const WATCHED_SERIES: &str = "FROM alert_rule r CROSS JOIN series x CROSS JOIN sensor w
    LEFT JOIN alert a ON a.twin = r.twin AND a.device = w.device AND a.rule = r.id AND a.cleared_at IS NULL
    WHERE r.silent_s IS NOT NULL AND r.enabled = 1 AND x.twin = r.twin AND x.quantity = r.quantity
    AND w.twin = x.twin AND w.device = x.device AND (r.home IS NULL OR r.home = w.home)";

fn silences_sql(watched: &str, last_at: &str) -> String {
    format!(
        "SELECT {RULE}, r.twin, w.home, w.device, {last_at} {watched}
         AND a.id IS NULL AND {last_at} < ?1 - r.silent_s * 1000 LIMIT ?2"
    )
}

/// Up to `limit` devices that have become silent.
pub(crate) fn silences(db: &Db, now: Time, limit: usize) -> Result<Vec<Silence>> {
    let mut all = Vec::new();
    for (watched, last_at) in [(WATCHED_SENSORS, "w.last_at"), (WATCHED_SERIES, "x.last_at")] {
        let sql = silences_sql(watched, last_at);
        all.extend(db.list::<Silence>(&sql, params![now, limit - all.len()])?);
    }
    Ok(all)
}

/// From the raised alerts, which are few, to their rules and devices.
const SILENCES_OVER: &str = "SELECT a.twin, a.id, CASE WHEN r.quantity IS NULL THEN w.last_at ELSE x.last_at END
    FROM alert a CROSS JOIN alert_rule r CROSS JOIN sensor w
    LEFT JOIN series x ON x.twin = w.twin AND x.device = w.device AND x.quantity = r.quantity
    WHERE a.cleared_at IS NULL AND r.twin = a.twin AND r.id = a.rule AND r.silent_s IS NOT NULL AND r.enabled = 1
    AND w.twin = a.twin AND w.device = a.device AND (r.home IS NULL OR r.home = w.home)
    AND CASE WHEN r.quantity IS NULL THEN w.last_at ELSE x.last_at END >= ?1 - r.silent_s * 1000 LIMIT ?2";

/// Up to `limit` silences that are over: twins, alerts, and the times of the devices' last measurements.
pub(crate) fn silences_over(db: &Db, now: Time, limit: usize) -> Result<Vec<(Name, Uuid, Time)>> {
    db.list(SILENCES_OVER, params![now, limit])
}

#[cfg(test)]
#[path = "alerts_tests.rs"]
mod tests;

//! Rules, their state between measurements, and alerts in the database.

use uuid::Uuid;

use super::Db;
use super::filter::Filter;
use super::sql::{OptionalExtension as _, Result, Row, params};
use crate::alerts::machine::Machine;
use crate::alerts::types::{Alert, AlertState, Rule};
use crate::measurements::Quantity;
use crate::text::Name;
use crate::time::Time;

const RULE: &str =
    "r.id, r.name, r.quantity, r.home, r.severity, r.above, r.below, r.clear, r.for_s,
    r.averaging_s, r.silent_s, r.source, r.enabled, r.revision";

fn rule(row: &Row<'_>) -> Result<Rule> {
    let revision: i64 = row.get(13)?;
    Ok(Rule {
        id: row.get(0)?,
        name: row.get(1)?,
        quantity: row.get(2)?,
        home: row.get(3)?,
        severity: row.get(4)?,
        above: row.get(5)?,
        below: row.get(6)?,
        clear: row.get(7)?,
        for_s: row.get(8)?,
        averaging_s: row.get(9)?,
        silent_s: row.get(10)?,
        source: row.get(11)?,
        enabled: row.get(12)?,
        etag: format!("\"r{revision}\""),
    })
}

pub(crate) fn rule_of(db: &Db, twin: &str, id: &str) -> Result<Option<Rule>> {
    let sql = format!("SELECT {RULE} FROM alert_rule r WHERE r.twin = ?1 AND r.id = ?2");
    db.prepare_cached(&sql)?.query_row([twin, id], rule).optional()
}

/// Up to `limit` rules in the order of their identifiers, after `after`.
pub(crate) fn rules(db: &Db, twin: &str, after: &str, limit: usize) -> Result<Vec<Rule>> {
    let sql = format!(
        "SELECT {RULE} FROM alert_rule r WHERE r.twin = ?1 AND r.id > ?2 ORDER BY r.id LIMIT ?3"
    );
    db.prepare_cached(&sql)?.query_map(params![twin, after, limit], rule)?.collect()
}

/// How many rules the twin has.
pub(crate) fn count_rules(db: &Db, twin: &str) -> Result<usize> {
    let mut count = db.prepare_cached("SELECT count(*) FROM alert_rule WHERE twin = ?1")?;
    count.query_row([twin], |row| row.get(0))
}

/// The rules for this home only.
pub(crate) fn rules_of_home(db: &Db, twin: &str, home: &str) -> Result<Vec<Name>> {
    let mut rows = db.prepare_cached("SELECT id FROM alert_rule WHERE twin = ?1 AND home = ?2")?;
    rows.query_map([twin, home], |row| row.get(0))?.collect()
}

/// The rules that apply to a quantity in a home, or to a device without a home.
pub(crate) fn rules_for(
    db: &Db,
    twin: &str,
    quantity: &str,
    home: Option<&str>,
) -> Result<Vec<Rule>> {
    let sql = format!(
        "SELECT {RULE} FROM alert_rule r WHERE r.twin = ?1 AND r.quantity = ?2 AND r.enabled = 1
         AND r.silent_s IS NULL AND (r.home IS NULL OR r.home = ?3) ORDER BY r.id"
    );
    db.prepare_cached(&sql)?.query_map(params![twin, quantity, home], rule)?.collect()
}

/// Creates or replaces a rule, and deletes its state.
pub(crate) fn put_rule(db: &Db, twin: &str, rule: &Rule) -> Result<()> {
    let mut insert = db.prepare_cached(
        "INSERT INTO alert_rule (twin, id, name, quantity, home, severity, above, below, clear, for_s,
             averaging_s, silent_s, source, enabled, revision)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, 1)
         ON CONFLICT (twin, id) DO UPDATE SET name = excluded.name, quantity = excluded.quantity,
             home = excluded.home, severity = excluded.severity, above = excluded.above,
             below = excluded.below, clear = excluded.clear, for_s = excluded.for_s,
             averaging_s = excluded.averaging_s, silent_s = excluded.silent_s,
             source = excluded.source, enabled = excluded.enabled, revision = alert_rule.revision + 1",
    )?;
    insert.execute(params![
        twin,
        rule.id,
        rule.name,
        rule.quantity,
        rule.home,
        rule.severity,
        rule.above,
        rule.below,
        rule.clear,
        rule.for_s,
        rule.averaging_s,
        rule.silent_s,
        rule.source,
        rule.enabled,
    ])?;
    let mut forget = db.prepare_cached("DELETE FROM alert_state WHERE twin = ?1 AND rule = ?2")?;
    forget.execute(params![twin, rule.id]).map(drop)
}

/// Removes a rule; its alerts stay.
pub(crate) fn remove_rule(db: &Db, twin: &str, id: &str) -> Result<()> {
    db.execute("DELETE FROM alert_rule WHERE twin = ?1 AND id = ?2", [twin, id]).map(drop)
}

/// Creates the default rules of each twin, once.
pub(crate) fn make_usual_rules(db: &Db) -> Result<()> {
    let mut rows = db.prepare_cached("SELECT id FROM twin WHERE rules_made = 0")?;
    let twins: Vec<Name> = rows.query_map((), |row| row.get(0))?.collect::<Result<_>>()?;
    for twin in twins {
        for rule in crate::alerts::defaults::rules() {
            put_rule(db, &twin, &rule)?;
        }
        db.execute("UPDATE twin SET rules_made = 1 WHERE id = ?1", [&*twin])?;
    }
    Ok(())
}

/// The rule's state for the series.
pub(crate) fn machine(db: &Db, twin: &str, rule: &str, series: i64) -> Result<Machine> {
    let mut rows = db.prepare_cached(
        "SELECT state FROM alert_state WHERE twin = ?1 AND rule = ?2 AND series = ?3",
    )?;
    let state: Option<String> =
        rows.query_row(params![twin, rule, series], |row| row.get(0)).optional()?;
    // A state that another version wrote and this one cannot parse starts anew.
    Ok(state.and_then(|state| serde_json::from_str(&state).ok()).unwrap_or_default())
}

pub(crate) fn set_machine(
    db: &Db,
    twin: &str,
    rule: &str,
    series: i64,
    machine: &Machine,
) -> Result<()> {
    let state = serde_json::to_string(machine)?;
    let mut upsert = db.prepare_cached(
        "INSERT INTO alert_state (twin, rule, series, state) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (twin, rule, series) DO UPDATE SET state = excluded.state",
    )?;
    upsert.execute(params![twin, rule, series, state]).map(drop)
}

const ALERT: &str =
    "a.id, a.rule, a.rule_name, a.home, h.name, a.device, a.quantity, a.severity, a.value,
    a.peak, a.unit, a.threshold, a.raised_at, a.noticed_at, a.cleared_at, a.acknowledged_at,
    a.acknowledged_by, a.note, a.seq
    FROM alert a LEFT JOIN home h ON h.twin = a.twin AND h.id = a.home";

fn alert(row: &Row<'_>) -> Result<Alert> {
    let id: String = row.get(0)?;
    let alert = Alert {
        id: id.parse().unwrap_or_default(),
        rule: row.get(1)?,
        rule_name: row.get(2)?,
        home: row.get(3)?,
        home_name: row.get(4)?,
        device: row.get(5)?,
        quantity: row.get(6)?,
        severity: row.get(7)?,
        state: AlertState::Active,
        value: row.get(8)?,
        peak: row.get(9)?,
        unit: row.get(10)?,
        threshold: row.get(11)?,
        raised_at: row.get(12)?,
        noticed_at: row.get(13)?,
        late: false,
        cleared_at: row.get(14)?,
        acknowledged_at: row.get(15)?,
        acknowledged_by: row.get(16)?,
        note: row.get(17)?,
    };
    Ok(alert.finished())
}

pub(crate) fn get(db: &Db, twin: &str, id: Uuid) -> Result<Option<Alert>> {
    let sql = format!("SELECT {ALERT} WHERE a.twin = ?1 AND a.id = ?2");
    db.prepare_cached(&sql)?.query_row(params![twin, id.to_string()], alert).optional()
}

/// The raised alert of a rule for this device and quantity.
pub(crate) fn raised(
    db: &Db,
    twin: &str,
    rule: &str,
    device: &str,
    quantity: Option<&Quantity>,
) -> Result<Option<Alert>> {
    let sql = format!(
        "SELECT {ALERT} WHERE a.twin = ?1 AND a.device = ?2 AND a.rule = ?3
         AND coalesce(a.quantity, '') = coalesce(CAST(?4 AS TEXT), '') AND a.cleared_at IS NULL"
    );
    let mut rows = db.prepare_cached(&sql)?;
    rows.query_row(params![twin, device, rule, quantity], alert).optional()
}

/// The raised alerts of a rule.
pub(crate) fn raised_by(db: &Db, twin: &str, rule: &str) -> Result<Vec<Alert>> {
    let sql = format!("SELECT {ALERT} WHERE a.twin = ?1 AND a.rule = ?2 AND a.cleared_at IS NULL");
    db.prepare_cached(&sql)?.query_map([twin, rule], alert)?.collect()
}

/// The raised alerts about a device.
pub(crate) fn raised_about(db: &Db, twin: &str, device: &str) -> Result<Vec<Alert>> {
    let sql =
        format!("SELECT {ALERT} WHERE a.twin = ?1 AND a.device = ?2 AND a.cleared_at IS NULL");
    db.prepare_cached(&sql)?.query_map([twin, device], alert)?.collect()
}

/// Deletes rules' states of a device.
pub(crate) fn forget_machines(db: &Db, twin: &str, device: &str) -> Result<()> {
    let mut forget = db.prepare_cached(
        "DELETE FROM alert_state WHERE twin = ?1 AND series IN
         (SELECT seq FROM series WHERE twin = ?1 AND device = ?2)",
    )?;
    forget.execute([twin, device]).map(drop)
}

/// How many of a rule's alerts about a device are examined for one that overlaps a period. Its alerts hardly ever overlap
/// one another, only where the rule was changed.
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
pub(crate) fn overlapping(db: &Db, twin: &str, like: &Alert, until: Time) -> Result<Option<Alert>> {
    let mut rows = db.prepare_cached(&overlapping_sql())?;
    let values = params![twin, like.rule, like.device, like.quantity, like.raised_at, until];
    rows.query_row(values, alert).optional()
}

pub(crate) fn add(db: &Db, twin: &str, alert: &Alert) -> Result<()> {
    let mut insert = db.prepare_cached(
        "INSERT INTO alert (twin, id, rule, rule_name, home, device, quantity, severity, value, peak, unit,
             threshold, raised_at, noticed_at, cleared_at, revision)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, 1)",
    )?;
    insert
        .execute(params![
            twin,
            alert.id.to_string(),
            alert.rule,
            alert.rule_name,
            alert.home,
            alert.device,
            alert.quantity,
            alert.severity,
            alert.value,
            alert.peak,
            alert.unit,
            alert.threshold,
            alert.raised_at,
            alert.noticed_at,
            alert.cleared_at,
        ])
        .map(drop)
}

/// Stores the changeable fields of an alert.
pub(crate) fn update(db: &Db, twin: &str, alert: &Alert) -> Result<()> {
    let mut update = db.prepare_cached(
        "UPDATE alert SET value = ?3, peak = ?4, cleared_at = ?5, acknowledged_at = ?6,
             acknowledged_by = ?7, note = ?8, raised_at = ?9, revision = revision + 1
         WHERE twin = ?1 AND id = ?2",
    )?;
    update
        .execute(params![
            twin,
            alert.id.to_string(),
            alert.value,
            alert.peak,
            alert.cleared_at,
            alert.acknowledged_at,
            alert.acknowledged_by,
            alert.note,
            alert.raised_at,
        ])
        .map(drop)
}

/// Selects alerts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) state: Option<AlertState>,
    pub(crate) home: Option<Name>,
    /// Noticed at this time or later.
    pub(crate) since: Option<Time>,
    /// Number of the last alert of the previous page.
    pub(crate) before: Option<i64>,
}

/// Up to `limit` alerts, the last noticed first, each with its number.
pub(crate) fn list(db: &Db, twin: &str, query: &Query, limit: usize) -> Result<Vec<(Alert, i64)>> {
    let mut filter = Filter::default();
    filter.and("a.twin = ?", [Box::new(twin)]);
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
    filter.and_if("a.seq < ?", query.before);
    let select = format!("SELECT {ALERT}");
    filter.list(db, &select, "a.seq DESC", limit, |row| Ok((alert(row)?, row.get(18)?)))
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
        let mut rows = db.prepare_cached(&silences_sql(watched, last_at))?;
        let rows = rows.query_map(params![now, limit - all.len()], |row| {
            Ok(Silence {
                rule: rule(row)?,
                twin: row.get(14)?,
                home: row.get(15)?,
                device: row.get(16)?,
                last_at: row.get(17)?,
            })
        })?;
        all.extend(rows.collect::<Result<Vec<_>>>()?);
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
    let mut rows = db.prepare_cached(SILENCES_OVER)?;
    let rows = rows.query_map(params![now, limit], |row| {
        let id: String = row.get(1)?;
        Ok((row.get(0)?, id.parse().unwrap_or_default(), row.get(2)?))
    })?;
    rows.collect()
}

#[cfg(test)]
#[path = "alerts_tests.rs"]
mod tests;

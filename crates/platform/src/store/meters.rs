//! Meters in the database.

use super::Db;
use super::filter::{Bounds, Filter, given, set_given};
use super::sql::{OptionalExtension as _, Result, Row, ToSql, params, params_from_iter};
use crate::meters::types::{
    Exchange, MeterChange, MeterState, NewExchange, REGISTER_DIGITS, USUAL_DIGITS, expect,
};
use crate::meters::{Expected, LastReading, Medium, Meter, NewMeter};
use crate::number::{Amount, Place};
use crate::text::Name;
use crate::time::{DAY_MS, Time};

/// Selects meters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) within: Option<Bounds>,
    /// A part of the identifier, serial number, address or street.
    pub(crate) words: Option<String>,
    pub(crate) changed_since: Option<Time>,
    /// Identifier of the last meter of the previous page.
    pub(crate) after: Option<String>,
}

/// Whether meter `m` was missed by work list `w` with task `t` at the time `?1`: the list is over, and there is no
/// reading since it was created (one may have come for another list or by radio).
macro_rules! missed {
    () => {
        "t.state <> 'read' AND (w.state = 'done' OR w.due < ?1)
         AND (m.last_at IS NULL OR m.last_at < w.created_at)"
    };
}
pub(super) const MISSED: &str = missed!();

/// ?1 is the present time, at which overdue meters are missed.
pub(super) const COLUMNS: &str = concat!(
    "m.id, m.address, m.serial, m.manufacturer, m.medium, m.lat, m.lon, m.street, m.unit,
    m.register_digits, m.aes_key IS NOT NULL, m.note, m.expected_low, m.expected_high, m.first_value,
    m.first_at, m.last_value, m.last_at, m.last_method, m.leak_since IS NOT NULL,
    EXISTS (SELECT 1 FROM task t JOIN work_list w ON w.twin = t.twin AND w.id = t.work_list
            WHERE t.twin = m.twin AND t.meter = m.id AND ",
    missed!(),
    "), m.changed_at, m.revision, m.last_protection, m.radio_security IS NOT NULL"
);
/// How many columns these are.
pub(super) const COLUMN_COUNT: usize = 25;

pub(super) fn meter(row: &Row<'_>, now: Time) -> Result<Meter> {
    let address: Option<String> = row.get(1)?;
    let unit: String = row.get(8)?;
    let (first_value, first_at): (Option<f64>, Option<Time>) = (row.get(14)?, row.get(15)?);
    let (last_value, last_at): (Option<f64>, Option<Time>) = (row.get(16)?, row.get(17)?);
    let given = row.get::<Option<Amount>>(12)?.zip(row.get(13)?);
    let expected = match given {
        Some((low, high)) => Some(Expected { low, high }),
        None => first_value
            .zip(first_at)
            .zip(last_value.zip(last_at))
            .and_then(|(first, last)| expect(first, last, now)),
    };
    let method = row.get(18)?;
    let protection = row.get(23)?;
    let last = last_value.zip(last_at).zip(method).map(|((value, at), method)| LastReading {
        value,
        unit: unit.clone(),
        at,
        method,
        protection,
    });
    let (leak, missed) = (row.get(19)?, row.get(20)?);
    let state = match (leak, missed) {
        (true, _) => MeterState::LeakSuspected,
        (_, true) => MeterState::Missed,
        _ => MeterState::Ok,
    };
    let revision: i64 = row.get(22)?;
    // The expected value changes with the day, the state with the hour; the rest with the revision.
    let etag = format!("\"{revision}-{}{}\"", now.0.div_euclid(DAY_MS), &state.word()[..1]);
    Ok(Meter {
        id: row.get(0)?,
        radio: address.is_some(),
        address,
        serial: row.get(2)?,
        manufacturer: row.get(3)?,
        medium: row.get(4)?,
        place: Place::from_columns(row.get(5)?, row.get(6)?),
        street: row.get(7)?,
        unit,
        register_digits: row.get(9)?,
        has_key: row.get(10)?,
        is_protected: row.get(24)?,
        note: row.get(11)?,
        expected,
        last,
        state,
        changed_at: row.get(21)?,
        etag,
    })
}

pub(crate) fn get(db: &Db, twin: &str, id: &str, now: Time) -> Result<Option<Meter>> {
    let sql = format!("SELECT {COLUMNS} FROM meter m WHERE m.twin = ?2 AND m.id = ?3");
    let mut rows = db.prepare_cached(&sql)?;
    rows.query_row(params![now, twin, id], |row| meter(row, now)).optional()
}

pub(crate) fn exists(db: &Db, twin: &str, id: &str) -> Result<bool> {
    let mut rows = db.prepare_cached("SELECT 1 FROM meter WHERE twin = ?1 AND id = ?2")?;
    rows.exists([twin, id])
}

/// A meter's serial number and street.
pub(crate) type Label = (Option<String>, Option<String>);

pub(crate) fn label(db: &Db, twin: &str, id: &str) -> Result<Option<Label>> {
    let mut rows =
        db.prepare_cached("SELECT serial, street FROM meter WHERE twin = ?1 AND id = ?2")?;
    rows.query_row([twin, id], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

/// Up to `limit` meters in the order of their identifiers.
pub(crate) fn list(
    db: &Db,
    twin: &str,
    query: &Query,
    limit: usize,
    now: Time,
) -> Result<Vec<Meter>> {
    let mut filter = Filter::behind(now);
    filter.and("m.twin = ?", [Box::new(twin)]);
    filter.within(query.within);
    filter.contain(["m.id", "m.serial", "m.address", "m.street"], query.words.as_deref());
    filter.and_if("m.changed_at > ?", query.changed_since);
    filter.and_if("m.id > ?", query.after.as_deref());
    let select = format!("SELECT {COLUMNS} FROM meter m");
    filter.list(db, &select, "m.id", limit, |row| meter(row, now))
}

/// The result of adding a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    Created,
    /// A meter of this name existed; it was replaced.
    Updated,
    /// Another meter has this radio address.
    AddressTaken,
}

/// Adds a meter, or replaces the one of this name.
pub(crate) fn put(db: &Db, twin: &str, id: &Name, new: &NewMeter, now: Time) -> Result<Added> {
    let short_address = new.address.as_ref().map(crate::meters::RadioAddress::short);
    if let Some(address) = &short_address
        && by_radio_address(db, twin, address)?.is_some_and(|other| other != *id)
    {
        return Ok(Added::AddressTaken);
    }
    let medium = new.medium.unwrap_or(Medium::Water);
    let (lat, lon) = Place::columns(new.place);
    let digits = new.register_digits.unwrap_or(USUAL_DIGITS);
    debug_assert!(REGISTER_DIGITS.contains(&digits));
    let maker = new.manufacturer.as_ref().map(|maker| maker.to_string());
    let maker = maker.or_else(|| new.address.as_ref().map(crate::meters::RadioAddress::maker));
    let created = !exists(db, twin, id)?;
    let mut insert = db.prepare_cached(
        "INSERT INTO meter (twin, id, address, radio_key, serial, manufacturer, medium, lat, lon, street,
                            unit, register_digits, note, expected_low, expected_high, changed_at, revision)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, 1)
         ON CONFLICT (twin, id) DO UPDATE SET
             address = excluded.address, radio_key = excluded.radio_key, serial = excluded.serial,
             manufacturer = excluded.manufacturer, medium = excluded.medium, lat = excluded.lat,
             lon = excluded.lon, street = excluded.street, unit = excluded.unit,
             register_digits = excluded.register_digits, note = excluded.note,
             expected_low = excluded.expected_low, expected_high = excluded.expected_high,
             radio_security = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key
                                   THEN meter.radio_security END,
             radio_model = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key THEN meter.radio_model END,
             radio_formats = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key
                                  THEN meter.radio_formats END,
             radio_after = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key
                                THEN meter.radio_after ELSE (SELECT max(r.seq) FROM reading r) END,
             changed_at = excluded.changed_at, revision = meter.revision + 1",
    )?;
    insert.execute(params![
        twin,
        id,
        new.address.as_ref().map(ToString::to_string),
        short_address,
        new.serial,
        maker,
        medium,
        lat,
        lon,
        new.street,
        new.unit.as_deref().unwrap_or(medium.unit()),
        digits,
        new.note,
        new.expected.map(|expected| expected.low),
        new.expected.map(|expected| expected.high),
        now,
    ])?;
    Ok(if created { Added::Created } else { Added::Updated })
}

/// The meter with this manufacturer and number.
pub(crate) fn by_radio_address(db: &Db, twin: &str, short_address: &str) -> Result<Option<Name>> {
    let mut rows = db.prepare_cached("SELECT id FROM meter WHERE twin = ?1 AND radio_key = ?2")?;
    rows.query_row([twin, short_address], |row| row.get(0)).optional()
}

/// Changes an existing meter.
pub(crate) fn change(db: &Db, twin: &str, id: &str, change: &MeterChange, now: Time) -> Result<()> {
    let (lat, lon) = change.place.map(Place::columns).unzip();
    let low = change.expected.map(|expected| expected.map(|expected| expected.low));
    let high = change.expected.map(|expected| expected.map(|expected| expected.high));
    let values = [
        ("serial", given(&change.serial)),
        ("manufacturer", given(&change.manufacturer)),
        ("medium", given(&change.medium)),
        ("lat", given(&lat)),
        ("lon", given(&lon)),
        ("street", given(&change.street)),
        ("unit", given(&change.unit)),
        ("register_digits", given(&change.register_digits)),
        ("note", given(&change.note)),
        ("expected_low", given(&low)),
        ("expected_high", given(&high)),
    ];
    set_given(db, "meter", (twin, id), &values)?;
    touch(db, twin, id, now)
}

/// Increments the meter's revision.
pub(crate) fn touch(db: &Db, twin: &str, id: &str, now: Time) -> Result<()> {
    let mut update = db.prepare_cached(
        "UPDATE meter SET revision = revision + 1, changed_at = ?3 WHERE twin = ?1 AND id = ?2",
    )?;
    update.execute(params![twin, id, now]).map(drop)
}

/// Sets or removes the meter's key; returns whether the meter exists. With another key than before, what was known of its
/// messages is forgotten: its counters and its register may begin again.
pub(crate) fn set_key(
    db: &Db,
    twin: &str,
    id: &str,
    key: Option<&[u8]>,
    now: Time,
) -> Result<bool> {
    let sql = "SELECT aes_key FROM meter WHERE twin = ?1 AND id = ?2";
    let known = db.prepare_cached(sql)?.query_row([twin, id], |row| row.get(0)).optional()?;
    let Some(before) = known else { return Ok(false) };
    if <Option<Vec<u8>>>::as_deref(&before) != key || key.is_none() {
        let sql = "UPDATE meter SET aes_key = ?3, radio_security = NULL, radio_model = NULL, radio_formats = NULL,
                 radio_after = (SELECT max(r.seq) FROM reading r) WHERE twin = ?1 AND id = ?2";
        db.execute(sql, params![twin, id, key])?;
        let sql = "UPDATE frame_seen SET counter = NULL, clock = NULL WHERE twin = ?1
             AND radio_key = (SELECT radio_key FROM meter WHERE twin = ?1 AND id = ?2)";
        db.execute(sql, [twin, id])?;
    }
    touch(db, twin, id, now)?;
    Ok(true)
}

const EXCHANGE: &str =
    "id, at, final_value, first_value, old_serial, new_serial, note, entered_by, entered_at,
    withdrawn_by, withdrawn_at";

/// The meter's exchanges, newest first.
pub(crate) fn exchanges(db: &Db, twin: &str, meter: &str) -> Result<Vec<Exchange>> {
    let sql = format!(
        "SELECT {EXCHANGE} FROM meter_exchange WHERE twin = ?1 AND meter = ?2
         ORDER BY at DESC, entered_at DESC, id"
    );
    let exchange = |row: &Row<'_>| {
        let new = NewExchange {
            id: row.get::<String>(0)?.parse().unwrap_or_default(),
            at: row.get(1)?,
            last: row.get(2)?,
            first: row.get(3)?,
            old_serial: row.get(4)?,
            new_serial: row.get(5)?,
            note: row.get(6)?,
        };
        let (entered_by, entered_at) = (row.get(7)?, row.get(8)?);
        let (withdrawn_by, withdrawn_at) = (row.get(9)?, row.get(10)?);
        Ok(Exchange { new, entered_by, entered_at, withdrawn_by, withdrawn_at })
    };
    db.prepare_cached(&sql)?.query_map([twin, meter], exchange)?.collect()
}

/// Stores an exchange, or that it was taken back.
pub(crate) fn put_exchange(db: &Db, twin: &str, meter: &str, exchange: &Exchange) -> Result<()> {
    let Exchange { new, entered_by, entered_at, withdrawn_by, withdrawn_at } = exchange;
    let id = new.id.to_string();
    let (old, serial) = (&new.old_serial, &new.new_serial);
    let sql = format!(
        "INSERT INTO meter_exchange (twin, meter, {EXCHANGE})
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) ON CONFLICT (twin, meter, id)
         DO UPDATE SET withdrawn_by = excluded.withdrawn_by, withdrawn_at = excluded.withdrawn_at"
    );
    let values: [&[&dyn ToSql]; 2] = [
        params![twin, meter, id, new.at, new.last, new.first, old, serial, new.note],
        params![entered_by, entered_at, withdrawn_by, withdrawn_at],
    ];
    db.execute(&sql, params_from_iter(values.concat().into_iter())).map(drop)
}

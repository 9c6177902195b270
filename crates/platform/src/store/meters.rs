//! Meters in the database.

use super::prelude::*;
use crate::meters::types::{
    Exchange, MeterChange, MeterQuery, NewExchange, REGISTER_DIGITS, USUAL_DIGITS, expect,
};
use crate::meters::{Expected, LastReading, Medium, Meter, NewMeter, RadioAddress};

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
    "m.revision, m.first_value, m.first_at,
    m.id, m.address, m.serial, m.manufacturer, m.medium, m.lat, m.lon, m.street, m.unit, m.register_digits,
    m.address IS NOT NULL, m.aes_key IS NOT NULL, m.radio_security IS NOT NULL, m.note, m.expected_low, m.expected_high,
    m.last_value, m.unit, m.last_at, m.last_method, m.last_protection,
    CASE WHEN m.leak_since IS NOT NULL THEN 'leak_suspected'
         WHEN EXISTS (SELECT 1 FROM task t JOIN work_list w ON w.twin = t.twin AND w.id = t.work_list
                      WHERE t.twin = m.twin AND t.meter = m.id AND ",
    missed!(),
    ") THEN 'missed' ELSE 'ok' END, m.changed_at"
);

from_row! {
    Meter {
        id, address, serial, manufacturer, medium, place, street, unit, register_digits, radio, has_key, is_protected, note,
        expected, last, state, changed_at, etag = String::new(),
    }
    NewExchange { id, at, last, first, old_serial, new_serial, note }
    Exchange { new, entered_by, entered_at, withdrawn_by, withdrawn_at }
}

impl FromRow for Option<LastReading> {
    fn from_row(row: &mut Row<'_>) -> Result<Self> {
        let (value, unit, at, method, protection): (Option<_>, _, Option<_>, Option<_>, _) =
            row.read()?;
        let all = value.zip(at).zip(method);
        Ok(all.map(|((value, at), method)| LastReading { value, unit, at, method, protection }))
    }
}

impl FromRow for Option<Expected> {
    fn from_row(row: &mut Row<'_>) -> Result<Self> {
        Ok(row.read::<Option<_>>()?.map(|(low, high)| Expected { low, high }))
    }
}

/// The meter as it is at this time.
pub(super) fn meter(row: &mut Row<'_>, now: Time) -> Result<Meter> {
    let (revision, first): (i64, Option<(f64, Time)>) = row.read()?;
    let mut meter: Meter = row.read()?;
    if let (None, Some((first, since)), Some(last)) = (meter.expected, first, &meter.last) {
        meter.expected = expect(first, since, last.value, last.at, now);
    }
    // The expected value changes with the day, the state with the hour; the rest with the revision.
    let day = now.0.div_euclid(DAY_MS);
    meter.etag = format!("\"{revision}-{day}{}\"", &meter.state.word()[..1]);
    Ok(meter)
}

pub(crate) fn get(db: TwinDb<'_>, id: &str, now: Time) -> Result<Option<Meter>> {
    let sql = format!("SELECT {COLUMNS} FROM meter m WHERE m.twin = ?2 AND m.id = ?3");
    db.find_with(&sql, params![now, db.twin, id], |row| meter(row, now))
}

pub(crate) fn exists(db: TwinDb<'_>, id: &str) -> Result<bool> {
    db.exists("SELECT 1 FROM meter WHERE twin = ?1 AND id = ?2", [db.twin, id])
}

/// A meter's serial number and street.
pub(crate) type Label = (Option<String>, Option<String>);

pub(crate) fn label(db: TwinDb<'_>, id: &str) -> Result<Option<Label>> {
    db.find("SELECT serial, street FROM meter WHERE twin = ?1 AND id = ?2", [db.twin, id])
}

/// Up to `limit` meters in the order of their identifiers.
pub(crate) fn list(
    db: TwinDb<'_>,
    query: &MeterQuery,
    after: &str,
    limit: usize,
    now: Time,
) -> Result<Vec<Meter>> {
    let mut filter = Filter::behind(now);
    filter.and("m.twin = ?", [Box::new(db.twin)]);
    filter.within(query.bbox);
    filter.contain(["m.id", "m.serial", "m.address", "m.street"], query.q.as_deref());
    filter.and_if("m.changed_at > ?", query.changed_since);
    filter.and("m.id > ?", [Box::new(after)]);
    let select = format!("SELECT {COLUMNS} FROM meter m");
    db.list_with(&filter.sql(&select, "m.id"), filter.values(&limit), |row| meter(row, now))
}

/// Forgets what was known of the messages of a meter that gets another address.
const FORGET_OTHER: &str =
    "radio_security = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key THEN meter.radio_security END,
     radio_model = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key THEN meter.radio_model END,
     radio_formats = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key THEN meter.radio_formats END,
     radio_after = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key
                        THEN meter.radio_after ELSE (SELECT max(r.seq) FROM reading r) END,";

/// Adds a meter, or replaces the one of this name. No other meter may have its radio address.
pub(crate) fn upsert(db: TwinDb<'_>, id: &Name, new: &NewMeter, now: Time) -> Result<()> {
    let short_address = new.address.as_ref().map(RadioAddress::short);
    let address = new.address.as_ref().map(ToString::to_string);
    let medium = new.medium.unwrap_or(Medium::Water);
    let (lat, lon) = Place::columns(new.place);
    let digits = new.register_digits.unwrap_or(USUAL_DIGITS);
    debug_assert!(REGISTER_DIGITS.contains(&digits));
    let maker = new.manufacturer.as_ref().map(|maker| maker.to_string());
    let maker = maker.or_else(|| new.address.as_ref().map(RadioAddress::maker));

    let (unit, expected) = (new.unit.as_deref().unwrap_or(medium.unit()), new.expected.map(Some));
    let (low, high) = Expected::columns(expected);
    let columns = columns!(
        new; id = id, address = address, radio_key = short_address, serial, manufacturer = maker, medium = medium,
        lat = lat, lon = lon, street, unit = unit, register_digits = digits, note, expected_low = low,
        expected_high = high, changed_at = now
    );
    filter::upsert(db, "meter", columns, FORGET_OTHER)
}

/// The meter with this manufacturer and number.
pub(crate) fn by_radio_address(db: TwinDb<'_>, short_address: &str) -> Result<Option<Name>> {
    db.find("SELECT id FROM meter WHERE twin = ?1 AND radio_key = ?2", [db.twin, short_address])
}

/// Changes an existing meter.
pub(crate) fn change(db: TwinDb<'_>, id: &str, change: &MeterChange, now: Time) -> Result<()> {
    let ((lat, lon), changed_at) = (change.place.map(Place::columns).unzip(), Some(now));
    let (expected_low, expected_high) = Expected::columns(change.expected);
    let values = changes!(
        change; serial, manufacturer, medium, lat = lat, lon = lon, street, unit, register_digits, note,
        expected_low = expected_low, expected_high = expected_high, changed_at = changed_at
    );
    filter::change(db, "meter", &id, values)
}

/// Increments the meter's revision.
pub(crate) fn touch(db: TwinDb<'_>, id: &str, now: Time) -> Result<()> {
    let sql =
        "UPDATE meter SET revision = revision + 1, changed_at = ?3 WHERE twin = ?1 AND id = ?2";
    db.execute(sql, params![db.twin, id, now]).map(drop)
}

/// Sets or removes the meter's key; returns whether the meter exists. With another key than before, what was known of its
/// messages is forgotten: its counters and its register may begin again.
pub(crate) fn set_key(db: TwinDb<'_>, id: &str, key: Option<&[u8]>, now: Time) -> Result<bool> {
    let sql = "SELECT aes_key FROM meter WHERE twin = ?1 AND id = ?2";
    let known = db.find(sql, [db.twin, id])?;
    let Some(before) = known else { return Ok(false) };
    if <Option<Vec<u8>>>::as_deref(&before) != key || key.is_none() {
        let sql = "UPDATE meter SET aes_key = ?3, radio_security = NULL, radio_model = NULL, radio_formats = NULL,
                 radio_after = (SELECT max(r.seq) FROM reading r) WHERE twin = ?1 AND id = ?2";
        db.execute(sql, params![db.twin, id, key])?;
        let sql = "UPDATE frame_seen SET counter = NULL, clock = NULL WHERE twin = ?1
             AND radio_key = (SELECT radio_key FROM meter WHERE twin = ?1 AND id = ?2)";
        db.execute(sql, [db.twin, id])?;
    }
    touch(db, id, now)?;
    Ok(true)
}

const EXCHANGE: &str =
    "id, at, final_value, first_value, old_serial, new_serial, note, entered_by, entered_at,
    withdrawn_by, withdrawn_at";

/// The meter's exchanges, newest first.
pub(crate) fn exchanges(db: TwinDb<'_>, meter: &str) -> Result<Vec<Exchange>> {
    let sql = format!(
        "SELECT {EXCHANGE} FROM meter_exchange WHERE twin = ?1 AND meter = ?2
         ORDER BY at DESC, entered_at DESC, id"
    );
    db.list(&sql, [db.twin, meter])
}

/// Stores an exchange, or that it was taken back.
pub(crate) fn put_exchange(db: TwinDb<'_>, meter: &str, exchange: &Exchange) -> Result<()> {
    let Exchange { new, entered_by, entered_at, withdrawn_by, withdrawn_at } = exchange;
    let (id, old, serial) = (new.id, &new.old_serial, &new.new_serial);
    let sql = format!(
        "INSERT INTO meter_exchange (twin, meter, {EXCHANGE})
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) ON CONFLICT (twin, meter, id)
         DO UPDATE SET withdrawn_by = excluded.withdrawn_by, withdrawn_at = excluded.withdrawn_at"
    );
    let values = [
        params![db.twin, meter, id, new.at, new.last, new.first, old, serial, new.note],
        params![entered_by, entered_at, withdrawn_by, withdrawn_at],
    ];
    db.execute(&sql, &*values.concat()).map(drop)
}

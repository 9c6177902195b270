//! Meters in the database.

use super::TwinDb;
use super::filter::{self, Column, Filter, given};
use super::sql::{FromRow, Result, Row, from_row, params};
use crate::meters::types::{
    Exchange, MeterChange, MeterQuery, MeterState, NewExchange, REGISTER_DIGITS, USUAL_DIGITS,
    expect,
};
use crate::meters::{Expected, LastReading, Medium, Meter, NewMeter, RadioAddress};
use crate::number::{Amount, Place};
use crate::text::Name;
use crate::time::{DAY_MS, Time};

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
    m.register_digits, m.aes_key IS NOT NULL, m.radio_security IS NOT NULL, m.note, m.expected_low, m.expected_high,
    m.first_value, m.first_at, m.last_value, m.last_at, m.last_method, m.last_protection, m.leak_since IS NOT NULL,
    EXISTS (SELECT 1 FROM task t JOIN work_list w ON w.twin = t.twin AND w.id = t.work_list
            WHERE t.twin = m.twin AND t.meter = m.id AND ",
    missed!(),
    "), m.changed_at, m.revision"
);
pub(super) fn meter(row: &mut Row<'_>, now: Time) -> Result<Meter> {
    let (id, address, serial, manufacturer, medium) = row.read()?;
    let address: Option<String> = address;
    let (place, street, unit, register_digits): (_, _, String, _) = row.read()?;
    let (has_key, is_protected, note) = row.read()?;
    let given: Option<(Amount, Amount)> = row.read()?;
    let (first, shown): (Option<(f64, Time)>, _) = row.read()?;
    let expected = match given {
        Some((low, high)) => Some(Expected { low, high }),
        None => first
            .zip(shown)
            .and_then(|((first, since), (last, at))| expect(first, since, last, at, now)),
    };
    let (method, protection): (Option<_>, _) = row.read()?;
    let last = shown.zip(method).map(|((value, at), method)| {
        let unit = unit.clone();
        LastReading { value, unit, at, method, protection }
    });
    let state = match row.read()? {
        (true, _) => MeterState::LeakSuspected,
        (_, true) => MeterState::Missed,
        _ => MeterState::Ok,
    };
    let (changed_at, revision): (_, i64) = row.read()?;
    // The expected value changes with the day, the state with the hour; the rest with the revision.
    let etag = format!("\"{revision}-{}{}\"", now.0.div_euclid(DAY_MS), &state.word()[..1]);
    Ok(Meter {
        id,
        radio: address.is_some(),
        address,
        serial,
        manufacturer,
        medium,
        place,
        street,
        unit,
        register_digits,
        has_key,
        is_protected,
        note,
        expected,
        last,
        state,
        changed_at,
        etag,
    })
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

/// The result of adding a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    Created,
    /// A meter of this name existed; it was replaced.
    Updated,
    /// Another meter has this radio address.
    AddressTaken,
}

/// Forgets what was known of the messages of a meter that gets another address.
const FORGET_OTHER: &str =
    "radio_security = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key THEN meter.radio_security END,
     radio_model = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key THEN meter.radio_model END,
     radio_formats = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key THEN meter.radio_formats END,
     radio_after = CASE WHEN meter.radio_key IS NOT DISTINCT FROM excluded.radio_key
                        THEN meter.radio_after ELSE (SELECT max(r.seq) FROM reading r) END,";

/// Adds a meter, or replaces the one of this name.
pub(crate) fn upsert(db: TwinDb<'_>, id: &Name, new: &NewMeter, now: Time) -> Result<Added> {
    let short_address = new.address.as_ref().map(RadioAddress::short);
    if let Some(address) = &short_address
        && by_radio_address(db, address)?.is_some_and(|other| other != *id)
    {
        return Ok(Added::AddressTaken);
    }
    let address = new.address.as_ref().map(ToString::to_string);
    let medium = new.medium.unwrap_or(Medium::Water);
    let (lat, lon) = Place::columns(new.place);
    let digits = new.register_digits.unwrap_or(USUAL_DIGITS);
    debug_assert!(REGISTER_DIGITS.contains(&digits));
    let maker = new.manufacturer.as_ref().map(|maker| maker.to_string());
    let maker = maker.or_else(|| new.address.as_ref().map(RadioAddress::maker));
    let created = !exists(db, id)?;
    let columns: [Column<'_>; 15] = [
        ("id", id),
        ("address", &address),
        ("radio_key", &short_address),
        ("serial", &new.serial),
        ("manufacturer", &maker),
        ("medium", &medium),
        ("lat", &lat),
        ("lon", &lon),
        ("street", &new.street),
        ("unit", &new.unit.as_deref().unwrap_or(medium.unit())),
        ("register_digits", &digits),
        ("note", &new.note),
        ("expected_low", &new.expected.map(|expected| expected.low)),
        ("expected_high", &new.expected.map(|expected| expected.high)),
        ("changed_at", &now),
    ];
    filter::upsert(db, "meter", &columns, FORGET_OTHER)?;
    Ok(if created { Added::Created } else { Added::Updated })
}

/// The meter with this manufacturer and number.
pub(crate) fn by_radio_address(db: TwinDb<'_>, short_address: &str) -> Result<Option<Name>> {
    db.find("SELECT id FROM meter WHERE twin = ?1 AND radio_key = ?2", [db.twin, short_address])
}

/// Changes an existing meter.
pub(crate) fn change(db: TwinDb<'_>, id: &str, change: &MeterChange, now: Time) -> Result<()> {
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
        ("changed_at", Some(&now)),
    ];
    filter::change(db, "meter", &id, &values)
}

/// Increments the meter's revision.
pub(crate) fn touch(db: TwinDb<'_>, id: &str, now: Time) -> Result<()> {
    db.execute(
        "UPDATE meter SET revision = revision + 1, changed_at = ?3 WHERE twin = ?1 AND id = ?2",
        params![db.twin, id, now],
    )
    .map(drop)
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

impl FromRow for Exchange {
    fn from_row(row: &mut Row<'_>) -> Result<Exchange> {
        let new = row.read()?;
        let (entered_by, entered_at, withdrawn_by, withdrawn_at) = row.read()?;
        Ok(Exchange { new, entered_by, entered_at, withdrawn_by, withdrawn_at })
    }
}

from_row!(NewExchange { id, at, last, first, old_serial, new_serial, note });

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

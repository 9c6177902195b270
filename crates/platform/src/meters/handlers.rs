//! What can be asked of meters.

use fulmar_wmbus::Key;

use super::types::{Exchange, MeterChange, MeterQuery, NewExchange, REGISTER_DIGITS};
use super::{Expected, Meter, NewMeter};
use crate::prelude::*;
use crate::readings::Reading;
use crate::readings::handlers::{announce, stored_readings};
use crate::readings::intake::{is_future, judge_anew};
use crate::store::{meters, readings, reports};

/// Meters of a page, and of one import.
const MAX_METERS: usize = 5000;
/// Exchanges of a meter, those that were taken back included.
const MAX_EXCHANGES: usize = 100;

/// The twin's meters, by identifier
#[utoipa::path(get, path = "/{twin}/meter", tag = "meters", params(MeterQuery),
    responses((status = 200, body = Page<Meter>)))]
pub(crate) async fn list(Lookup(app, member, query, conditions): Lookup<MeterQuery>) -> Answer {
    let limit = crate::paging::limit(query.limit, MAX_METERS)?;
    let sees_all = member.role.may(Deed::LookAtWork);
    if !sees_all && (query.q.is_some() || query.bbox.is_some()) {
        // What is found would say what is not shown.
        return Err(Problem::forbidden("this role may not search for streets and places"));
    }
    let after = open_cursor(query.cursor.as_deref())?.unwrap_or_default();
    let items =
        member.read(&app, move |db| Ok(meters::list(db, &query, &after, limit + 1, Time::now())?));
    let mut items = items.await?;
    if !sees_all {
        items.iter_mut().for_each(Meter::strip);
    }
    let page = Page::cut(items, limit, |meter: &Meter| meter.id.to_string());
    conditions.json(&page)
}

/// The meter, which must exist.
pub(crate) fn find(db: TwinDb<'_>, id: &Name, now: Time) -> Result<Meter> {
    meters::get(db, id, now)?.ok_or_else(|| Problem::missing("meter"))
}

/// One meter
///
/// The role `device` gets its radio address and medium, but not its place, serial number or readings.
#[utoipa::path(get, path = "/{twin}/meter/{id}", tag = "meters",
    responses((status = 200, body = Meter)))]
pub(crate) async fn show(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    let sees_all = member.role.may(Deed::LookAtWork);
    let meter = member.read(&app, move |db| find(db, &id, Time::now()));
    let mut meter = meter.await?;
    if !sees_all {
        meter.strip();
    }
    conditions.json_tagged(&meter, &meter.etag)
}

/// One meter, or many.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "says in the document what `Import` reads")]
pub(crate) enum MeterImport {
    One(Box<NewMeter>),
    Many {
        #[schema(max_items = 5000)]
        items: Vec<NewMeter>,
    },
}

/// Add a meter, or import many
///
/// An import updates existing meters.
#[utoipa::path(post, path = "/{twin}/meter", tag = "meters", request_body = MeterImport,
    responses((status = 200, body = ImportResults), (status = 201, body = Meter)))]
pub(crate) async fn add(Call(app, member): Call, body: Unread<Import<NewMeter>>) -> Answer {
    member.may(Deed::Manage)?;
    match body.read_import(MAX_METERS, "meters").await? {
        Import::One(new) => {
            let meter = member.write(&app, move |db| add_one(db, &new)).await?;
            json(StatusCode::CREATED, &meter)
        }

        Import::Many(items) => {
            let results = member.write(&app, move |db| {
                ImportResults::store_each(items, name_of, |id, new| store(db, id, new))
            });
            json(StatusCode::OK, &results.await?)
        }
    }
}

fn check_register(digits: Option<u8>, expected: Option<Expected>) -> Result<()> {
    if digits.is_some_and(|digits| !REGISTER_DIGITS.contains(&digits)) {
        return Err(Problem::invalid("register_digits", "expected 1 to 12"));
    }
    if expected.is_some_and(|expected| expected.low > expected.high) {
        return Err(Problem::invalid("expected", "low is above high"));
    }
    Ok(())
}

fn name_of(new: &NewMeter) -> Result<Name> {
    check_register(new.register_digits, new.expected)?;
    if let Some(id) = &new.id {
        return Ok(id.clone());
    }
    let Some(address) = &new.address else { return Ok(Name::random()) };
    address.short().parse().map_err(|wrong| Problem::invalid("id", wrong))
}

/// Stores a meter; whether one of this name was there before.
fn store(db: TwinDb<'_>, id: &Name, new: &NewMeter) -> Result<bool> {
    if let Some(address) = &new.address
        && meters::by_radio_address(db, &address.short())?.is_some_and(|other| other != *id)
    {
        return Err(Problem::conflict("another meter has this radio address"));
    }
    let was_known = meters::exists(db, id)?;
    meters::upsert(db, id, new, Time::now())?;
    Ok(was_known)
}

fn add_one(db: TwinDb<'_>, new: &NewMeter) -> Result<Meter> {
    let id = name_of(new)?;
    if meters::exists(db, &id)? {
        return Err(Problem::conflict("a meter with this name exists"));
    }
    store(db, &id, new)?;
    find(db, &id, Time::now())
}

/// Change a meter
#[utoipa::path(patch, path = "/{twin}/meter/{id}", tag = "meters", request_body = MeterChange,
    responses((status = 200, body = Meter)))]
pub(crate) async fn change(Edit(app, member, id, conditions, change): Edit<MeterChange>) -> Answer {
    member.may(Deed::Manage)?;
    check_register(change.register_digits, change.expected.flatten())?;
    let meter = member.write(&app, move |db| {
        let now = Time::now();
        let meter = find(db, &id, now)?;
        conditions.hold(&meter.etag)?;
        meters::change(db, &id, &change, now)?;
        find(db, &id, now)
    });
    let meter = meter.await?;
    Conditions::default().json_tagged(&meter, &meter.etag)
}

/// A meter's key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyChange {
    /// 32 hexadecimal digits; null removes the key.
    #[schema(pattern = "^[0-9A-Fa-f]{32}$", write_only, required)]
    #[serde(deserialize_with = "Option::deserialize")]
    key: Option<String>,
}

/// Set a meter's key
///
/// It is never shown again. From then on, only what is protected by it counts of what comes by radio. With another key, or
/// null, the server forgets how the meter's messages were protected and what their counters were.
#[utoipa::path(put, path = "/{twin}/meter/{id}/key", tag = "meters", request_body = KeyChange,
    responses((status = 204)))]
pub(crate) async fn set_key(Edit(app, member, id, _, change): Edit<KeyChange>) -> Answer {
    member.may(Deed::Administer)?;
    let bytes = change.key.as_deref().map(key_bytes).transpose()?;
    let is_known = member.write(&app, move |db| {
        let key = bytes.as_ref().map(<[u8; 16]>::as_slice);
        Ok(meters::set_key(db, &id, key, Time::now())?)
    });
    done_to(is_known.await?, "meter")
}

fn key_bytes(hex: &str) -> Result<[u8; 16]> {
    // Says what is wrong without the digits.
    hex.parse::<Key>().map_err(|error| Problem::invalid("key", error.to_string()))?;
    let number = u128::from_str_radix(hex, 16);
    number.map(u128::to_be_bytes).map_err(|_| Problem::invalid("key", "not hexadecimal"))
}

/// A meter's exchanges, newest first
///
/// All of them, at most 100; those that were taken back have `withdrawn_at`.
#[utoipa::path(get, path = "/{twin}/meter/{id}/exchange", tag = "meters",
    responses((status = 200, body = Page<Exchange>)))]
pub(crate) async fn exchanges(Single(app, member, id, conditions): Single) -> Answer {
    member.may(Deed::LookAtReadings)?;
    let items = member.read(&app, move |db| Ok(with_exchanges(db, &id)?.1));
    conditions.json(&Page { items: items.await?, next: None })
}

/// Enter that a meter was exchanged
///
/// This requires an admin or the office. Consumption goes on across the exchange, and readings are compared with the register
/// in place; those that came before it was entered are judged anew. One that is sent again is answered with 200.
#[utoipa::path(post, path = "/{twin}/meter/{id}/exchange", tag = "meters",
    request_body = NewExchange,
    responses((status = 200, body = Exchange), (status = 201, body = Exchange)))]
pub(crate) async fn enter_exchange(Edit(app, member, id, _, new): Edit<NewExchange>) -> Answer {
    member.may(Deed::Manage)?;
    let detail = serde_json::json!({ "twin": member.twin, "exchange": new });
    let entry = member.caller.change("meter.exchange", &id, detail);
    let (twin, entered_by) = (member.twin.clone(), member.name().clone());
    let entered = app.write_logged(entry, move |db| {
        let (meter, known) = with_exchanges(db.within(&twin), &id)?;
        if let Some(found) = known.iter().find(|known| known.new.id == new.id) {
            let values = |one: &NewExchange| (one.at, one.last, one.first);
            let same = values(&found.new) == values(&new);
            let other = || Problem::conflict("another exchange has this id: make a new one");
            return same.then(|| (StatusCode::OK, found.clone(), Vec::new())).ok_or_else(other);
        }
        check_exchange(db.within(&twin), &meter, &known, &new)?;
        let is_newest = next_exchange(&known, new.at).is_none();
        let serial = meter.serial.as_deref().filter(|_| is_newest);
        let old_serial = new.old_serial.or_else(|| Line::cut(serial?));
        let (new, entered_at) = (NewExchange { old_serial, ..new }, Time::now());
        let exchange =
            Exchange { new, entered_by, entered_at, withdrawn_by: None, withdrawn_at: None };
        let judged = store_exchange(db.within(&twin), &meter, &known, &exchange)?;
        Ok((StatusCode::CREATED, exchange, judged))
    });
    let (status, exchange, judged) = entered.await?;
    announce(&app, &member.twin, &judged);
    json(status, &exchange)
}

/// Take back an exchange that was a mistake
///
/// This requires an admin or the office. It stays in the list and counts no longer; readings are judged as without it.
#[utoipa::path(delete, path = "/{twin}/meter/{id}/exchange/{exchange}", tag = "meters",
    params(("exchange" = Uuid, Path)), responses((status = 204)))]
pub(crate) async fn withdraw_exchange(
    Call(app, member): Call,
    Ids([id, exchange]): Ids<2>,
) -> Answer {
    member.may(Deed::Manage)?;
    let detail = serde_json::json!({ "twin": member.twin, "exchange": exchange });
    let entry = member.caller.change("meter.exchange.withdraw", &id, detail);
    let (twin, by) = (member.twin.clone(), member.name().clone());
    let judged = app.write_logged(entry, move |db| {
        let (meter, known) = with_exchanges(db.within(&twin), &id)?;
        let found = known.iter().find(|known| known.new.id.to_string() == *exchange);
        let mut exchange = found.ok_or_else(|| Problem::missing("exchange"))?.clone();
        if exchange.withdrawn_at.is_some() {
            return Ok(Vec::new());
        }
        (exchange.withdrawn_by, exchange.withdrawn_at) = (Some(by), Some(Time::now()));
        store_exchange(db.within(&twin), &meter, &known, &exchange)
    });
    announce(&app, &member.twin, &judged.await?);
    done()
}

fn with_exchanges(db: TwinDb<'_>, id: &Name) -> Result<(Meter, Vec<Exchange>)> {
    let meter = find(db, id, Time::now())?;
    Ok((meter, meters::exchanges(db, id)?))
}

fn check_exchange(
    db: TwinDb<'_>,
    meter: &Meter,
    known: &[Exchange],
    new: &NewExchange,
) -> Result<()> {
    if is_future(new.at, Time::now()) {
        return Err(Problem::invalid("at", "this is in the future"));
    }
    for (field, value) in [("final", new.last), ("first", new.first)] {
        if !meter.can_show(*value, &meter.unit) {
            return Err(Problem::invalid(field, "the meter's register cannot show this"));
        }
    }
    if known.len() >= MAX_EXCHANGES {
        return Err(Problem::conflict(format!("a meter has at most {MAX_EXCHANGES} exchanges")));
    }
    if known.iter().any(|known| known.withdrawn_at.is_none() && known.new.at == new.at) {
        return Err(Problem::conflict("the meter was exchanged at this time: take that back"));
    }
    let before = reports::newest_before(db, &meter.id, new.at)?.map(|shown| shown.last.value);
    match before.filter(|before| *new.last < *before && !meter.medium.may_be_negative()) {
        None => Ok(()),
        Some(before) => {
            let hint = "correct that reading, or enter an earlier exchange, first";
            Err(Problem::invalid("final", format!("the meter showed {before} before: {hint}")))
        }
    }
}

/// The time of the first exchange after `at` that counts.
fn next_exchange(known: &[Exchange], at: Time) -> Option<Time> {
    let counting = known.iter().filter(|known| known.withdrawn_at.is_none());
    counting.map(|known| known.new.at).filter(|next| *next > at).min()
}

/// Stores an exchange, or that it was taken back, and what follows: the meter's serial number, if no exchange is newer, its
/// last value, and the flags of readings; gives those that changed.
fn store_exchange(
    db: TwinDb<'_>,
    meter: &Meter,
    known: &[Exchange],
    exchange: &Exchange,
) -> Result<Vec<Reading>> {
    let (Exchange { new, withdrawn_at, .. }, now) = (exchange, Time::now());
    let until = next_exchange(known, new.at);
    meters::put_exchange(db, &meter.id, exchange)?;
    let (from, to) = match withdrawn_at {
        None => (meter.serial.as_deref(), &new.new_serial),
        Some(_) => (new.new_serial.as_deref(), &new.old_serial),
    };
    if new.new_serial.is_some() && until.is_none() && from == meter.serial.as_deref() {
        let change = MeterChange { serial: Some(to.clone()), ..MeterChange::default() };
        meters::change(db, &meter.id, &change, now)?;
    }
    readings::update_meter(db, &meter.id, now)?;
    stored_readings(db, judge_anew(db, meter, new.at, until)?)
}

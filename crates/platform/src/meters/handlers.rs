//! What can be asked of meters.

use axum::extract::State;
use axum::http::StatusCode;
use fulmar_wmbus::Key;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::types::REGISTER_DIGITS;
use super::{Expected, Medium, Meter, NewMeter};
use crate::accounts::caller::{Ids, Member};
use crate::app::App;
use crate::extract::{Body, Import, Params, Unread, given};
use crate::number::Place;
use crate::problem::Problem;
use crate::respond::{Answer, Conditions, ImportResults, Imported, Page, done, json, open_cursor};
use crate::role::Deed;
use crate::store::filter::Bounds;
use crate::store::meters::{self, Added, Change, Query};
use crate::text::{Line, Name, Note, Text};
use crate::time::Time;

/// Meters of a page, and of one import.
const MAX_METERS: usize = 5000;

/// Which meters.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MeterQuery {
    /// A part of the map: west,south,east,north in degrees.
    #[param(value_type = Option<String>, example = "9.9,53.5,10.1,53.6",
        pattern = r"^-?\d{1,3}(\.\d{1,15})?(,-?\d{1,3}(\.\d{1,15})?){3}$")]
    bbox: Option<String>,
    /// A part of identifier, serial number, address or street.
    #[param(value_type = Option<String>, max_length = 200)]
    q: Option<Line>,
    /// Only those of which anything changed after this.
    changed_since: Option<Time>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 5000, default = 100)]
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// A part of the map, as a query names it.
pub(crate) fn bounds(text: &str) -> Result<Bounds, Problem> {
    let wrong = || Problem::invalid("bbox", "expected west,south,east,north in degrees");
    let numbers: Option<Vec<f64>> = text.split(',').map(|part| part.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[west, south, east, north])
            if [west, south, east, north].iter().all(|n| n.is_finite()) =>
        {
            Ok(Bounds { west, south, east, north })
        }
        _ => Err(wrong()),
    }
}

/// The twin's meters, by identifier
#[utoipa::path(get, path = "/{twin}/meter", tag = "meters", params(("twin" = Name, Path), MeterQuery),
    responses((status = 200, body = Page<Meter>)))]
pub(crate) async fn list(
    State(app): State<App>,
    member: Member,
    Params(query): Params<MeterQuery>,
    conditions: Conditions,
) -> Answer {
    let limit = crate::paging::limit(query.limit, MAX_METERS)?;
    let sees_all = member.role.may(Deed::LookAtWork);
    if !sees_all && (query.q.is_some() || query.bbox.is_some()) {
        // What is found would say what is not shown.
        return Err(Problem::forbidden("this role may not search for streets and places"));
    }
    let wanted = Query {
        within: query.bbox.as_deref().map(bounds).transpose()?,
        words: query.q.map(|words| words.to_string()).filter(|words| !words.is_empty()),
        changed_since: query.changed_since,
        after: open_cursor(query.cursor.as_deref())?,
    };
    let items = app
        .store
        .read(move |db| Ok(meters::list(db, &member.twin, &wanted, limit + 1, Time::now())?));
    let mut items = items.await?;
    if !sees_all {
        items.iter_mut().for_each(Meter::strip);
    }
    let page = Page::cut(items, limit, |meter: &Meter| meter.id.to_string());
    conditions.json(&page)
}

/// One meter
///
/// The role `device` gets its radio address and medium, but not its place, serial number or readings.
#[utoipa::path(get, path = "/{twin}/meter/{id}", tag = "meters",
    params(("twin" = Name, Path), ("id" = Name, Path)), responses((status = 200, body = Meter)))]
pub(crate) async fn show(
    State(app): State<App>,
    member: Member,
    Ids([id]): Ids<1>,
    conditions: Conditions,
) -> Answer {
    let sees_all = member.role.may(Deed::LookAtWork);
    let meter = app.store.read(move |db| {
        let meter = meters::get(db, &member.twin, &id, Time::now())?;
        meter.ok_or_else(|| Problem::not_found("meter"))
    });
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
#[utoipa::path(post, path = "/{twin}/meter", tag = "meters", params(("twin" = Name, Path)),
    request_body = MeterImport,
    responses((status = 200, body = ImportResults), (status = 201, body = Meter)))]
pub(crate) async fn add(
    State(app): State<App>,
    member: Member,
    body: Unread<Import<NewMeter>>,
) -> Answer {
    member.may(Deed::Manage)?;
    let import = body.read_import().await?;
    match import {
        Import::One(new) => {
            let meter = app.store.write(move |db| add_one(db, &member.twin, &new)).await?;
            json(StatusCode::CREATED, &meter)
        }
        Import::Many(items) if items.len() > MAX_METERS => {
            Err(Problem::too_large(format!("at most {MAX_METERS} meters at once")))
        }
        Import::Many(items) => {
            let results = app.store.write(move |db| {
                ImportResults::of(items, name_of, |id, new| import_one(db, &member.twin, id, new))
            });
            json(StatusCode::OK, &results.await?)
        }
    }
}

fn name_of(new: &NewMeter) -> Result<Name, Problem> {
    if new.register_digits.is_some_and(|digits| !REGISTER_DIGITS.contains(&digits)) {
        return Err(Problem::invalid("register_digits", "expected 1 to 12"));
    }
    if new.expected.is_some_and(|expected| expected.low > expected.high) {
        return Err(Problem::invalid("expected", "low is above high"));
    }
    if let Some(id) = &new.id {
        return Ok(id.clone());
    }
    let Some(address) = &new.address else { return Ok(Name::random()) };
    address.short().parse().map_err(|wrong| Problem::invalid("id", wrong))
}

const ADDRESS_TAKEN: &str = "another meter has this radio address";

fn add_one(db: &crate::store::Db, twin: &Name, new: &NewMeter) -> Result<Meter, Problem> {
    let id = name_of(new)?;
    if meters::exists(db, twin, &id)? {
        return Err(Problem::conflict("a meter with this name exists"));
    }
    let now = Time::now();
    if meters::put(db, twin, &id, new, now)? == Added::AddressTaken {
        return Err(Problem::conflict(ADDRESS_TAKEN));
    }
    meters::get(db, twin, &id, now)?.ok_or_else(|| Problem::not_found("meter"))
}

fn import_one(
    db: &crate::store::Db,
    twin: &Name,
    id: &Name,
    new: &NewMeter,
) -> Result<Imported, Problem> {
    Ok(match meters::put(db, twin, id, new, Time::now())? {
        Added::AddressTaken => {
            Imported::rejected(Some(id.to_string()), &Problem::conflict(ADDRESS_TAKEN))
        }
        added => Imported::stored(id, added == Added::Updated),
    })
}

/// Changes: omitted fields stay as they are, null clears.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeterChange {
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Line>)]
    serial: Option<Option<Line>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Line>)]
    manufacturer: Option<Option<Line>>,
    medium: Option<Medium>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Place>)]
    place: Option<Option<Place>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Line>)]
    street: Option<Option<Line>>,
    unit: Option<Text<1, 16>>,
    /// Digits of its register before the decimal point.
    #[schema(minimum = 1, maximum = 12)]
    register_digits: Option<u8>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Note>)]
    note: Option<Option<Note>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Expected>)]
    expected: Option<Option<Expected>>,
}

impl MeterChange {
    fn check(self) -> Result<Change, Problem> {
        if self.register_digits.is_some_and(|digits| !REGISTER_DIGITS.contains(&digits)) {
            return Err(Problem::invalid("register_digits", "expected 1 to 12"));
        }
        if self.expected.flatten().is_some_and(|expected| expected.low > expected.high) {
            return Err(Problem::invalid("expected", "low is above high"));
        }
        let line = |text: Option<Option<Line>>| text.map(|text| text.map(|text| text.to_string()));
        Ok(Change {
            serial: line(self.serial),
            manufacturer: line(self.manufacturer),
            medium: self.medium,
            place: self.place,
            street: line(self.street),
            unit: self.unit.map(|unit| unit.to_string()),
            register_digits: self.register_digits,
            note: self.note.map(|note| note.map(|note| note.to_string())),
            expected: self.expected,
        })
    }
}

/// Change a meter
#[utoipa::path(patch, path = "/{twin}/meter/{id}", tag = "meters",
    params(("twin" = Name, Path), ("id" = Name, Path)), request_body = MeterChange,
    responses((status = 200, body = Meter)))]
pub(crate) async fn change(
    State(app): State<App>,
    member: Member,
    Ids([id]): Ids<1>,
    conditions: Conditions,
    Body(change): Body<MeterChange>,
) -> Answer {
    member.may(Deed::Manage)?;
    let change = change.check()?;
    let meter = app.store.write(move |db| {
        let (twin, now) = (&member.twin, Time::now());
        let meter = meters::get(db, twin, &id, now)?.ok_or_else(|| Problem::not_found("meter"))?;
        conditions.hold(&meter.etag)?;
        meters::change(db, twin, &id, &change, now)?;
        meters::get(db, twin, &id, now)?.ok_or_else(|| Problem::not_found("meter"))
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
#[utoipa::path(put, path = "/{twin}/meter/{id}/key", tag = "meters",
    params(("twin" = Name, Path), ("id" = Name, Path)), request_body = KeyChange,
    responses((status = 204)))]
pub(crate) async fn set_key(
    State(app): State<App>,
    member: Member,
    Ids([id]): Ids<1>,
    Body(change): Body<KeyChange>,
) -> Answer {
    member.may(Deed::Administer)?;
    let bytes = change.key.as_deref().map(key_bytes).transpose()?;
    app.store
        .write(move |db| {
            let key = bytes.as_ref().map(<[u8; 16]>::as_slice);
            if meters::set_key(db, &member.twin, &id, key, Time::now())? {
                Ok(())
            } else {
                Err(Problem::not_found("meter"))
            }
        })
        .await?;
    done()
}

fn key_bytes(hex: &str) -> Result<[u8; 16], Problem> {
    // Says what is wrong without the digits.
    hex.parse::<Key>().map_err(|error| Problem::invalid("key", error.to_string()))?;
    let number = u128::from_str_radix(hex, 16);
    number.map(u128::to_be_bytes).map_err(|_| Problem::invalid("key", "not hexadecimal"))
}

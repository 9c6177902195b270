//! What can be asked of homes.

use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{Home, NewHome};
use crate::accounts::caller::{Call, Id};
use crate::alerts::{self, evaluate};
use crate::extract::{Body, Import, Params, Unread, given};
use crate::meters::handlers::bounds;
use crate::number::Place;
use crate::paging;
use crate::problem::Problem;
use crate::respond::{Answer, Conditions, ImportResults, Imported, Page, done, json, open_cursor};
use crate::role::Deed;
use crate::store::homes::{self, Change, Query};
use crate::store::{Db, alerts as alerts_of};
use crate::text::{Line, Name, Note, Title};
use crate::time::Time;

/// Homes of one import.
const MAX_HOMES: usize = 1000;

/// Which homes.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HomeQuery {
    /// A part of the map: west,south,east,north in degrees.
    #[param(value_type = Option<String>, example = "9.9,53.5,10.1,53.6",
        pattern = r"^-?\d{1,3}(\.\d{1,15})?(,-?\d{1,3}(\.\d{1,15})?){3}$")]
    bbox: Option<String>,
    /// A part of identifier, name or street.
    #[param(value_type = Option<String>, max_length = 200)]
    q: Option<Line>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// The twin's homes, by identifier
#[utoipa::path(get, path = "/{twin}/home", tag = "homes", params(HomeQuery),
    responses((status = 200, body = Page<Home>)))]
pub(crate) async fn list(
    Call(app, member): Call,
    Params(query): Params<HomeQuery>,
    conditions: Conditions,
) -> Answer {
    member.may(Deed::Report)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let wanted = Query {
        within: query.bbox.as_deref().map(bounds).transpose()?,
        words: query.q.map(|words| words.to_string()).filter(|words| !words.is_empty()),
        after: open_cursor(query.cursor.as_deref())?,
    };
    let items =
        app.store.read(move |db| Ok(homes::list(db, &member.twin, &wanted, limit, Time::now())?));
    let (items, shown) = items.await?;
    conditions.json(&Page::cut(items, shown, |home: &Home| home.id.to_string()))
}

fn find(db: &Db, twin: &Name, id: &Name) -> Result<Home, Problem> {
    homes::get(db, twin, id, Time::now())?.ok_or_else(|| Problem::not_found("home"))
}

/// One home
#[utoipa::path(get, path = "/{twin}/home/{id}", tag = "homes",
    responses((status = 200, body = Home)))]
pub(crate) async fn show(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    member.may(Deed::Report)?;
    let home = app.store.read(move |db| find(db, &member.twin, &id));
    conditions.json(&home.await?)
}

/// One home, or many.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "says in the document what `Import` reads")]
pub(crate) enum HomeImport {
    One(Box<NewHome>),
    Many {
        #[schema(max_items = 1000)]
        items: Vec<NewHome>,
    },
}

/// Add a home, or import many
///
/// An import updates existing homes.
#[utoipa::path(post, path = "/{twin}/home", tag = "homes", request_body = HomeImport,
    responses((status = 200, body = ImportResults), (status = 201, body = Home)))]
pub(crate) async fn add(Call(app, member): Call, body: Unread<Import<NewHome>>) -> Answer {
    member.may(Deed::Manage)?;
    let import = body.read_import().await?;
    match import {
        Import::One(new) => {
            let home = app.store.write(move |db| {
                let id = new.id.clone().unwrap_or_else(Name::random);
                if homes::exists(db, &member.twin, &id)? {
                    return Err(Problem::conflict("a home with this name exists"));
                }
                homes::put(db, &member.twin, &id, &new)?;
                find(db, &member.twin, &id)
            });
            json(StatusCode::CREATED, &home.await?)
        }
        Import::Many(items) if items.len() > MAX_HOMES => {
            Err(Problem::too_large(format!("at most {MAX_HOMES} homes at once")))
        }
        Import::Many(items) => {
            let results = app.store.write(move |db| {
                let name_of = |new: &NewHome| Ok(new.id.clone().unwrap_or_else(Name::random));
                ImportResults::of(items, name_of, |id, new| {
                    let was_known = homes::exists(db, &member.twin, id)?;
                    homes::put(db, &member.twin, id, new)?;
                    Ok(Imported::stored(id, was_known))
                })
            });
            json(StatusCode::OK, &results.await?)
        }
    }
}

/// Changes: omitted fields stay as they are, null clears.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HomeChange {
    name: Option<Title>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Place>)]
    place: Option<Option<Place>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Line>)]
    street: Option<Option<Line>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Note>)]
    note: Option<Option<Note>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Name>)]
    gateway: Option<Option<Name>>,
}

/// Change a home
#[utoipa::path(patch, path = "/{twin}/home/{id}", tag = "homes", request_body = HomeChange,
    responses((status = 200, body = Home)))]
pub(crate) async fn change(
    Call(app, member): Call,
    Id(id): Id,
    conditions: Conditions,
    Body(change): Body<HomeChange>,
) -> Answer {
    member.may(Deed::Manage)?;
    let HomeChange { name, place, street, note, gateway } = change;
    let home = app.store.write(move |db| {
        let home = find(db, &member.twin, &id)?;
        conditions.hold_of(&home, &home.etag)?;
        let change = Change { name, place, street, note, gateway };
        homes::change(db, &member.twin, &id, &change)?;
        find(db, &member.twin, &id)
    });
    Conditions::default().json(&home.await?)
}

/// Remove a home
///
/// Its sensors stay, with what they measured, as sensors without a home; rules for it alone go with it.
#[utoipa::path(delete, path = "/{twin}/home/{id}", tag = "homes", responses((status = 204)))]
pub(crate) async fn remove(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    member.may(Deed::Manage)?;
    let twin = member.twin.clone();
    let removed = app.store.write(move |db| {
        let (twin, now) = (&twin, Time::now());
        let home = find(db, twin, &id)?;
        conditions.hold_of(&home, &home.etag)?;
        let mut notifications = Vec::new();
        for rule in alerts_of::rules_of_home(db, twin, &id)? {
            notifications.extend(evaluate::retire(db, twin, &rule, now)?);
            alerts_of::remove_rule(db, twin, &rule)?;
        }
        for device in homes::devices(db, twin, &id)? {
            notifications.extend(evaluate::moved(db, twin, &device, now)?);
        }
        homes::remove(db, twin, &id)?;
        Ok(notifications)
    });
    alerts::announce(&app, &member.twin, &removed.await?);
    done()
}

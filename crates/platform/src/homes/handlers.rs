//! What can be asked of homes.

use super::types::{HomeChange, HomeQuery};
use super::{Home, NewHome};
use crate::alerts::{evaluate, handlers as alerts};
use crate::prelude::*;
use crate::store::alerts as alerts_of;
use crate::store::homes;

/// Homes of one import.
const MAX_HOMES: usize = 1000;

/// The twin's homes, by identifier
#[utoipa::path(get, path = "/{twin}/home", tag = "homes", params(HomeQuery),
    responses((status = 200, body = Page<Home>)))]
pub(crate) async fn list(Lookup(app, member, query, conditions): Lookup<HomeQuery>) -> Answer {
    member.may(Deed::Report)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let after = open_cursor(query.cursor.as_deref())?.unwrap_or_default();
    let items =
        member.read(&app, move |db| Ok(homes::list(db, &query, &after, limit, Time::now())?));
    let (items, shown) = items.await?;
    conditions.json(&Page::cut(items, shown, |home: &Home| home.id.to_string()))
}

fn find(db: TwinDb<'_>, id: &Name) -> Result<Home> {
    homes::get(db, id, Time::now())?.ok_or_else(|| Problem::missing("home"))
}

/// One home
#[utoipa::path(get, path = "/{twin}/home/{id}", tag = "homes",
    responses((status = 200, body = Home)))]
pub(crate) async fn show(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    member.may(Deed::Report)?;
    let home = member.read(&app, move |db| find(db, &id));
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
    match body.read_import(MAX_HOMES, "homes").await? {
        Import::One(new) => {
            let home = member.write(&app, move |db| {
                let id = new.id.clone().unwrap_or_else(Name::random);
                if homes::exists(db, &id)? {
                    return Err(Problem::conflict("a home with this name exists"));
                }
                homes::upsert(db, &id, &new)?;
                find(db, &id)
            });
            json(StatusCode::CREATED, &home.await?)
        }

        Import::Many(items) => {
            let results = member.write(&app, move |db| {
                let name_of = |new: &NewHome| Ok(new.id.clone().unwrap_or_else(Name::random));
                ImportResults::store_each(items, name_of, |id, new| {
                    let was_known = homes::exists(db, id)?;
                    homes::upsert(db, id, new)?;
                    Ok(was_known)
                })
            });
            json(StatusCode::OK, &results.await?)
        }
    }
}

/// Change a home
#[utoipa::path(patch, path = "/{twin}/home/{id}", tag = "homes", request_body = HomeChange,
    responses((status = 200, body = Home)))]
pub(crate) async fn change(Edit(app, member, id, conditions, change): Edit<HomeChange>) -> Answer {
    member.may(Deed::Manage)?;
    let home = member.write(&app, move |db| {
        let home = find(db, &id)?;
        conditions.hold_of(&home, &home.etag)?;
        homes::change(db, &id, &change)?;
        find(db, &id)
    });
    Conditions::default().json(&home.await?)
}

/// Remove a home
///
/// Its sensors stay, with what they measured, as sensors without a home; rules for it alone go with it.
#[utoipa::path(delete, path = "/{twin}/home/{id}", tag = "homes", responses((status = 204)))]
pub(crate) async fn remove(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    member.may(Deed::Manage)?;
    let removed = member.write(&app, move |db| {
        let now = Time::now();
        let home = find(db, &id)?;
        conditions.hold_of(&home, &home.etag)?;
        let mut notifications = Vec::new();
        for rule in alerts_of::rules_of_home(db, &id)? {
            notifications.extend(evaluate::retire(db, &rule, now)?);
            alerts_of::remove_rule(db, &rule)?;
        }
        for device in homes::devices(db, &id)? {
            notifications.extend(evaluate::moved(db, &device, now)?);
        }
        homes::remove(db, &id)?;
        Ok(notifications)
    });
    alerts::announce(&app, &member.twin, &removed.await?);
    done()
}

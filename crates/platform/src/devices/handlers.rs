//! What can be asked of devices.

use fulmar_http::NoLongerAllowed;

use super::types::{Command, CommandState, Device, NewDevice, Telemetry};
use crate::prelude::*;
use crate::store::{device_names, devices};
use crate::topics::position_topic;

/// Items sent at once, and commands shown.
const MAX_ITEMS: usize = 1000;
/// Characters of a command's arguments.
const MAX_ARGS: usize = 16 * 1024;

/// The device, if it is the member's own or the member manages devices.
fn own(db: TwinDb<'_>, member: &Member, device: &Name) -> Result<Device> {
    let instance = devices::get(db, device)?;
    let instance = instance.ok_or_else(|| Problem::missing("device"))?;
    let is_own = member.role.may(Deed::Manage) || instance.user.as_ref() == Some(member.name());
    is_own.then_some(instance).ok_or_else(|| Problem::forbidden("this is another user's device"))
}

/// The twin's devices, by name
#[utoipa::path(get, path = "/{twin}/instance", tag = "devices", params(PageQuery),
    responses((status = 200, body = Page<Device>)))]
pub(crate) async fn list(Lookup(app, member, query, conditions): Lookup<PageQuery>) -> Answer {
    member.may(Deed::Look)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let after = open_cursor(query.cursor.as_deref())?.unwrap_or_default();
    let items = app.store.read(move |db| {
        let db = db.within(&member.twin);
        let of = (member.role == Role::Device).then(|| &**member.name());
        Ok(devices::list(db, of, &after, limit + 1)?)
    });
    let page = Page::cut(items.await?, limit, |item: &Device| item.device.to_string());
    conditions.json(&page)
}

/// One device
#[utoipa::path(get, path = "/{twin}/instance/{device}", tag = "devices",
    responses((status = 200, body = Device)))]
pub(crate) async fn show(Single(app, member, device, conditions): Single) -> Answer {
    let instance = app.store.read(move |db| {
        let db = db.within(&member.twin);
        if member.role == Role::Device {
            return own(db, &member, &device);
        }
        let instance = devices::get(db, &device)?;
        instance.ok_or_else(|| Problem::missing("device"))
    });
    conditions.json(&instance.await?)
}

/// Register or update a device
///
/// The user who registers a device first owns it. The name of an account, also in another case, is that account's: nobody
/// else can register it (403), and what admin and office register under it is the account's. A user can have 1,000 devices
/// in a twin, and a twin 50,000; registering further ones is refused (409).
#[utoipa::path(put, path = "/{twin}/instance/{device}", tag = "devices", request_body = NewDevice,
    responses((status = 200, body = Device)))]
pub(crate) async fn put(Edit(app, member, device, _, new): Edit<NewDevice>) -> Answer {
    member.may(Deed::BeDevice)?;
    let asked = app.clone();
    let instance = app.store.write(move |db| {
        let db = db.within(&member.twin);
        // While this waited, the account may have been removed, and its devices with it: another one of that name would have
        // this one.
        if !member.still_is(&asked) {
            return Err(NoLongerAllowed.into());
        }
        let known = devices::get(db, &device)?;
        let is_freed = known.as_ref().is_some_and(|known| known.user.is_none());
        let owner = if let Some(owner) = known.and_then(|known| known.user) {
            own(db, &member, &device)?;
            owner
        } else {
            new_owner(&asked, &member, &device)?
        };
        if is_freed {
            let to = device_names::move_away(db, &device, asked.account_cache.identities())?;
            tracing::info!(twin = %member.twin, %device, name = %to, "an earlier user's device has another name now");
            asked.account_cache.own(&member.twin, &to, None);
            asked.announcements.clear_retained(position_topic(&member.twin, &device));
        }
        devices::upsert(db, &device, &new, &owner, Time::now())?;
        // On this thread, so that the next one is counted with it.
        asked.account_cache.own(&member.twin, &device, Some(&owner));
        devices::get(db, &device)?.ok_or_else(|| Problem::missing("device"))
    });
    json(StatusCode::OK, &instance.await?)
}

/// Whose a device will be that the member registers.
fn new_owner(app: &App, member: &Member, device: &Name) -> Result<Name> {
    let (twin, user) = (&member.twin, member.name());
    // What another process has just made is not known here yet: then the account takes its name back.
    let owner = match app.account_cache.namesake(device) {
        Some(account) if account != *user => {
            let theirs = account == *device
                && app
                    .account_cache
                    .account(&account)
                    .is_some_and(|account| app.account_cache.role(&account, twin).is_some());
            if !(theirs && member.role.may(Deed::Manage)) {
                tracing::warn!(user = &**user, %twin, %device, "device refused: another account's name");
                return Err(Problem::forbidden("this is the name of another user"));
            }
            account
        }
        _ => user.clone(),
    };
    if let Err(many) = app.account_cache.may_register(twin, &owner) {
        tracing::warn!(user = &**user, %twin, "device refused: {many}");
        return Err(Problem::conflict(many.to_string()));
    }
    Ok(owner)
}

/// Arguments of a command.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandArgs {
    /// Any JSON object; its form is between office and device.
    #[serde(default)]
    #[schema(value_type = Object, required = false)]
    args: serde_json::Map<String, serde_json::Value>,
}

/// Send a command to a device
///
/// The device sees it over MQTT or in its list of commands.
#[utoipa::path(post, path = "/{twin}/instance/{device}/command/{command}", tag = "devices",
    request_body = CommandArgs, responses((status = 202, body = Command)))]
pub(crate) async fn give_command(
    Call(app, member): Call,
    Ids([device, command]): Ids<2>,
    Body(CommandArgs { args }): Body<CommandArgs>,
) -> Answer {
    member.may(Deed::Manage)?;
    let now = Time::now();
    let command = Command {
        id: Uuid::new_v4(),
        command,
        args: args.into(),
        state: CommandState::Pending,
        detail: None,
        given_by: member.name().clone(),
        given_at: now,
        changed_at: now,
    };
    if command.args.to_string().len() > MAX_ARGS {
        return Err(Problem::too_large(format!("args has more than {MAX_ARGS} characters")));
    }
    let (twin, to, stored) = (member.twin.clone(), device.clone(), command.clone());
    app.store
        .write(move |db| {
            let db = db.within(&member.twin);
            own(db, &member, &device)?;
            Ok(devices::add_command(db, &device, &stored)?)
        })
        .await?;
    app.announcements.publish(format!("fulmar/{twin}/instance/{to}/command"), &command, false);
    json(StatusCode::ACCEPTED, &command)
}

/// A device's newest commands, oldest first
#[utoipa::path(get, path = "/{twin}/instance/{device}/command", tag = "devices",
    responses((status = 200, body = Page<Command>)))]
pub(crate) async fn commands(Single(app, member, device, conditions): Single) -> Answer {
    let items = app.store.read(move |db| {
        let db = db.within(&member.twin);
        own(db, &member, &device)?;
        Ok(devices::commands(db, &device, MAX_ITEMS)?)
    });
    conditions.json(&Page { items: items.await?, next: None })
}

/// Progress of a command.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandChange {
    state: CommandState,
    detail: Option<Line>,
}

/// Report a command's progress
#[utoipa::path(patch, path = "/{twin}/instance/{device}/command/{command}", tag = "devices",
    params(("command" = Uuid, Path, description = "Its id")), request_body = CommandChange,
    responses((status = 204)))]
pub(crate) async fn change_command(
    Call(app, member): Call,
    Ids([device, id]): Ids<2>,
    Body(change): Body<CommandChange>,
) -> Answer {
    member.may(Deed::BeDevice)?;
    let id: Uuid = id.parse().map_err(|_| Problem::missing("command"))?;
    let is_known = app.store.write(move |db| {
        let db = db.within(&member.twin);
        own(db, &member, &device)?;
        let (state, detail) = (change.state, change.detail.as_deref());
        Ok(devices::set_command(db, &device, id, state, detail, Time::now())?)
    });
    done_to(is_known.await?, "command")
}

/// A device's telemetry.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TelemetryUpload {
    #[serde(deserialize_with = "at_most::<MAX_ITEMS, _, _>")]
    #[schema(max_items = 1000)]
    items: Vec<Telemetry>,
}

/// The result for each item.
#[derive(Serialize, ToSchema)]
pub(crate) struct TelemetryResults {
    results: Vec<TelemetryResult>,
}

/// The result for an item.
#[derive(Serialize, ToSchema)]
pub(crate) struct TelemetryResult {
    id: Uuid,
    status: crate::readings::Status,
    /// Why it was rejected.
    detail: Option<String>,
}

impl TelemetryResult {
    /// Rejected, if it is from the future: it would be its device's newest until then.
    fn checked(item: &Telemetry, now: Time) -> TelemetryResult {
        use crate::readings::Status::{Duplicate, Rejected};
        let (id, at) = (item.id, item.at);
        if at.is_ahead_of(now) {
            let detail = format!("at: {at} is in the future: set the device's clock");
            return TelemetryResult { id, status: Rejected, detail: Some(detail) };
        }
        TelemetryResult { id, status: Duplicate, detail: None }
    }
}

/// Where a device is.
#[derive(Serialize)]
struct Position {
    at: Time,
    place: Place,
    speed_mps: Option<f64>,
    battery_percent: Option<f64>,
}

/// Send telemetry
///
/// Items sent twice are stored once; items more than a day ahead of the server's clock are rejected. The newest 100,000
/// of a device are kept.
#[utoipa::path(post, path = "/{twin}/instance/{device}/telemetry", tag = "devices",
    request_body = TelemetryUpload, responses((status = 200, body = TelemetryResults)))]
pub(crate) async fn add_telemetry(
    Call(app, member): Call,
    Id(device): Id,
    body: Unread<TelemetryUpload>,
) -> Answer {
    use crate::readings::Status::{Rejected, Stored};
    member.may(Deed::BeDevice)?;
    let TelemetryUpload { mut items } = body.read().await?;
    if items.len() > MAX_ITEMS {
        return Err(Problem::too_large(format!("at most {MAX_ITEMS} items at once")));
    }
    let now = Time::now();
    let mut results: Vec<TelemetryResult> =
        items.iter().map(|item| TelemetryResult::checked(item, now)).collect();
    items.retain(|item| !item.at.is_ahead_of(now));
    let latest = items.iter().filter(|item| item.place.is_some()).max_by_key(|item| item.at);
    let position = latest.and_then(|item| {
        Some(Position {
            at: item.at,
            place: item.place?,
            speed_mps: item.speed_mps.map(|speed| *speed),
            battery_percent: item.battery_percent.map(|percent| *percent),
        })
    });
    let topic = position_topic(&member.twin, &device);
    let results = app.store.write(move |db| {
        let db = db.within(&member.twin);
        own(db, &member, &device)?;
        let most = devices::MAX_TELEMETRY;
        let new = devices::add_telemetry(db, &device, &items, now, most)?;
        let taken = results.iter_mut().filter(|result| result.status != Rejected);
        taken.zip(new).filter(|(_, new)| *new).for_each(|(result, _)| result.status = Stored);
        Ok(results)
    });
    let results = results.await?;
    if let Some(position) = position {
        app.announcements.publish(topic, &position, true);
    }
    json(StatusCode::OK, &TelemetryResults { results })
}

/// Filter of telemetry.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TelemetryQuery {
    /// Then or later.
    since: Option<Time>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// A device's telemetry, oldest first
#[utoipa::path(get, path = "/{twin}/instance/{device}/telemetry", tag = "devices",
    params(TelemetryQuery), responses((status = 200, body = Page<Telemetry>)))]
pub(crate) async fn telemetry(
    Call(app, member): Call,
    Id(device): Id,
    Params(query): Params<TelemetryQuery>,
    conditions: Conditions,
) -> Answer {
    let limit = paging::limit(query.limit, MAX_ITEMS)?;
    let items = app.store.read(move |db| {
        let db = db.within(&member.twin);
        if member.role != Role::Viewer {
            own(db, &member, &device)?;
        } else if devices::get(db, &device)?.is_none() {
            return Err(Problem::missing("device"));
        }
        Ok(devices::telemetry(db, &device, query.since, limit)?)
    });
    conditions.json(&Page { items: items.await?, next: None })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::accounts::changes::open_identities;
    use crate::admin::{Admin, UserToAdd};
    use crate::settings::Settings;

    #[tokio::test]
    async fn a_device_is_not_registered_for_an_account_that_was_removed_while_it_waited() {
        let folder = tempfile::tempdir().unwrap();
        let identities = open_identities(folder.path()).unwrap();
        let (app, _) = App::open(folder.path(), Settings::default(), identities, None).unwrap();
        let admin = Admin::within(app.clone());
        admin.add_twin("north", None, false).unwrap();
        let role = Some(("north", Role::Reader));
        let ann = UserToAdd { name: "ann", display_name: None, server_admin: false, role };
        admin.add_device(&ann).unwrap();
        let caller = app.caller(&admin.add_token("ann", None).unwrap(), Time::now()).unwrap();
        let member = Member { caller, twin: "north".parse().unwrap(), role: Role::Reader };
        let register = async |name: &str| {
            let new = serde_json::from_value(serde_json::json!({"kind": "van"})).unwrap();
            let name = name.parse().unwrap();
            put(Edit(app.clone(), member.clone(), name, Conditions::default(), new)).await
        };
        register("first").await.unwrap();
        admin.remove_user("ann").unwrap();
        assert_eq!(register("second").await.unwrap_err().status(), 401);
        admin.add_device(&ann).unwrap();
        let device = |name: &str| name.parse::<Name>().unwrap();
        assert_eq!(app.account_cache.owner(&member.twin, &device("first")), None);
        assert_eq!(app.account_cache.owner(&member.twin, &device("second")), None);
    }
}

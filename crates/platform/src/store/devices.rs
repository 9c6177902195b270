//! Devices in the field, commands to them, and their telemetry.

use super::filter::insert;
use super::prelude::*;
use crate::devices::types::{Command, CommandState, Device, NewDevice, Telemetry};

/// The most items of telemetry per device; beyond, the oldest are deleted.
pub(crate) const MAX_TELEMETRY: u32 = 100_000;

const INSTANCE: &str =
    "SELECT i.device, i.kind, i.name, i.app_version, NULLIF(i.account, ''), i.seen_at,
    (SELECT item FROM telemetry t WHERE t.twin = i.twin AND t.device = i.device
        ORDER BY at DESC, id DESC LIMIT 1)
    FROM instance i";

from_row! {
    Device { device, kind, name, app_version, user, seen_at, telemetry }
    Command { id, command, args, state, detail, given_by, given_at, changed_at }
}

/// Telemetry that another version stored and this one cannot parse is none.
impl FromSql for Option<Telemetry> {
    fn from_sql(value: Value<'_>) -> std::result::Result<Self, Mismatch> {
        let item = Option::<String>::from_sql(value)?;
        Ok(item.and_then(|item| serde_json::from_str(&item).ok()))
    }
}

impl FromSql for serde_json::Value {
    fn from_sql(value: Value<'_>) -> std::result::Result<Self, Mismatch> {
        Ok(serde_json::from_str(value.as_str()?).unwrap_or_default())
    }
}

pub(crate) fn get(db: TwinDb<'_>, device: &str) -> Result<Option<Device>> {
    let sql = format!("{INSTANCE} WHERE i.twin = ?1 AND i.device = ?2");
    db.find(&sql, [db.twin, device])
}

/// Up to `limit` devices by name, after `after`; only those of one user if one is named.
pub(crate) fn list(
    db: TwinDb<'_>,
    of: Option<&str>,
    after: &str,
    limit: usize,
) -> Result<Vec<Device>> {
    let mut filter = Filter::default();
    filter.and("i.twin = ?", [Box::new(db.twin)]).and("i.device > ?", [Box::new(after)]);
    filter.and_if("i.account = ?", of);
    filter.list(db, INSTANCE, "i.device", limit)
}

/// All devices: twin, device and owner; none of one whose account was removed.
pub(crate) fn owners(db: &Db) -> Result<Vec<(Name, Name, Option<Name>)>> {
    db.list("SELECT twin, device, NULLIF(account, '') FROM instance", ())
}

pub(crate) fn upsert(
    db: TwinDb<'_>,
    device: &Name,
    new: &NewDevice,
    account: &Name,
    now: Time,
) -> Result<()> {
    let sql = "INSERT INTO instance (twin, device, kind, name, app_version, account, seen_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (twin, device) DO UPDATE SET kind = excluded.kind, name = excluded.name,
             app_version = excluded.app_version, seen_at = excluded.seen_at";
    let values = params![db.twin, device, new.kind, new.name, new.app_version, account, now];
    db.execute(sql, values).map(drop)
}

pub(crate) fn add_command(db: TwinDb<'_>, device: &str, command: &Command) -> Result<()> {
    let columns = columns!(
        command; device = device, id, command, args = command.args.to_string(), state, detail, given_by, given_at,
        changed_at
    );
    insert(db, "command", columns)
}

/// The newest `limit` commands to a device, oldest first.
pub(crate) fn commands(db: TwinDb<'_>, device: &str, limit: usize) -> Result<Vec<Command>> {
    let sql = "SELECT id, command, args, state, detail, given_by, given_at, changed_at FROM command
         WHERE twin = ?1 AND device = ?2 ORDER BY seq DESC LIMIT ?3";
    let mut commands = db.list(sql, params![db.twin, device, limit])?;
    commands.reverse();
    Ok(commands)
}

/// Sets the state of a command; returns whether the command exists.
pub(crate) fn set_command(
    db: TwinDb<'_>,
    device: &str,
    id: Uuid,
    state: CommandState,
    detail: Option<&str>,
    now: Time,
) -> Result<bool> {
    let sql = "UPDATE command SET state = ?4, detail = ?5, changed_at = ?6
         WHERE twin = ?1 AND device = ?2 AND id = ?3";
    let changed = db.execute(sql, params![db.twin, device, id, state, detail, now])?;
    Ok(changed == 1)
}

/// Stores new items, and deletes the oldest of the device beyond `most`; returns which of them were new.
pub(crate) fn add_telemetry(
    db: TwinDb<'_>,
    device: &str,
    items: &[Telemetry],
    now: Time,
    most: u32,
) -> Result<Vec<bool>> {
    let mut new = Vec::with_capacity(items.len());
    for item in items {
        let json = serde_json::to_string(item).unwrap_or_default();
        let values = params![db.twin, device, item.at, item.id, json];
        new.push(
            db.execute(
                "INSERT INTO telemetry (twin, device, at, id, item) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO NOTHING",
                values,
            )? == 1,
        );
    }
    let sql = "DELETE FROM telemetry WHERE twin = ?1 AND device = ?2 AND (at, id) <=
         (SELECT at, id FROM telemetry WHERE twin = ?1 AND device = ?2
          ORDER BY at DESC, id DESC LIMIT 1 OFFSET ?3)";
    db.execute(sql, params![db.twin, device, most])?;
    let sql = "UPDATE instance SET seen_at = ?3 WHERE twin = ?1 AND device = ?2";
    db.execute(sql, params![db.twin, device, now])?;
    Ok(new)
}

/// Up to `limit` items from `since` on, oldest first.
pub(crate) fn telemetry(
    db: TwinDb<'_>,
    device: &str,
    since: Option<Time>,
    limit: usize,
) -> Result<Vec<Telemetry>> {
    let since = since.unwrap_or(Time(i64::MIN));
    let sql = "SELECT item FROM telemetry WHERE twin = ?1 AND device = ?2 AND at >= ?3 ORDER BY at, id LIMIT ?4";
    let items: Vec<Option<Telemetry>> = db.list(sql, params![db.twin, device, since, limit])?;
    Ok(items.into_iter().flatten().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::sql::{Database, Purpose};
    use crate::store::{Store, twins};
    use crate::twins::types::TwinKind;

    /// The limit of these tests.
    const MOST: u32 = 5;

    fn items(numbers: std::ops::Range<u128>, at: impl Fn(u128) -> i64) -> Vec<Telemetry> {
        let item = |number| {
            let (id, at) = (Uuid::from_u128(number), Time(at(number)));
            serde_json::from_value(serde_json::json!({"id": id, "at": at})).unwrap()
        };
        numbers.map(item).collect()
    }

    #[test]
    fn the_newest_items_are_kept_also_of_one_moment() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
        let kept = store.write_now(|db| {
            let (van, now) = ("van".parse().unwrap(), Time(9));
            twins::add(db.within("t"), "T", TwinKind::Meters, None, now)?;
            let ann = "ann".parse().unwrap();
            let new = serde_json::from_str(r#"{"kind": "van"}"#).unwrap();
            upsert(db.within("t"), &van, &new, &ann, now)?;
            let mut kept = Vec::new();
            for items in [items(0..8, |_| 7), items(8..10, |_| 7), items(10..13, |n| n as i64)] {
                add_telemetry(db.within("t"), "van", &items, now, MOST)?;
                let left = telemetry(db.within("t"), "van", None, 100)?;
                kept.push(left.iter().map(|item| item.id.as_u128()).collect::<Vec<_>>());
            }
            Ok(kept)
        });
        let expected = [vec![3, 4, 5, 6, 7], vec![5, 6, 7, 8, 9], vec![8, 9, 10, 11, 12]];
        assert_eq!(kept.unwrap(), expected);
    }
}

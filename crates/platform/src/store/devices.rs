//! Devices in the field, commands to them, and their telemetry.

use uuid::Uuid;

use super::Db;
use super::filter::Filter;
use super::sql::{OptionalExtension as _, Result, params};
use crate::devices::types::{Command, CommandState, Device, Telemetry};
use crate::text::Name;
use crate::time::Time;

/// The most items of telemetry per device; beyond, the oldest are deleted.
pub(crate) const MAX_TELEMETRY: u32 = 100_000;

const INSTANCE: &str = "SELECT i.device, i.kind, i.name, i.app_version, i.account, i.seen_at,
    (SELECT item FROM telemetry t WHERE t.twin = i.twin AND t.device = i.device
        ORDER BY at DESC, id DESC LIMIT 1)
    FROM instance i";

/// Whose a device is; of an account that was removed, the column is empty.
fn owner(row: &super::sql::Row<'_>, column: usize) -> Result<Option<Name>> {
    Ok(row.get::<String>(column)?.parse().ok())
}

fn instance(row: &super::sql::Row<'_>) -> Result<Device> {
    let telemetry: Option<String> = row.get(6)?;
    Ok(Device {
        device: row.get(0)?,
        kind: row.get(1)?,
        name: row.get(2)?,
        app_version: row.get(3)?,
        user: owner(row, 4)?,
        seen_at: row.get(5)?,
        telemetry: telemetry.and_then(|item| serde_json::from_str(&item).ok()),
    })
}

pub(crate) fn get(db: &Db, twin: &str, device: &str) -> Result<Option<Device>> {
    let sql = format!("{INSTANCE} WHERE i.twin = ?1 AND i.device = ?2");
    db.prepare_cached(&sql)?.query_row([twin, device], instance).optional()
}

/// Up to `limit` devices by name, after `after`; only those of one user if one is named.
pub(crate) fn list(
    db: &Db,
    twin: &str,
    of: Option<&str>,
    after: &str,
    limit: usize,
) -> Result<Vec<Device>> {
    let mut filter = Filter::default();
    filter.and("i.twin = ?", [Box::new(twin)]).and("i.device > ?", [Box::new(after)]);
    filter.and_if("i.account = ?", of);
    filter.list(db, INSTANCE, "i.device", limit, instance)
}

/// All devices: twin, device and owner.
pub(crate) fn owners(db: &Db) -> Result<Vec<(Name, Name, Option<Name>)>> {
    let mut rows = db.prepare_cached("SELECT twin, device, account FROM instance")?;
    let rows = rows.query_map((), |row| Ok((row.get(0)?, row.get(1)?, owner(row, 2)?)))?;
    rows.collect()
}

pub(crate) fn put(
    db: &Db,
    twin: &str,
    device: &Name,
    new: &crate::devices::types::NewDevice,
    account: &Name,
    now: Time,
) -> Result<()> {
    let mut insert = db.prepare_cached(
        "INSERT INTO instance (twin, device, kind, name, app_version, account, seen_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (twin, device) DO UPDATE SET kind = excluded.kind, name = excluded.name,
             app_version = excluded.app_version, seen_at = excluded.seen_at",
    )?;
    let values = params![twin, device, new.kind, new.name, new.app_version, account, now];
    insert.execute(values).map(drop)
}

pub(crate) fn add_command(db: &Db, twin: &str, device: &str, command: &Command) -> Result<()> {
    let Command { id, command, args, state, detail, given_by, given_at, changed_at } = command;
    db.execute(
        "INSERT INTO command (twin, device, id, command, args, state, detail, given_by, given_at, changed_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            twin,
            device,
            id.to_string(),
            command,
            args.to_string(),
            state,
            detail,
            given_by,
            given_at,
            changed_at
        ],
    )
    .map(drop)
}

/// The newest `limit` commands to a device, oldest first.
pub(crate) fn commands(db: &Db, twin: &str, device: &str, limit: usize) -> Result<Vec<Command>> {
    let mut rows = db.prepare_cached(
        "SELECT id, command, args, state, detail, given_by, given_at, changed_at FROM command
         WHERE twin = ?1 AND device = ?2 ORDER BY seq DESC LIMIT ?3",
    )?;
    let rows = rows.query_map(params![twin, device, limit], |row| {
        let (id, args): (String, String) = (row.get(0)?, row.get(2)?);
        Ok(Command {
            id: id.parse().unwrap_or_default(),
            command: row.get(1)?,
            args: serde_json::from_str(&args).unwrap_or_default(),
            state: row.get(3)?,
            detail: row.get(4)?,
            given_by: row.get(5)?,
            given_at: row.get(6)?,
            changed_at: row.get(7)?,
        })
    })?;
    let mut commands: Vec<Command> = rows.collect::<Result<_>>()?;
    commands.reverse();
    Ok(commands)
}

/// Sets the state of a command; returns whether the command exists.
pub(crate) fn set_command(
    db: &Db,
    (twin, device): (&str, &str),
    id: Uuid,
    (state, detail): (CommandState, Option<&str>),
    now: Time,
) -> Result<bool> {
    let changed = db.execute(
        "UPDATE command SET state = ?4, detail = ?5, changed_at = ?6
         WHERE twin = ?1 AND device = ?2 AND id = ?3",
        params![twin, device, id.to_string(), state, detail, now],
    )?;
    Ok(changed == 1)
}

/// Stores new items, and deletes the oldest of the device beyond `most`; returns which of them were new.
pub(crate) fn add_telemetry(
    db: &Db,
    twin: &str,
    device: &str,
    items: &[Telemetry],
    now: Time,
    most: u32,
) -> Result<Vec<bool>> {
    let mut insert = db.prepare_cached(
        "INSERT INTO telemetry (twin, device, at, id, item) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO NOTHING",
    )?;
    let mut new = Vec::with_capacity(items.len());
    for item in items {
        let json = serde_json::to_string(item).unwrap_or_default();
        let values = params![twin, device, item.at, item.id.to_string(), json];
        new.push(insert.execute(values)? == 1);
    }
    db.execute(
        "DELETE FROM telemetry WHERE twin = ?1 AND device = ?2 AND (at, id) <=
         (SELECT at, id FROM telemetry WHERE twin = ?1 AND device = ?2
          ORDER BY at DESC, id DESC LIMIT 1 OFFSET ?3)",
        params![twin, device, most],
    )?;
    db.execute(
        "UPDATE instance SET seen_at = ?3 WHERE twin = ?1 AND device = ?2",
        params![twin, device, now],
    )?;
    Ok(new)
}

/// Up to `limit` items from `since` on, oldest first.
pub(crate) fn telemetry(
    db: &Db,
    twin: &str,
    device: &str,
    since: Option<Time>,
    limit: usize,
) -> Result<Vec<Telemetry>> {
    let mut rows = db.prepare_cached(
        "SELECT item FROM telemetry WHERE twin = ?1 AND device = ?2 AND at >= ?3 ORDER BY at, id LIMIT ?4",
    )?;
    let since = since.unwrap_or(Time(i64::MIN));
    let rows = rows.query_map(params![twin, device, since, limit], |row| row.get::<String>(0))?;
    let mut items = Vec::new();
    for row in rows {
        items.extend(serde_json::from_str::<Telemetry>(&row?).ok());
    }
    Ok(items)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::accounts::{self, AccountRow};
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
            twins::add(db, &"t".parse().unwrap(), "T", TwinKind::Meters, None, now)?;
            let (name, display_name) = ("ann".parse().unwrap(), "Ann".to_owned());
            let account = AccountRow { name, display_name, server_admin: false };
            accounts::add(db, &account, "hash", now)?;
            let new = serde_json::from_str(r#"{"kind": "van"}"#).unwrap();
            put(db, "t", &van, &new, &account.name, now)?;
            let mut kept = Vec::new();
            for items in [items(0..8, |_| 7), items(8..10, |_| 7), items(10..13, |n| n as i64)] {
                add_telemetry(db, "t", "van", &items, now, MOST)?;
                let left = telemetry(db, "t", "van", None, 100)?;
                kept.push(left.iter().map(|item| item.id.as_u128()).collect::<Vec<_>>());
            }
            Ok(kept)
        });
        let expected = [vec![3, 4, 5, 6, 7], vec![5, 6, 7, 8, 9], vec![8, 9, 10, 11, 12]];
        assert_eq!(kept.unwrap(), expected);
    }
}

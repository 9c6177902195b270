//! Reads the state at start, in one pass over each table.
//!
//! It decides nothing: it returns expired messages and sessions too, and the broker removes them.

use std::sync::Arc;

use fulmar_broker::User;
use fulmar_broker::message::{Message, MessageId};
use fulmar_broker::storage::{
    FlowId, Position, QueuedRecord, Restored, SessionKey, SessionRecord, SubscriptionRecord,
};
use fulmar_mqtt::PacketId;
use rusqlite::{Connection, Result, Row};
use rustc_hash::FxHashMap;

use crate::columns::{
    get_delivery, get_flow, get_message, get_moment, get_packet_id, get_progress, get_text,
    get_u64, get_will, int,
};

type Messages = FxHashMap<MessageId, (Arc<Message>, u32)>;

/// References to each stored message.
pub(crate) type Counts = FxHashMap<MessageId, u32>;

/// Reads the whole state, and counts the references to each message. Messages without a reference are deleted; rows
/// that refer to a missing message are logged and deleted.
pub(crate) fn restore(connection: &Connection) -> Result<(Restored, Counts)> {
    let transaction = connection.unchecked_transaction()?;
    let mut messages = Messages::default();
    collect(
        connection,
        "SELECT id, topic, properties, payload, qos, retain, expires_at, publisher FROM message",
        |row| {
            let message = get_message(row)?;
            messages.insert(message.id(), (message, 0));
            Ok(())
        },
    )?;
    let retained = retained(connection, &mut messages)?;
    let queued = queued(connection, &mut messages)?;
    let restored = Restored {
        sessions: sessions(connection)?,
        flows: flows(connection)?,
        subscriptions: subscriptions(connection)?,
        queued,
        inbound: inbound(connection)?,
        retained,
        last_message_id: highest(connection, "last_message_id")?,
        last_session_key: highest(connection, "last_session_key")?,
    };
    let counts = remove_orphans(connection, messages)?;
    transaction.commit()?;
    Ok((restored, counts))
}

fn collect<T>(
    connection: &Connection,
    sql: &str,
    mut each: impl FnMut(&Row<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(each(row)?);
    }
    Ok(all)
}

fn highest(connection: &Connection, name: &str) -> Result<u64> {
    connection.query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| get_u64(row, 0))
}

fn sessions(connection: &Connection) -> Result<Vec<SessionRecord>> {
    let sql = "SELECT session.session, client_id, username, expiry_interval_s, expires_at,
               topic, properties, payload, qos, retain, delay_s, message_expiry_s, due, mqtt_sn,
               address, until, credential, certificate, by_login
               FROM session LEFT JOIN will ON will.session = session.session";
    collect(connection, sql, |row| {
        let username = row.get::<_, Option<String>>(2)?.map(String::into_boxed_str);
        let user = username.clone().map(User::from_text);
        Ok(SessionRecord {
            key: SessionKey(get_u64(row, 0)?),
            client_id: get_text(row, 1)?,
            username,
            expiry_interval_s: row.get(3)?,
            expires_at: get_moment(row, 4)?,
            will: get_will(row, 5, 14, user)?.map(Arc::new),
            will_at: get_moment(row, 12)?,
            mqtt_sn: row.get(13)?,
        })
    })
}

fn flows(connection: &Connection) -> Result<Vec<(SessionKey, FlowId, u8, u64)>> {
    collect(connection, "SELECT session, flow, flags, expiry_s FROM flow", |row| {
        let (session, flow) = get_flow(row, 0)?;
        Ok((session, flow, row.get(2)?, get_u64(row, 3)?))
    })
}

fn subscriptions(connection: &Connection) -> Result<Vec<SubscriptionRecord>> {
    let sql = "SELECT session, flow, filter, options, identifier, replay FROM subscription";
    collect(connection, sql, |row| {
        let (session, flow) = get_flow(row, 0)?;
        Ok(SubscriptionRecord {
            session,
            flow,
            filter: get_text(row, 2)?,
            options: row.get(3)?,
            identifier: row.get(4)?,
            replay: row.get_ref(5)?.as_str_or_null()?.map(Into::into),
        })
    })
}

fn inbound(connection: &Connection) -> Result<Vec<(SessionKey, FlowId, PacketId)>> {
    collect(connection, "SELECT session, flow, packet_id FROM inbound", |row| {
        let (session, flow) = get_flow(row, 0)?;
        Ok((session, flow, get_packet_id(row, 2)?))
    })
}

fn take_message(messages: &mut Messages, id: u64) -> Option<Arc<Message>> {
    let (message, references) = messages.get_mut(&MessageId(id))?;
    *references += 1;
    Some(Arc::clone(message))
}

fn retained(connection: &Connection, messages: &mut Messages) -> Result<Vec<Arc<Message>>> {
    let rows = collect(connection, "SELECT message FROM retained", |row| {
        Ok(take_message(messages, get_u64(row, 0)?))
    })?;
    remove_dangling(connection, &rows, "retained")?;
    Ok(rows.into_iter().flatten().collect())
}

fn queued(connection: &Connection, messages: &mut Messages) -> Result<Vec<QueuedRecord>> {
    // In the order of the primary key, so that SQLite does not sort.
    let sql =
        "SELECT session, flow, position, message, qos, retain, identifiers, share, packet_id, released
               FROM queue ORDER BY session, flow, position";
    let mut all = Vec::new();
    let mut dangling = false;
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let Some(message) = take_message(messages, get_u64(row, 3)?) else {
            dangling = true;
            continue;
        };
        let (session, flow) = get_flow(row, 0)?;
        all.push(QueuedRecord {
            session,
            flow,
            position: Position(get_u64(row, 2)?),
            message,
            delivery: get_delivery(row, 4)?,
            progress: get_progress(row, 8)?,
        });
    }
    drop(rows);
    if dangling {
        delete_dangling(connection, "queue")?;
    }
    Ok(all)
}

fn remove_dangling<T>(connection: &Connection, rows: &[Option<T>], table: &str) -> Result<()> {
    if rows.iter().any(Option::is_none) {
        delete_dangling(connection, table)?;
    }
    Ok(())
}

fn delete_dangling(connection: &Connection, table: &str) -> Result<()> {
    let sql = format!("DELETE FROM {table} WHERE message NOT IN (SELECT id FROM message)");
    let rows = connection.execute(&sql, [])?;
    tracing::error!(
        table,
        rows,
        "rows without their message were removed; the database was damaged"
    );
    Ok(())
}

fn remove_orphans(connection: &Connection, messages: Messages) -> Result<Counts> {
    let mut delete = connection.prepare("DELETE FROM message WHERE id = ?1")?;
    let mut counts = Counts::default();
    for (id, (_, references)) in messages {
        if references == 0 {
            delete.execute([int(id.0)])?;
        } else {
            counts.insert(id, references);
        }
    }
    Ok(counts)
}

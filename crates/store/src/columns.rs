//! How the broker's types look in SQLite's columns, both ways.
//!
//! Unsigned 64-bit numbers are stored as the signed number with the same bits: lossless, and in
//! order below 2^63, which no counter reaches. A value that cannot come from here (a quality of
//! service of 7) is reported as damage.

use fulmar_broker::message::{Message, MessageId, MessageParts};
use fulmar_broker::storage::{Delivery, FlowId, Progress, SessionKey, Testator, Will};
use fulmar_broker::{Timestamp, User};
use fulmar_mqtt::{PacketId, QoS};
use rusqlite::types::Type;
use rusqlite::{Result, Row};
use std::sync::Arc;

/// Number for a column.
pub(crate) fn int(value: u64) -> i64 {
    value.cast_signed()
}

/// Moment for a column, NULL for never.
pub(crate) fn moment(at: Option<Timestamp>) -> Option<i64> {
    at.map(|at| int(at.0))
}

/// Number of a quality of service for a column.
pub(crate) fn qos_number(qos: QoS) -> i64 {
    match qos {
        QoS::AtMostOnce => 0,
        QoS::AtLeastOnce => 1,
        QoS::ExactlyOnce => 2,
    }
}

/// Columns `packet_id` and `released` of a delivery's progress.
pub(crate) fn progress_columns(progress: Progress) -> (Option<u16>, bool) {
    match progress {
        Progress::Queued => (None, false),
        Progress::Sent(id) => (Some(id.get()), false),
        // No packet has the identifier 0.
        Progress::Offered => (Some(0), false),
        Progress::Released(id) => (Some(id.get()), true),
    }
}

/// Subscription identifiers as little-endian words; NULL for none, the usual case.
pub(crate) fn identifiers_blob(identifiers: &[u32]) -> Option<Vec<u8>> {
    (!identifiers.is_empty()).then(|| identifiers.iter().flat_map(|i| i.to_le_bytes()).collect())
}

/// Column `index` as an unsigned number.
pub(crate) fn get_u64(row: &Row<'_>, index: usize) -> Result<u64> {
    Ok(row.get::<_, i64>(index)?.cast_unsigned())
}

/// Column `index` as an optional moment.
pub(crate) fn get_moment(row: &Row<'_>, index: usize) -> Result<Option<Timestamp>> {
    let value: Option<i64> = row.get(index)?;
    Ok(value.map(|ms| Timestamp(ms.cast_unsigned())))
}

/// Column `index` as a boxed string.
pub(crate) fn get_text(row: &Row<'_>, index: usize) -> Result<Box<str>> {
    Ok(row.get_ref(index)?.as_str()?.into())
}

/// Columns `index` and `index + 1` as session and flow.
pub(crate) fn get_flow(row: &Row<'_>, index: usize) -> Result<(SessionKey, FlowId)> {
    Ok((SessionKey(get_u64(row, index)?), FlowId(get_u64(row, index + 1)?)))
}

/// Column `index` as a packet identifier.
pub(crate) fn get_packet_id(row: &Row<'_>, index: usize) -> Result<PacketId> {
    PacketId::new(row.get(index)?).ok_or_else(|| damaged(index, "packet identifier 0"))
}

/// A whole message from the columns id, topic, properties, payload, qos, retain, expires_at,
/// publisher, in this order from the first.
pub(crate) fn get_message(row: &Row<'_>) -> Result<Arc<Message>> {
    let parts = MessageParts {
        topic: row.get_ref(1)?.as_str()?,
        properties: row.get_ref(2)?.as_blob()?,
        payload: row.get_ref(3)?.as_blob()?,
        qos: get_qos(row, 4)?,
        retain: row.get(5)?,
        expires_at: get_moment(row, 6)?,
        publisher: get_u64(row, 7)?,
    };
    Ok(Message::new(MessageId(get_u64(row, 0)?), &parts))
}

/// A will of the session's user from the columns topic, properties, payload, qos, retain, delay_s and message_expiry_s
/// from `index` on, and address, until, credential, certificate and by_login from `of_testator` on; none if the topic is
/// NULL.
pub(crate) fn get_will(
    row: &Row<'_>,
    index: usize,
    of_testator: usize,
    user: Option<User>,
) -> Result<Option<Will>> {
    let Some(topic) = row.get_ref(index)?.as_str_or_null()? else { return Ok(None) };
    Ok(Some(Will {
        topic: topic.into(),
        properties: row.get_ref(index + 1)?.as_blob()?.into(),
        payload: row.get_ref(index + 2)?.as_blob()?.into(),
        qos: get_qos(row, index + 3)?,
        retain: row.get(index + 4)?,
        delay_s: row.get(index + 5)?,
        message_expiry_s: row.get(index + 6)?,
        testator: get_testator(row, of_testator, user)?,
    }))
}

fn get_testator(row: &Row<'_>, index: usize, user: Option<User>) -> Result<Testator> {
    let address = row.get_ref(index)?.as_str_or_null()?.map(str::parse).transpose();
    let certificate: Option<i64> = row.get(index + 3)?;
    Ok(Testator {
        user,
        address: address.map_err(|_| damaged(index, "no address"))?,
        until: get_moment(row, index + 1)?.unwrap_or(Timestamp::NEVER),
        credential: row.get_ref(index + 2)?.as_str_or_null()?.map(Into::into),
        certificate: certificate.map(i64::cast_unsigned),
        by_login: row.get(index + 4)?,
    })
}

/// Columns qos, retain, identifiers and share from `index` on.
pub(crate) fn get_delivery(row: &Row<'_>, index: usize) -> Result<Delivery> {
    let identifiers = match row.get_ref(index + 2)?.as_blob_or_null()? {
        None => Box::default(),
        Some(bytes) => {
            let (words, rest) = bytes.as_chunks::<4>();
            if !rest.is_empty() {
                return Err(damaged(index + 2, "half a subscription identifier"));
            }
            words.iter().copied().map(u32::from_le_bytes).collect()
        }
    };
    let share = row.get::<_, Option<u32>>(index + 3)?.unwrap_or(0);
    Ok(Delivery { qos: get_qos(row, index)?, retain: row.get(index + 1)?, identifiers, share })
}

/// Columns packet_id and released from `index` on.
pub(crate) fn get_progress(row: &Row<'_>, index: usize) -> Result<Progress> {
    match row.get::<_, Option<u16>>(index)? {
        None => return Ok(Progress::Queued),
        Some(0) => return Ok(Progress::Offered),
        Some(_) => {}
    }
    let packet_id = get_packet_id(row, index)?;
    let released: bool = row.get(index + 1)?;
    Ok(if released { Progress::Released(packet_id) } else { Progress::Sent(packet_id) })
}

fn get_qos(row: &Row<'_>, index: usize) -> Result<QoS> {
    match row.get(index)? {
        0 => Ok(QoS::AtMostOnce),
        1 => Ok(QoS::AtLeastOnce),
        2 => Ok(QoS::ExactlyOnce),
        _ => Err(damaged(index, "no such quality of service")),
    }
}

fn damaged(index: usize, what: &'static str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Integer, what.into())
}

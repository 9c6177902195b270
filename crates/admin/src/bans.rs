//! Bans: clients, users and networks that may not connect until a time.

use std::net::IpAddr;

use fulmar_broker::{Ban, Banned, Broker, MAX_BANS, Timestamp};
use fulmar_text::network;

use crate::prelude::*;
use crate::store::{BanRow, Store, StoreError};

/// Longest time, in seconds: ten years.
const MAX_FOR_S: u64 = 10 * 366 * 86_400;
/// Bytes of a client identifier, a user and a reason at most.
const MAX_TEXT_BYTES: usize = 1024;

/// A new ban: of a client, a user or a network.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBan {
    /// Client identifier.
    client: Option<String>,
    /// User.
    user: Option<String>,
    /// Network as ADDRESS/BITS, or one address.
    #[schema(example = "192.0.2.0/24")]
    network: Option<String>,
    /// For how many seconds.
    #[schema(minimum = 1, maximum = 316224000)]
    for_s: u64,
    /// Why; for other administrators.
    #[serde(default)]
    reason: String,
}

/// All bans.
#[derive(Serialize, ToSchema)]
pub(crate) struct Bans {
    bans: Vec<BanRow>,
}

/// Sets the stored bans in the broker: when it starts, before any worker could publish a will.
///
/// # Errors
/// `admin.db` in the data folder cannot be read.
pub fn apply(store: &Store, broker: &Broker, now_ms: i64) -> Result<(), StoreError> {
    let rows = store.bans(now_ms)?;
    let ban = |row: &BanRow| {
        Some(Ban { whom: banned(row)?, until: Timestamp(row.until_ms.cast_unsigned()) })
    };
    let now = Timestamp(now_ms.cast_unsigned());
    broker.set_bans(rows.iter().filter_map(ban).collect(), now);
    Ok(())
}

/// Whom a stored ban is about; `None` for a network that is none.
pub(crate) fn banned(row: &BanRow) -> Option<Banned> {
    Some(match &*row.kind {
        "client" => Banned::Client(row.value.as_str().into()),
        "user" => Banned::User(row.value.as_str().into()),
        _ => network(&row.value).ok().map(|(address, bits)| Banned::Network(address, bits))?,
    })
}

/// A network without the bits behind its length.
fn network(text: &str) -> Result<(IpAddr, u8), String> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
    let wrong = || format!("{text:?} is not ADDRESS/BITS, such as 192.0.2.0/24 or 2001:db8::/48");
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let address = address.to_canonical();
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
    Ok((network::first(address, bits).ok_or_else(wrong)?, bits))
}

impl NewBan {
    /// Kind and value.
    fn whom(&self) -> Result<(&'static str, String)> {
        match (&self.client, &self.user, &self.network) {
            (Some(client), None, None) => Ok(("client", checked("client", client)?)),
            (None, Some(user), None) => Ok(("user", checked("user", user)?)),
            (None, None, Some(text)) => {
                let (address, bits) = network(text)
                    .map_err(|wrong| Problem::invalid("network", wrong.to_string()))?;
                Ok(("network", format!("{address}/{bits}")))
            }
            _ => Err(Problem::malformed("give one of client, user and network")),
        }
    }
}

fn checked(field: &str, text: &str) -> Result<String> {
    if text.is_empty() || text.len() > MAX_TEXT_BYTES {
        return Err(Problem::invalid(field, format!("expected 1 to {MAX_TEXT_BYTES} bytes")));
    }
    Ok(text.to_owned())
}

/// Bans that have not ended
#[utoipa::path(get, path = "/bans", responses((status = 200, body = Bans)))]
pub(crate) async fn list(Viewer(app, _): Viewer) -> Result<Json<Bans>> {
    let now = app.now_ms();
    let bans = app.stored(move |store| store.bans(now)).await?;
    Ok(Json(Bans { bans }))
}

/// Ban a client, a user or a network for a time
///
/// Those connected are disconnected (0x98); connections are refused with 0x8A (Banned), of MQTT 3.1.1 with code 5. A ban
/// survives restarts, and replaces an earlier one of the same client, user or network.
#[utoipa::path(post, path = "/bans", request_body = NewBan, responses((status = 201, body = BanRow)))]
pub(crate) async fn add(
    Operator(app, caller): Operator,
    Json(new): Json<NewBan>,
) -> Result<(StatusCode, Json<BanRow>)> {
    let (kind, mut value) = new.whom()?;
    if kind == "user" {
        value = app.broker.user_named(&value).text().into();
    }
    if !(1..=MAX_FOR_S).contains(&new.for_s) {
        return Err(Problem::invalid("for_s", format!("expected 1 to {MAX_FOR_S} seconds")));
    }
    if new.reason.len() > MAX_TEXT_BYTES {
        return Err(Problem::invalid("reason", format!("exceeds {MAX_TEXT_BYTES} bytes")));
    }
    let now = app.now_ms();
    let until_ms = now.saturating_add(i64::try_from(new.for_s * 1000).unwrap_or(i64::MAX));
    let row = BanRow {
        id: 0,
        kind: kind.to_owned(),
        value: value.clone(),
        until_ms,
        created_ms: now,
        created_by: caller.name.clone(),
        reason: new.reason.clone(),
    };
    let object = format!("{kind} {value}");
    let detail = json!({ "for_s": new.for_s, "reason": new.reason });
    let change = Change { caller, action: "ban.add", object, detail };
    let work = async {
        if app.stored(move |store| store.bans(now)).await?.len() >= MAX_BANS {
            return Err(Problem::conflict(format!(
                "there are {MAX_BANS} bans, the maximum: lift some, or ban a network instead"
            )));
        }
        let broker = std::sync::Arc::clone(&app.broker);
        let added = app.stored(move |store| {
            let id = store.add_ban(&row)?;
            apply(store, &broker, now)?;
            Ok(BanRow { id, ..row })
        });
        added.await
    };
    let row = app.change(change, work).await?;
    Ok((StatusCode::CREATED, Json(row)))
}

/// Lift a ban
#[utoipa::path(delete, path = "/bans/{id}", params(("id" = i64, Path, description = "Number of the ban")), responses((status = 204, description = "It is lifted")))]
pub(crate) async fn lift(Operator(app, caller): Operator, Name(id): Name) -> Result<StatusCode> {
    let unknown = || {
        Problem::not_found(format!(
            "there is no ban {id}; GET /bans, or fulmar ctl clients bans, lists them"
        ))
    };
    let number: i64 = id.parse().map_err(|_| unknown())?;
    let (now, broker) = (app.now_ms(), std::sync::Arc::clone(&app.broker));
    let rows = app.stored(move |store| store.bans(now)).await?;
    let row = rows.into_iter().find(|row| row.id == number).ok_or_else(unknown)?;
    let object = format!("{} {}", row.kind, row.value);
    let change =
        Change { caller, action: "ban.lift", object, detail: json!({ "reason": row.reason }) };
    let work = app.stored(move |store| {
        store.remove_ban(number)?;
        apply(store, &broker, now)?;
        Ok(())
    });
    app.change(change, work).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_addresses_with_a_length() {
        let written = |text| network(text).map(|(address, bits)| format!("{address}/{bits}"));
        for (text, expected) in [
            ("192.0.2.7", "192.0.2.7/32"),
            ("192.0.2.7/24", "192.0.2.0/24"),
            ("192.0.2.7/0", "0.0.0.0/0"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("2001:db8::1/32", "2001:db8::/32"),
            ("::1/0", "::/0"),
        ] {
            assert_eq!(written(text).unwrap(), expected);
        }
        for wrong in ["", "x", "192.0.2.0/33", "::/129", "192.0.2.0/-1", "192.0.2.0/"] {
            assert!(network(wrong).is_err(), "{wrong}");
        }
    }
}

//! Webhooks: addresses that are told of alerts.
//!
//! What they are to be told is stored with the alert and sent by the program, in order, again and again
//! at growing intervals, but not for ever. The body is signed (HMAC, RFC 2104, with SHA-256), so that
//! receivers know who speaks; a repetition has the same body.

use std::net::IpAddr;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use ring::hmac;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::types::Severity;
use super::webhook_allowlist::WebhookAllowlist;
use crate::accounts::caller::{Ids, Member};
use crate::extract::Body;
use crate::platform::{App, Platform};
use crate::problem::Problem;
use crate::respond::{Answer, Conditions, Page, done, json};
use crate::role::Deed;
use crate::store::webhooks;
use crate::text::{Name, Text};
use crate::time::{SECOND_MS, Time};

/// Webhooks of a twin.
const MAX_WEBHOOKS: usize = 20;
/// Deliveries under way at once.
const MAX_AT_ONCE: usize = 16;
/// After so many attempts an event is forgotten: the last is made two hours after the first.
const MAX_ATTEMPTS: u32 = 10;
/// Before the second attempt; twice as long before each further one, at most [`LONGEST_PAUSE_MS`].
const FIRST_PAUSE_MS: i64 = 5 * SECOND_MS;
const LONGEST_PAUSE_MS: i64 = 30 * 60 * SECOND_MS;

/// An address that is told of alerts.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Webhook {
    pub(crate) id: Uuid,
    pub(crate) url: String,
    /// Alerts of less severity are not told.
    pub(crate) least_severity: Severity,
}

/// A webhook to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewWebhook {
    /// `https`, or `http` to this machine. Addresses that are not public take the operator's leave.
    url: Text<1, 1000>,
    /// `info`, unless it says otherwise.
    least_severity: Option<Severity>,
    /// What bodies are signed with; never told again.
    #[schema(write_only)]
    secret: Text<8, 200>,
}

/// Whether a webhook may have this URL: the connection is encrypted or stays on this machine, and `allowlist` may allow
/// its host.
fn check_url(url: &str, allowlist: &WebhookAllowlist) -> Result<(), Problem> {
    let wrong = |detail: &str| Err(Problem::invalid("url", detail));
    let Ok(uri) = url.parse::<Uri>() else { return wrong("expected an address") };
    let Some(authority) = uri.authority() else { return wrong("expected a whole address") };
    if authority.as_str().contains('@') {
        return wrong("expected an address without user name and password");
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let here = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let port = match uri.scheme_str() {
        Some("https") => 443,
        Some("http") if here => 80,
        _ => return wrong("expected https; http is only for this machine"),
    };
    if !allowlist.may_allow(host, authority.port_u16().unwrap_or(port)) {
        return wrong(
            "this address is not public: the server's operator has to list it ([platform] webhook_allow)",
        );
    }
    Ok(())
}

/// The twin's webhooks
#[utoipa::path(get, path = "/{twin}/webhook", tag = "alerts", params(("twin" = Name, Path)),
    responses((status = 200, body = Page<Webhook>)))]
pub(crate) async fn list(State(app): State<App>, member: Member, conditions: Conditions) -> Answer {
    member.may(Deed::Manage)?;
    let items = app.store.read(move |db| Ok(webhooks::list(db, &member.twin)?)).await?;
    conditions.json(&Page { items, next: None })
}

/// Add a webhook
///
/// It is sent `{"event": "raised"|"cleared"|"acknowledged", "alert": Alert}` by POST; header
/// `x-fulmar-signature` is `sha256=` and the body's HMAC in hexadecimal.
#[utoipa::path(post, path = "/{twin}/webhook", tag = "alerts", params(("twin" = Name, Path)),
    request_body = NewWebhook, responses((status = 201, body = Webhook)))]
pub(crate) async fn add(
    State(app): State<App>,
    member: Member,
    Body(new): Body<NewWebhook>,
) -> Answer {
    member.may(Deed::Manage)?;
    check_url(&new.url, &app.settings.webhook_allowlist)?;
    let webhook = Webhook {
        id: Uuid::new_v4(),
        url: new.url.to_string(),
        least_severity: new.least_severity.unwrap_or(Severity::Info),
    };
    let stored = webhook.clone();
    app.store
        .write(move |db| {
            if webhooks::list(db, &member.twin)?.len() >= MAX_WEBHOOKS {
                let detail = format!("a twin has at most {MAX_WEBHOOKS} webhooks");
                return Err(Problem::conflict(detail));
            }
            Ok(webhooks::add(db, &member.twin, &stored, &new.secret)?)
        })
        .await?;
    json(StatusCode::CREATED, &webhook)
}

/// Remove a webhook
#[utoipa::path(delete, path = "/{twin}/webhook/{id}", tag = "alerts",
    params(("twin" = Name, Path), ("id" = Uuid, Path)), responses((status = 204)))]
pub(crate) async fn remove(State(app): State<App>, member: Member, Ids([id]): Ids<1>) -> Answer {
    member.may(Deed::Manage)?;
    let id: Uuid = id.parse().map_err(|_| Problem::not_found("webhook"))?;
    app.store
        .write(move |db| match webhooks::remove(db, &member.twin, id)? {
            true => Ok(()),
            false => Err(Problem::not_found("webhook")),
        })
        .await?;
    done()
}

/// Something a webhook is to be told, by whoever speaks HTTP.
#[derive(Clone, PartialEq, Eq)]
pub struct Delivery {
    number: i64,
    attempts: u32,
    /// Where to: https, or http to this machine.
    pub url: String,
    /// JSON.
    pub body: String,
    /// For the header `x-fulmar-signature`.
    pub signature: String,
    /// For the header `x-fulmar-delivery`: the same for every attempt.
    pub id: String,
}

impl std::fmt::Debug for Delivery {
    /// Addresses may hold secrets of their own.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Delivery({}, {} attempts)", self.number, self.attempts)
    }
}

impl Delivery {
    pub(crate) fn new(
        number: i64,
        url: String,
        secret: String,
        body: String,
        attempts: u32,
    ) -> Delivery {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let signature = hmac::sign(&key, body.as_bytes());
        let hex: String = signature.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let id = number.to_string();
        Delivery { number, attempts, url, body, signature: format!("sha256={hex}"), id }
    }
}

/// How long to wait before the next attempt; `None` if there is to be none.
fn pause_ms(attempts: u32) -> Option<i64> {
    if attempts + 1 >= MAX_ATTEMPTS {
        return None;
    }
    Some((FIRST_PAUSE_MS << attempts.min(20)).min(LONGEST_PAUSE_MS))
}

impl Platform {
    /// What webhooks are to be told now: of each the oldest.
    ///
    /// # Errors
    /// It cannot be looked up, for now.
    pub async fn due_deliveries(&self) -> Result<Vec<Delivery>, crate::Error> {
        let due = |db: &crate::store::Db| Ok(webhooks::due(db, Time::now(), MAX_AT_ONCE)?);
        Ok(self.app().store.read(due).await?)
    }

    /// Says what became of an attempt: whether the receiver took it.
    ///
    /// # Errors
    /// It cannot be stored, for now: the attempt may be made again.
    pub async fn delivered(&self, delivery: &Delivery, taken: bool) -> Result<(), crate::Error> {
        let (number, attempts) = (delivery.number, delivery.attempts);
        let pause = if taken { None } else { pause_ms(attempts) };
        if !taken && pause.is_none() {
            tracing::warn!(number, attempts = attempts + 1, "webhook event given up");
        }
        let done = self.app().store.write(move |db| match pause {
            Some(pause) => Ok(webhooks::postpone(db, number, Time::now().plus_ms(pause))?),
            None => Ok(webhooks::forget(db, number)?),
        });
        Ok(done.await?)
    }

    /// Addresses to which webhooks may connect; to be checked before each connection.
    #[must_use]
    pub fn webhook_allowlist(&self) -> &WebhookAllowlist {
        &self.app().settings.webhook_allowlist
    }

    /// Returns when there may be something new for webhooks; for one waiter.
    pub async fn deliveries(&self) {
        self.app().deliveries.notified().await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_encrypted_or_stay_here() {
        let allowlist = WebhookAllowlist::new(&["127.0.0.1", "::1"]).unwrap();
        let check_url = |url: &str| super::check_url(url, &allowlist);
        for own in ["https://127.0.0.2/", "https://10.0.0.1/", "https://[::ffff:10.0.0.1]/"] {
            assert!(check_url(own).is_err(), "{own}");
        }
        for good in [
            "https://example.org/x",
            "http://127.0.0.1:8080/",
            "http://[::1]/a",
            "http://localhost",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for wrong in [
            "http://example.org/",
            "http://127.0.0.1.example.org/",
            "https://user:secret@example.org/",
            "ftp://localhost/",
            "/path",
            "https:",
            "",
        ] {
            assert!(check_url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn attempts_end() {
        let pauses: Vec<i64> = (0..).map_while(pause_ms).collect();
        assert_eq!(pauses.len() + 1, MAX_ATTEMPTS as usize);
        assert_eq!((pauses[0], pauses[1]), (FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS));
        assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE_MS));
    }

    #[test]
    fn a_body_is_signed_with_the_secret() {
        // RFC 4231, test case 2.
        let body = "what do ya want for nothing?".to_owned();
        let delivery = Delivery::new(1, String::new(), "Jefe".into(), body, 0);
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(delivery.signature, format!("sha256={expected}"));
    }
}

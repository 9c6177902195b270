//! Webhooks: addresses to which alerts are sent.
//!
//! Here they are listed, added and removed. What they receive is stored with the alert; `delivery` signs it, and
//! `attempts` says when it is sent.

use std::net::IpAddr;

use axum::http::{HeaderValue, Uri, header};

use super::delivery::Webhook;
use super::types::Severity;
use super::webhook_allowlist::WebhookAllowlist;
use crate::prelude::*;
use crate::store::webhooks;

/// The most webhooks of a twin.
const MAX_WEBHOOKS: usize = 20;

/// A new webhook.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewWebhook {
    /// `https`, or `http` to this machine. Addresses that are not public must be allowed by the operator.
    url: Text<1, 1000>,
    /// The default is `info`.
    least_severity: Option<Severity>,
    /// The secret with which bodies are signed; never shown again.
    #[schema(write_only)]
    secret: Text<8, 200>,
}

/// Whether a webhook may have this URL: the connection is encrypted or stays on this machine, and `allowlist` may allow
/// its host.
fn check_url(url: &str, allowlist: &WebhookAllowlist) -> Result<()> {
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
#[utoipa::path(get, path = "/{twin}/webhook", tag = "alerts",
    responses((status = 200, body = Page<Webhook>)))]
pub(crate) async fn list(Call(app, member): Call, conditions: Conditions) -> Answer {
    member.may(Deed::Manage)?;
    let items = member.read(&app, move |db| Ok(webhooks::list(db)?)).await?;
    let mut answer = conditions.json(&Page { items, next: None })?;
    // Not compressed: its length would reveal what is secret in an address.
    let uncompressed = HeaderValue::from_static("private, no-cache, no-transform");
    answer.headers_mut().insert(header::CACHE_CONTROL, uncompressed);
    Ok(answer)
}

/// Add a webhook
///
/// Receives `{"event": "raised"|"cleared"|"acknowledged", "alert": Alert}` by POST; headers `webhook-id`,
/// `webhook-timestamp` and `webhook-signature` are those of Standard Webhooks.
#[utoipa::path(post, path = "/{twin}/webhook", tag = "alerts", request_body = NewWebhook,
    responses((status = 201, body = Webhook)))]
pub(crate) async fn add(Call(app, member): Call, Body(new): Body<NewWebhook>) -> Answer {
    member.may(Deed::Manage)?;
    check_url(&new.url, &app.settings.webhook_allowlist)?;
    let webhook = Webhook {
        id: Uuid::new_v4(),
        url: new.url.to_string(),
        least_severity: new.least_severity.unwrap_or(Severity::Info),
    };
    let stored = webhook.clone();
    member
        .write(&app, move |db| {
            if webhooks::list(db)?.len() >= MAX_WEBHOOKS {
                let detail = format!("a twin has at most {MAX_WEBHOOKS} webhooks");
                return Err(Problem::conflict(detail));
            }
            Ok(webhooks::add(db, &stored, &new.secret)?)
        })
        .await?;
    json(StatusCode::CREATED, &webhook)
}

/// Remove a webhook
#[utoipa::path(delete, path = "/{twin}/webhook/{id}", tag = "alerts", params(("id" = Uuid, Path)),
    responses((status = 204)))]
pub(crate) async fn remove(Call(app, member): Call, Id(id): Id) -> Answer {
    member.may(Deed::Manage)?;
    let id: Uuid = id.parse().map_err(|_| Problem::missing("webhook"))?;
    done_to(member.write(&app, move |db| Ok(webhooks::remove(db, id)?)).await?, "webhook")
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
}

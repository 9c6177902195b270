//! A webhook, and one event that it is to receive.
//!
//! The body is signed (HMAC, RFC 2104, with SHA-256), so that the receiver knows the sender; a repetition has the same
//! body. With each attempt, a signature of number, time and body as Standard Webhooks 1.0.0 defines it, so that an attempt
//! that somebody has recorded is too old later.

use fulmar_text::hex;
use ring::hmac;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::types::Severity;

/// An address to which alerts are sent.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Webhook {
    pub(crate) id: Uuid,
    pub(crate) url: String,
    /// Alerts of lower severity are not sent.
    pub(crate) least_severity: Severity,
}

/// An event to be sent to a webhook; the program sends it, because this crate has no HTTP client.
#[derive(Clone, PartialEq, Eq)]
pub struct Delivery {
    pub(super) number: i64,
    pub(super) attempts: u32,
    /// Where to: https, or http to this machine.
    pub url: String,
    /// JSON.
    pub body: String,
    /// For the header `x-fulmar-signature`: of the body alone, for receivers of earlier versions.
    pub signature: String,
    secret: String,
    /// For the headers `x-fulmar-delivery` and `webhook-id`: the same for every attempt.
    pub id: String,
}

fulmar_text::opaque_debug!(Delivery { number, attempts });

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
        let hex = hex::encode(signature.as_ref());
        let id = number.to_string();
        Delivery { number, attempts, url, body, signature: format!("sha256={hex}"), secret, id }
    }

    /// For the header `webhook-signature` of an attempt whose `webhook-timestamp` is this, in seconds since 1970.
    pub fn signature_at(&self, timestamp_s: u64) -> String {
        fulmar_http::sign_webhook(
            self.secret.as_bytes(),
            &self.id,
            timestamp_s,
            self.body.as_bytes(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_signed_with_the_secret() {
        // RFC 4231, test case 2.
        let body = "what do ya want for nothing?".to_owned();
        let delivery = Delivery::new(1, String::new(), "Jefe".into(), body, 0);
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(delivery.signature, format!("sha256={expected}"));
    }
}

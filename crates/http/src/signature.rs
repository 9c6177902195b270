//! Signatures of requests to services of users, as Standard Webhooks 1.0.0 defines them: of number, time and body (HMAC,
//! RFC 2104, with SHA-256), so that the receiver knows the sender, and an attempt that somebody has recorded is too old
//! later.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

/// Signs an attempt for its header `webhook-signature`: `id` is that of `webhook-id`, `timestamp_s` that of
/// `webhook-timestamp`, in seconds since 1970.
#[must_use]
pub fn sign_webhook(secret: &[u8], id: &str, timestamp_s: u64, body: &[u8]) -> String {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    context.update(format!("{id}.{timestamp_s}.").as_bytes());
    context.update(body);
    format!("v1,{}", STANDARD.encode(context.sign()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_signed_with_its_time() {
        // The example that implementations of Standard Webhooks share.
        let secret = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap_or_default();
        let signed = |id, at| sign_webhook(&secret, id, at, br#"{"test": 2432232314}"#);
        let (id, at) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330);
        assert_eq!(signed(id, at), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_ne!(signed(id, at + 1), signed(id, at));
    }
}

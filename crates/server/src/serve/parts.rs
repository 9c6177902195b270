//! The parts of a server in this build, in the order in which they start.

#[cfg(feature = "admin")]
use super::admin;
use super::first_administrator;
#[cfg(feature = "platform")]
use super::platform;
use fulmar_part::{Opening, Part};
use fulmar_udp::{coap, mqttsn};

/// Opens all parts that the configuration has.
pub(super) fn open(opening: &mut Opening<'_>) -> anyhow::Result<Vec<Box<dyn Part>>> {
    let mut parts: Vec<Option<Box<dyn Part>>> = Vec::new();
    #[cfg(feature = "admin")]
    parts.push(Some(admin::open(opening)?));
    // Before the parts that read users. The cluster has users, or needs none: `fulmar cluster init` has checked it.
    if opening.shared.is_none() {
        let Opening { config, data, identities, offers, .. } = opening;
        opening.first_administrator =
            first_administrator::create(config, data, identities, offers)?;
    }
    parts.push(Some(fulmar_auth_http::open(opening)?));
    parts.push(fulmar_telemetry::open(opening)?);
    parts.push(fulmar_forwarder::open(opening)?);
    #[cfg(feature = "sinks")]
    parts.push(fulmar_sink::open(opening)?);
    #[cfg(feature = "platform")]
    parts.push(platform::open(opening)?);
    parts.push(coap::open(opening));
    parts.push(mqttsn::open(opening));
    #[cfg(feature = "acme")]
    parts.push(fulmar_acme::open(opening)?);
    Ok(parts.into_iter().flatten().collect())
}

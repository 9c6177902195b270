//! The platform inside the broker's process: opened with the data folder if there is an HTTPS listener,
//! closed when all requests have been answered. Its users are the broker's external users.

#[cfg(feature = "admin")]
mod administration;
mod client;
mod lease_gate;
mod webhooks;

use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use fulmar_broker::auth::ExternalUsers as _;
use fulmar_broker::storage::Storage as _;
use fulmar_broker::{Arrival, PublishHook};
use fulmar_http::Knows;
use fulmar_mqtt::{Property, PropertyBuf};
use fulmar_platform::{Announcement, Loss, Platform, SharedPlatform};
use fulmar_text::metrics::{Kind, Metrics};
use fulmar_transport::Clock;
use http::header;
use tokio::sync::mpsc;

use self::lease_gate::closed_unless;
use super::secrets;
use fulmar_part::disk::AccountUse;
use fulmar_part::internal_sessions::InternalSessions;
use fulmar_part::shared_rows::Database;
use fulmar_part::thread::Thread;
use fulmar_part::{Core, Offers, Opening, Part, Source};

/// Name of the user property with the user who published a frame, which the platform can rely on.
const PUBLISHER: &str = "fulmar-publisher";

/// The platform. Dropping this finishes requests and writes, and closes the database.
struct Running {
    platform: Platform,
    /// Changes that are still to be published.
    announcements: Option<mpsc::Receiver<Announcement>>,
    client: Option<Thread>,
    /// True for a cluster's.
    is_shared: bool,
}

/// Opens the platform, if it is enabled.
///
/// # Errors
/// Its database or secret cannot be opened, or nobody could log in at a listener.
pub(super) fn open(opening: &mut Opening<'_>) -> anyhow::Result<Option<Box<dyn Part>>> {
    let (config, data) = (opening.config, opening.data);
    if !config.has_platform() {
        return Ok(None);
    }
    secrets::read(&data.join(secrets::PLATFORM))?;
    let settings = fulmar_platform::Settings {
        disk: config.platform_part(),
        answers: opening.answers.clone(),
        logins: Arc::clone(opening.logins),
        ..config.platform.settings()?
    };
    let is_shared = opening.shared.is_some();
    let shared = opening.shared.as_mut().map(|shared| {
        let rows = shared.follow(Database::Platform);
        SharedPlatform { rows, files: shared.take_rows(Database::Files) }
    });
    let opened = Platform::open_with(data, settings, Arc::clone(opening.identities), shared);
    let (platform, announcements) = opened.context("platform")?;
    if platform.has_no_users() {
        config.check_ways_in()?;
        tracing::info!(
            "the platform for meters and homes has no users yet; to use it, create one with \
             `fulmar user add NAME --admin --data {}`",
            data.display()
        );
    }
    offer(&platform, &mut opening.offers);
    let announcements = Some(announcements);
    Ok(Some(Box::new(Running { platform, announcements, client: None, is_shared })))
}

/// Offers its users to the broker, to HTTP and to the administration.
fn offer(platform: &Platform, offers: &mut Offers) {
    offers.external_users = Some(Arc::new(platform.clone()));
    offers.hooks.push(Box::new(Vouching(platform.clone())));
    let known = platform.clone();
    offers.knows = Some(Knows::new(move |headers| {
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let (_, token) = shown?.split_once(' ')?;
        known.admit(token.trim(), None, Clock::wall())?.user.map(|user| user.text().into())
    }));
    let users = platform.clone();
    offers.has_users = Some(Arc::new(move || !users.has_no_users()));
    let photos = platform.clone();
    offers.disk = Some(Arc::new(move || {
        let counts = photos.counts();
        let limit = (counts.photo_limit_bytes < u64::MAX).then_some(counts.photo_limit_bytes);
        AccountUse { account: "photos", used: counts.photo_bytes, limit }
    }));
    #[cfg(feature = "admin")]
    administration::offer(platform, offers);
}

impl Running {
    /// Lets the broker close connections whose token was revoked, and those whose user has fewer rights than before.
    fn watch(&self, core: &Core) {
        let broker = &core.broker;
        let is_gone = |user: &str| self.platform.was_removed_while_stopped(user);
        broker.delete_sessions_of_external_users(is_gone);
        // A weak reference: the broker has a reference to the platform, and would never be dropped.
        let broker = Arc::downgrade(broker);
        self.platform.on_loss(move |losers| {
            if let Some(broker) = broker.upgrade() {
                // First: a connection that is closed for less leaves its session.
                broker.delete_sessions_of_external_users(|user| {
                    losers.get(user) == Some(&Loss::Removed)
                });
                broker.recheck_external_users(|user| losers.contains_key(user));
            }
        });
    }
}

impl Part for Running {
    /// That of its MQTT client.
    fn add_internal_sessions(&self, sessions: &mut InternalSessions<'_>) {
        client::add_internal_sessions(&self.platform, sessions);
    }

    /// Connects its MQTT client, which publishes changes, and receives what receivers and sensors publish.
    fn go_live(&mut self, core: &Core) -> anyhow::Result<()> {
        self.watch(core);
        if let Some(announcements) = self.announcements.take() {
            let handoff = core.handoff.clone();
            self.client = Some(client::start(self.platform.clone(), announcements, handoff)?);
        }
        Ok(())
    }

    fn routes(&self, core: &Core) -> Router {
        let router = self.platform.router();
        let Some(store) = core.store.as_ref().filter(|_| self.is_shared) else { return router };
        let store = Arc::downgrade(store);
        let may = move || store.upgrade().is_some_and(|store| store.may_acknowledge());
        closed_unless(may, router)
    }

    fn metrics(&self) -> Option<Source> {
        let platform = self.platform.clone();
        Some(Arc::new(move |to| report(&platform, to)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // First, because it would try again for ever to store what it has received.
        drop(self.client.take());
        self.platform.close();
    }
}

fn report(platform: &Platform, to: &mut Metrics) {
    let counts = platform.counts();
    let help = "Measurements of sensors, by outcome";
    let family = to.family(Kind::Counter, "measurements_total", help);
    for (outcome, value) in [
        ("stored", counts.measurements_stored),
        ("duplicate", counts.measurements_duplicate),
        ("rejected", counts.measurements_rejected),
    ] {
        family.add(&[("outcome", outcome)], value);
    }
    let help = "Messages on sensors' topics that contained no measurement";
    to.counter("sensor_messages_malformed_total", help, counts.messages_malformed);
    let help = "Meters' frames that were none, or could not be decoded or counted";
    to.counter("frames_refused_total", help, counts.frames_refused);
    let help = "Photos refused because the space for them is used up";
    let family = to.family(Kind::Counter, "disk_refused_total", help);
    family.add(&[("account", "photos")], counts.photos_refused);
}

/// Names the publisher to the platform, on topics where the platform requires it.
struct Vouching(Platform);

impl PublishHook for Vouching {
    fn stamp(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        let Vouching(platform) = self;
        let voucher = platform.vouch(arrival.external_user?, arrival.topic, arrival.payload)?;
        let mut property = PropertyBuf::new();
        property.push(Property::UserProperty(PUBLISHER, &voucher));
        Some(property.as_properties().raw().to_vec())
    }
}

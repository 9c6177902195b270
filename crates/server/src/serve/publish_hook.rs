//! The hook where clients' publications enter the broker: the gateway's stamps, and who publishes to the platform.

use fulmar_broker::{Arrival, PublishHook};
use fulmar_mqtt::{Property, PropertyBuf};

use super::gateway::Stamps;
use super::platform::Platform;

/// Name of the user property with the user who published a frame, which the platform can rely on.
pub(super) const PUBLISHER: &str = "fulmar-publisher";

/// The program's hook where clients' publications enter the broker.
pub(super) struct IncomingHook {
    stamps: Option<Stamps>,
    platform: Option<Platform>,
}

impl IncomingHook {
    /// The hook of this program, if it has a part that uses one: each message would ask it.
    pub(super) fn new(stamps: Option<Stamps>, platform: Option<Platform>) -> Option<IncomingHook> {
        let used = stamps.is_some() || platform.is_some();
        used.then_some(IncomingHook { stamps, platform })
    }
}

impl PublishHook for IncomingHook {
    fn stamp(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        let stamp = self.stamps.as_ref().and_then(|stamps| stamps.stamp(arrival));
        // Last, so that a property that the client has sent itself is not the one found.
        match (stamp, self.vouch(arrival)) {
            (Some(stamp), Some(voucher)) => Some([stamp, voucher].concat()),
            (stamp, voucher) => stamp.or(voucher),
        }
    }
}

impl IncomingHook {
    /// The property that names the publisher to the platform, on topics where the platform requires it.
    fn vouch(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        let user = arrival.external_user?;
        let voucher = self.platform.as_ref()?.vouch(user, arrival.topic, arrival.payload)?;
        let mut property = PropertyBuf::new();
        property.push(Property::UserProperty(PUBLISHER, &voucher));
        Some(property.as_properties().raw().to_vec())
    }
}

//! Types of the API's requests and responses about devices.

use crate::values::*;

/// Devices of a user in a twin. All devices are in the account cache.
pub(crate) const MAX_OWN_DEVICES: usize = 1_000;
/// Devices of a twin.
pub(crate) const MAX_DEVICES: usize = 50_000;

/// Why a further device is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooManyDevices {
    #[error(
        "a user has at most {} devices in a twin: use the name of one of them",
        MAX_OWN_DEVICES
    )]
    OfUser,
    #[error(
        "a twin has at most {} devices: use the name of one of them, or add another twin \
         (fulmar twin add)",
        MAX_DEVICES
    )]
    OfTwin,
}

/// A device that sends telemetry.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewInstance)]
pub(crate) struct NewDevice {
    /// Kind of device, such as `phone`, `van` or `gateway`.
    pub(crate) kind: Text<1, 32>,
    pub(crate) name: Option<Line>,
    pub(crate) app_version: Option<Line>,
}

/// A device in the field.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Instance)]
pub(crate) struct Device {
    pub(crate) device: Name,
    pub(crate) kind: String,
    pub(crate) name: Option<String>,
    pub(crate) app_version: Option<String>,
    /// Whose it is; none if that account was removed.
    pub(crate) user: Option<Name>,
    /// When it last sent telemetry.
    pub(crate) seen_at: Time,
    /// Latest telemetry.
    pub(crate) telemetry: Option<Telemetry>,
}

/// A device's telemetry.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Telemetry {
    /// Made by the device. What is sent again is stored once.
    pub(crate) id: Uuid,
    pub(crate) at: Time,
    pub(crate) place: Option<Place>,
    pub(crate) accuracy_m: Option<Bounded<0, 100_000_000>>,
    pub(crate) speed_mps: Option<Bounded<0, 100_000>>,
    pub(crate) battery_percent: Option<Bounded<0, 100>>,
    pub(crate) charging: Option<bool>,
    pub(crate) carrier: Option<Line>,
    pub(crate) network: Option<Line>,
    pub(crate) signal_dbm: Option<Rssi>,
    pub(crate) temperature_c: Option<Bounded<-273, 1000>>,
}

words! {
    /// Progress of a command.
    CommandState {
        /// The device has not taken it yet.
        Pending = "pending",
        /// It has.
        Accepted = "accepted",
        /// It has done it.
        Done = "done",
        /// It could not do it.
        Failed = "failed",
    }
}

/// A command to a device.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Command {
    pub(crate) id: Uuid,
    pub(crate) command: Name,
    /// Arguments of the command; their form is between office and device.
    #[schema(value_type = Object)]
    pub(crate) args: serde_json::Value,
    pub(crate) state: CommandState,
    pub(crate) detail: Option<String>,
    pub(crate) given_by: Name,
    pub(crate) given_at: Time,
    pub(crate) changed_at: Time,
}

//! What a sensor unit is to the platform.

use crate::measurements::Quantity;
use crate::values::*;

words! {
    /// Whether a sensor sends measurements.
    SensorState {
        /// It measured lately.
        Ok = "ok",
        /// It has measured nothing for three times its usual interval, or never.
        Silent = "silent",
    }
}

/// A sensor unit.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Sensor {
    pub(crate) device: Name,
    /// Home; null until it is assigned to one.
    pub(crate) home: Option<Name>,
    pub(crate) room: Option<String>,
    pub(crate) model: Option<String>,
    /// Measurements.
    pub(crate) quantities: Vec<Quantity>,
    /// When it measured last.
    pub(crate) last_at: Option<Time>,
    pub(crate) state: SensorState,
    /// Interval of its measurements, if that is known.
    pub(crate) expected_every_s: Option<u32>,
    /// ETag of what can be changed, for `If-Match`.
    pub(crate) etag: String,
}

/// A sensor unit as it is to be registered.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSensor {
    /// A home of the twin, or null.
    pub(crate) home: Option<Name>,
    pub(crate) room: Option<Line>,
    pub(crate) model: Option<Line>,
    /// Interval of its measurements; it counts as silent after three times this, or after 15 minutes if null.
    #[schema(minimum = 1, maximum = 2592000)]
    pub(crate) expected_every_s: Option<u32>,
}

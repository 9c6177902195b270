//! Measurements: what sensors in homes send, as often as it takes, stored once.
//!
//! `types` says what one is, `units` in which units, `message` how it arrives over MQTT, `intake` what
//! becomes of it, `handlers` how it arrives over HTTP.

pub(crate) mod handlers;
pub(crate) mod intake;
pub(crate) mod message;
pub(crate) mod types;
pub(crate) mod units;

pub(crate) use types::{NewMeasurement, Quantity};

/// Quantities of a sensor. One has a dozen; any device's account can invent others.
pub(crate) const MAX_QUANTITIES: usize = 200;
/// Quantities of all sensors of a twin: ten of each, if there are as many sensors as there may be.
pub(crate) const MAX_SERIES: usize = 500_000;

/// Why a further quantity of a sensor is refused.
pub(crate) fn too_many_quantities() -> String {
    format!(
        "a sensor has at most {MAX_QUANTITIES} quantities: use the name of one of them, or remove the sensor"
    )
}

/// Why a further quantity of any sensor is refused.
pub(crate) fn too_many_series() -> String {
    format!(
        "the sensors of a twin have at most {MAX_SERIES} quantities in all: remove sensors, or add another twin \
         (fulmar twin add)"
    )
}

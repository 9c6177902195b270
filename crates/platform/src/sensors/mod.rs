//! Sensors: the units in homes that measure, as a register.
//!
//! A sensor that is not registered is registered with its first measurement, without a home.

pub(crate) mod handlers;
pub(crate) mod removal;
pub(crate) mod types;

pub(crate) use types::{NewSensor, Sensor};

/// Sensors of a twin. Any device's account can register them, and each is looked at every few seconds.
pub(crate) const MAX_SENSORS: usize = 50_000;

/// Why a further one is refused.
pub(crate) fn too_many_sensors() -> String {
    format!(
        "a twin has at most {MAX_SENSORS} sensors: use the name of one of them, or add another twin \
         (fulmar twin add)"
    )
}

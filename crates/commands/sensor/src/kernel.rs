//! This machine's own sensors, read every so often.

use std::path::Path;

use fulmar_sensors::iio::{ChannelError, Sensor, sensors};
use fulmar_sensors::{Reading, is_device};

use crate::exit::Usage;

/// Sensors that are read, and the names for them.
pub(super) struct Kernel {
    sensors: Vec<(String, Sensor)>,
}

impl Kernel {
    /// Finds the sensors; `prefix` comes before their names.
    pub(super) fn find(directory: &Path, prefix: &str) -> anyhow::Result<Kernel> {
        let place = directory.display();
        let found = sensors(directory).map_err(|error| {
            Usage(format!("{place}: {error}; is the sensor's driver loaded? (`dmesg | grep iio`)"))
        })?;
        if found.is_empty() {
            return Err(Usage(format!("{place} shows no sensor; is its driver loaded?")).into());
        }
        let named = |sensor: Sensor| {
            let name = if prefix.is_empty() {
                sensor.name.clone()
            } else {
                format!("{prefix}-{}", sensor.name)
            };
            if is_device(&name) {
                Ok((name, sensor))
            } else {
                Err(Usage(format!("--name: {name:?} cannot be a device's name").to_owned()))
            }
        };
        let sensors: Vec<_> = found.into_iter().map(named).collect::<Result<_, _>>()?;
        Ok(Kernel { sensors })
    }

    /// Reads all of them; sensors that cannot be read now are reported and left out.
    pub(super) fn read(&self, at_ms: u64) -> Vec<Reading> {
        let mut readings = Vec::new();
        for (device, sensor) in &self.sensors {
            for (quantity, value) in sensor.read() {
                match value {
                    Ok(value) => readings.push(Reading {
                        device: device.clone(),
                        quantity: quantity.to_owned(),
                        value,
                        unit: None,
                        at_ms: Some(at_ms),
                    }),
                    // With a DHT11 some fail every hour; the next succeed.
                    Err(error @ ChannelError::Read { .. }) => tracing::info!(device, "{error}"),
                    Err(error) => tracing::warn!(device, "{error}"),
                }
            }
        }
        readings
    }
}

//! Sensors with Linux drivers: the Industrial I/O folder in sysfs, for example for the DHT11, BME280 or SCD30
//! (Documentation/ABI/testing/sysfs-bus-iio of the kernel).
//!
//! A channel is one file with the processed value (`in_temp_input`), or a raw count with scale and offset
//! (`in_temp_raw`, `in_temp_scale`, `in_temp_offset`: (raw + offset) × scale). Buffers, triggers and events are not
//! used: these sensors are read every minute, not at a thousand hertz.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::reading::{MAX_DEVICE_LETTERS, is_device};

/// Where the kernel shows its sensors.
pub const DIRECTORY: &str = "/sys/bus/iio/devices";

/// The most bytes of a file: sysfs returns at most one page.
const MAX_BYTES: u64 = 4096;

/// A kind of channel: its name in sysfs, the quantity, and the factor from the kernel's unit to that of the quantity.
struct Kind {
    channel: &'static str,
    quantity: &'static str,
    factor: f64,
}

const KINDS: [Kind; 6] = [
    // Thousandths of a degree Celsius.
    Kind { channel: "in_temp", quantity: "temperature", factor: 0.001 },
    // Thousandths of a percent.
    Kind { channel: "in_humidityrelative", quantity: "humidity", factor: 0.001 },
    // Kilopascal.
    Kind { channel: "in_pressure", quantity: "pressure", factor: 10.0 },
    // Percent.
    Kind { channel: "in_concentration_co2", quantity: "co2", factor: 10_000.0 },
    Kind { channel: "in_concentration_co", quantity: "co", factor: 10_000.0 },
    // Lux.
    Kind { channel: "in_illuminance", quantity: "illuminance", factor: 1.0 },
];

/// A sensor of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sensor {
    /// The device's name: the driver's, with allowed letters only.
    pub name: String,
    /// Folder of the sensor in sysfs.
    pub path: PathBuf,
}

/// Why a channel gave no value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// It could not be read: a DHT11 fails like this if its line was disturbed, and succeeds the next time.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{path} contains no number: {text:?}")]
    NotANumber {
        /// The file.
        path: PathBuf,
        /// Text that the file holds.
        text: String,
    },
}

/// The sensors below a folder, by number, which distinguishes sensors of the same name.
///
/// # Errors
/// The folder cannot be read.
pub fn sensors(directory: &Path) -> io::Result<Vec<Sensor>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix("iio:device")?.parse().ok());
        let Some(number): Option<u32> = number else { continue };
        found.push((number, entry.path()));
    }
    found.sort();
    let mut sensors: Vec<Sensor> = Vec::with_capacity(found.len());
    for (number, path) in found {
        let said = text(&path.join("name")).unwrap_or_default();
        let mut name = cleaned(&said);
        if name.is_empty() {
            name = format!("iio{number}");
        } else if sensors.iter().any(|other| other.name == name) {
            name = format!("{name}-{number}");
        }
        sensors.push(Sensor { name, path });
    }
    Ok(sensors)
}

/// A driver's name with only the letters that are allowed in a device's name; `dht11@0` becomes `dht11-0`.
fn cleaned(name: &str) -> String {
    // Leaves room for a number after it.
    let kept = name.trim().chars().take(MAX_DEVICE_LETTERS / 2);
    let letter = |letter: char| {
        if is_device(letter.encode_utf8(&mut [0; 4])) { letter } else { '-' }
    };
    kept.map(letter).collect()
}

impl Sensor {
    /// Reads every known channel: its quantity, and its value or an error.
    pub fn read(&self) -> Vec<(&'static str, Result<f64, ChannelError>)> {
        let one = |kind: &Kind| {
            let value = self.channel(kind.channel)?;
            Some((kind.quantity, value.map(|value| rounded(value * kind.factor))))
        };
        KINDS.iter().filter_map(one).collect()
    }

    /// The value of a channel in the kernel's unit; `None` if the sensor has no such channel.
    fn channel(&self, name: &str) -> Option<Result<f64, ChannelError>> {
        let file = |part: &str| self.path.join(format!("{name}_{part}"));
        let processed = file("input");
        if processed.exists() {
            return Some(number(&processed));
        }
        let raw = file("raw");
        if !raw.exists() {
            return None;
        }
        // A missing file means that there is nothing to add or to multiply by.
        let or = |part: &str, otherwise: f64| {
            let path = file(part);
            if path.exists() { number(&path) } else { Ok(otherwise) }
        };
        let value = || Ok((number(&raw)? + or("offset", 0.0)?) * or("scale", 1.0)?);
        Some(value())
    }
}

/// Removes digits that the multiplication added.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn number(path: &Path) -> Result<f64, ChannelError> {
    let text = text(path).map_err(|source| ChannelError::Read { path: path.to_owned(), source })?;
    match text.trim().parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(ChannelError::NotANumber { path: path.to_owned(), text }),
    }
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    fn device(folder: &Path, number: u32, files: &[(&str, &str)]) {
        let path = folder.join(format!("iio:device{number}"));
        fs::create_dir(&path).unwrap();
        for (name, text) in files {
            fs::write(path.join(name), text).unwrap();
        }
    }

    fn read(sensor: &Sensor) -> Vec<(&'static str, f64)> {
        sensor.read().into_iter().map(|(quantity, value)| (quantity, value.unwrap())).collect()
    }

    #[test]
    fn processed_and_raw_channels_are_read_in_our_units() {
        let folder = tempfile::tempdir().unwrap();
        let dht = [
            ("name", "dht11@0\n"),
            ("in_temp_input", "21000\n"),
            ("in_humidityrelative_input", "45000\n"),
        ];
        device(folder.path(), 0, &dht);
        device(
            folder.path(),
            10,
            &[
                ("name", "scd30\n"),
                ("in_temp_raw", "2150\n"),
                ("in_temp_scale", "10\n"),
                ("in_concentration_co2_raw", "640\n"),
                ("in_concentration_co2_scale", "0.000100000\n"),
                ("in_pressure_input", "101.325\n"),
            ],
        );
        device(folder.path(), 2, &[("name", "ads1015\n"), ("in_voltage0_raw", "17\n")]);
        fs::create_dir(folder.path().join("trigger0")).unwrap();
        let sensors = sensors(folder.path()).unwrap();
        let names: Vec<_> = sensors.iter().map(|sensor| sensor.name.as_str()).collect();
        assert_eq!(names, ["dht11-0", "ads1015", "scd30"]);
        assert_eq!(read(&sensors[0]), [("temperature", 21.0), ("humidity", 45.0)]);
        assert_eq!(read(&sensors[1]), []);
        let scd30 = [("temperature", 21.5), ("pressure", 1013.25), ("co2", 640.0)];
        assert_eq!(read(&sensors[2]), scd30);
    }

    #[test]
    fn an_offset_is_added_before_scaling() {
        let folder = tempfile::tempdir().unwrap();
        let files = [("in_temp_raw", "100"), ("in_temp_offset", "-20"), ("in_temp_scale", "250.0")];
        device(folder.path(), 0, &files);
        let sensors = sensors(folder.path()).unwrap();
        assert_eq!(sensors[0].name, "iio0");
        assert_eq!(read(&sensors[0]), [("temperature", 20.0)]);
    }

    #[test]
    fn a_disturbed_line_is_no_value() {
        let folder = tempfile::tempdir().unwrap();
        device(folder.path(), 0, &[("name", "dht11"), ("in_temp_input", "\n")]);
        device(folder.path(), 1, &[("name", "dht11"), ("in_temp_input", "nan")]);
        let broken = folder.path().join("iio:device1/in_humidityrelative_input");
        fs::create_dir(broken).unwrap();
        let sensors = sensors(folder.path()).unwrap();
        assert_eq!(sensors[1].name, "dht11-1");
        assert!(matches!(sensors[0].read()[0], (_, Err(ChannelError::NotANumber { .. }))));
        let failed = sensors[1].read();
        assert!(matches!(failed[0], ("temperature", Err(ChannelError::NotANumber { .. }))));
        assert!(matches!(failed[1], ("humidity", Err(ChannelError::Read { .. }))));
    }

    #[test]
    fn a_machine_without_sensors_says_so() {
        let folder = tempfile::tempdir().unwrap();
        assert!(sensors(&folder.path().join("none")).is_err());
        assert_eq!(sensors(folder.path()).unwrap(), []);
    }
}

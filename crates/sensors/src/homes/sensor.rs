//! Sensor units: noise, resolution, and in some homes faults.

use super::HomeDevice;
use super::house::Air;
use crate::dice::Dice;
use crate::reading::Reading;

pub(super) const LIVING: &str = "living room";
pub(super) const BOILER: &str = "boiler room";

/// The value that a DS18B20 reports after a loss of power.
const SPIKE_TEMPERATURE: f64 = 85.0;
const SPIKE_SHARE: f64 = 0.004;

/// The interval of faults in days.
const FAULT_EVERY_DAYS: u64 = 5;
/// A stuck sensor is stuck from this hour, for this many hours.
const STUCK_FROM_H: u64 = 3;
const STUCK_FOR_H: u64 = 10;
/// A unit has no radio for this many hours, and on other days for some half hours.
const SILENT_FOR_H: u64 = 9;
const SHORT_SILENCE_S: u64 = 1800;
const SHORT_SILENCE_SHARE: f64 = 0.15;

const HOUR_S: u64 = 3600;
const DAY_S: u64 = 86_400;

/// A unit's occasional fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The humidity stays at one value for hours.
    Stuck,
    /// It sends nothing for a while.
    Silent,
    /// The temperature is 85 °C for one reading.
    Spike,
}

/// A reading, and its fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Number of its home, from 0.
    pub home: usize,
    /// Reading as the unit sends it.
    pub reading: Reading,
    /// Why the value is wrong; `None` if it is right.
    pub fault: Option<Fault>,
}

/// Returns the fault of a unit, if it has one: units of one in three homes of a village do.
pub(super) fn fault_of(home: usize, homes: usize, room: &str) -> Option<Fault> {
    if room != LIVING || homes < 4 {
        return None;
    }
    match home {
        home if home == homes / 4 => Some(Fault::Stuck),
        home if home == homes / 3 + 1 => Some(Fault::Silent),
        home if home == homes * 3 / 4 => Some(Fault::Spike),
        _ => None,
    }
}

#[derive(Debug)]
pub(super) struct Unit {
    pub(super) home: usize,
    dice: Dice,
    device: String,
    quantities: &'static [&'static str],
    fault: Option<Fault>,
    /// The value at which it is stuck.
    held: Option<f64>,
}

impl Unit {
    pub(super) fn new(dice: Dice, home: usize, device: &HomeDevice, fault: Option<Fault>) -> Unit {
        let HomeDevice { name, quantities, .. } = device;
        Unit { home, dice, device: name.clone(), quantities, fault, held: None }
    }

    /// The moment within its interval at which it measures.
    pub(super) fn offset_ms(&self, every_ms: u64) -> u64 {
        (self.dice.share(0) * every_ms as f64) as u64
    }

    pub(super) fn measure(&mut self, at_ms: u64, air: &Air, all: &mut Vec<Measured>) {
        let at_s = at_ms / 1000;
        if self.fault == Some(Fault::Silent) && self.is_silent(at_s) {
            return;
        }
        for (number, quantity) in self.quantities.iter().enumerate() {
            let noise = self.dice.derive(1 + number as u64);
            let mut value = sensed(quantity, air, noise.bell(at_ms));
            let mut fault = None;
            match (self.fault, *quantity) {
                (Some(Fault::Stuck), "humidity") => {
                    if is_within(at_s, STUCK_FOR_H) {
                        value = *self.held.get_or_insert(value);
                        fault = Some(Fault::Stuck);
                    } else {
                        self.held = None;
                    }
                }
                (Some(Fault::Spike), "temperature")
                    if noise.derive(0).share(at_ms) < SPIKE_SHARE =>
                {
                    value = SPIKE_TEMPERATURE;
                    fault = Some(Fault::Spike);
                }
                _ => {}
            }
            let reading = Reading {
                device: self.device.clone(),
                quantity: (*quantity).to_owned(),
                value,
                unit: None,
                at_ms: Some(at_ms),
            };
            all.push(Measured { home: self.home, reading, fault });
        }
    }

    fn is_silent(&self, at_s: u64) -> bool {
        let slot = at_s / SHORT_SILENCE_S;
        is_within(at_s, SILENT_FOR_H) || self.dice.derive(9).share(slot) < SHORT_SILENCE_SHARE
    }
}

/// Whether a time is in these hours of one day of [`FAULT_EVERY_DAYS`].
fn is_within(at_s: u64, hours: u64) -> bool {
    let hour = at_s % DAY_S / HOUR_S;
    at_s / DAY_S % FAULT_EVERY_DAYS == 2 && (STUCK_FROM_H..STUCK_FROM_H + hours).contains(&hour)
}

/// A measurement of the air with the noise and resolution of an inexpensive sensor.
fn sensed(quantity: &str, air: &Air, noise: f64) -> f64 {
    let to = |value: f64, step: f64| (value / step).round() * step;
    let value = match quantity {
        // Radon sensors count decays: the more there are, the smaller the error.
        "radon" => to(air.radon + noise * (2.0 + 0.6 * air.radon.sqrt()), 1.0).max(0.0),
        "co2" => to(air.co2 + noise * 8.0, 1.0),
        "co" => to(air.co + noise * 0.2, 0.5).max(0.0),
        "temperature" => to(air.temperature + noise * 0.05, 0.1),
        "humidity" => to(air.humidity + noise * 0.4, 0.1).clamp(0.0, 100.0),
        _ => f64::NAN,
    };
    // Removes digits that the division added. Adding zero makes 0 of -0.
    (value * 10.0).round() / 10.0 + 0.0
}

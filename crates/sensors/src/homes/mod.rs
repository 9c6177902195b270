//! A village of homes with sensors that report plausible values: a simulation in steps of a minute.
//!
//! `weather` is outside; `people` come, go, cook and open windows; `house` computes heat, moisture, carbon dioxide,
//! radon and carbon monoxide in well-mixed air; `sensor` measures it with noise and, in three homes, with faults.
//! Everything follows from a seed and from the time, which is passed in: a village that starts earlier has the same
//! values later, except for the first days.
//!
//! The values are of realistic magnitude; this is a source of test data, not a model of indoor air.

mod house;
mod people;
mod sensor;
mod weather;

pub use sensor::{Fault, Measured};

use house::House;
use sensor::Unit;
use weather::Weather;

use crate::dice::Dice;

/// A step of the simulation, s.
const STEP_S: u64 = 60;
/// Time that the simulation runs before the first reading, so that it has settled: three days.
const SETTLING_S: u64 = 3 * 86_400;

/// The most homes of a village.
pub const MAX_HOMES: u32 = 1000;

/// Where the village is, degrees (WGS84).
const CENTRE: (f64, f64) = (54.12, -8.34);
/// The largest distance of a home from there, in degrees of latitude: about 3 km.
const SPREAD: f64 = 0.028;

const ROADS: [&str; 10] = [
    "Bog Road",
    "Chapel Lane",
    "Creamery Road",
    "Forge Hill",
    "Lough View",
    "Mill Road",
    "Old Schoolhouse Lane",
    "Quarry Road",
    "Station House",
    "Well Lane",
];

/// The parameters of a village.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of homes, 1 to [`MAX_HOMES`].
    pub homes: u32,
    /// The seed of all random decisions.
    pub seed: u64,
    /// Seconds between two readings of a device, at least 1.
    pub every_s: u32,
}

/// A home and its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Home {
    /// Such as `home-07`.
    pub id: String,
    /// Such as `Mill Road 7`.
    pub street: String,
    /// Degrees, WGS84.
    pub latitude: f64,
    /// Degrees, WGS84.
    pub longitude: f64,
    /// Sensor units of the home.
    pub devices: Vec<HomeDevice>,
}

/// A sensor unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeDevice {
    /// Such as `home-07-living`.
    pub name: String,
    /// Where it is.
    pub room: &'static str,
    /// Kind of unit.
    pub model: &'static str,
    /// Quantities that it measures.
    pub quantities: &'static [&'static str],
}

/// A village at some time.
#[derive(Debug)]
pub struct Village {
    homes: Vec<Home>,
    weather: Weather,
    houses: Vec<House>,
    units: Vec<Unit>,
    every_s: u64,
    /// The time up to which the houses are simulated, in s since 1970.
    simulated_s: u64,
    /// Readings before this time were returned, in ms since 1970.
    given_ms: u64,
}

impl Village {
    /// A plan's village; its first readings are from `from_ms` on (since 1970).
    pub fn new(plan: &Plan, from_ms: u64) -> Village {
        let count = plan.homes.clamp(1, MAX_HOMES);
        let dice = Dice::new(plan.seed);
        let begin_s = (from_ms / 1000).saturating_sub(SETTLING_S) / STEP_S * STEP_S;
        let homes: Vec<Home> = (0..count).map(|number| home(dice, number)).collect();
        let weather = Weather::new(dice.derive(0));
        let ranks = ranks(dice.derive(1), count);
        let houses = ranks.iter().zip(0..).map(|(&rank, number)| {
            House::new(dice.derive(10 + number), rank, number == u64::from(count / 2))
        });
        let mut units = Vec::new();
        for (number, home) in homes.iter().enumerate() {
            for device in &home.devices {
                let dice = dice.derive(2).derive(units.len() as u64);
                let fault = sensor::fault_of(number, count as usize, device.room);
                units.push(Unit::new(dice, number, device, fault));
            }
        }
        let mut village = Village {
            houses: houses.collect(),
            homes,
            weather,
            units,
            every_s: u64::from(plan.every_s.max(1)),
            simulated_s: begin_s,
            given_ms: from_ms,
        };
        village.simulate_to(from_ms / 1000);
        village
    }

    /// Homes of the village.
    pub fn homes(&self) -> &[Home] {
        &self.homes
    }

    /// The readings from the end of the last call to `until_ms` (excluded), in order of time.
    ///
    /// Time does not go back: an earlier `until_ms` returns nothing.
    pub fn advance(&mut self, until_ms: u64) -> Vec<Measured> {
        let mut all = Vec::new();
        while self.given_ms < until_ms {
            let step_end_ms = (self.given_ms / 1000 / STEP_S + 1) * STEP_S * 1000;
            let to_ms = step_end_ms.min(until_ms);
            self.simulate_to(self.given_ms / 1000);
            self.measure(to_ms, &mut all);
            self.given_ms = to_ms;
        }
        all
    }

    /// Advances the houses to the minute of a time.
    fn simulate_to(&mut self, time_s: u64) {
        while self.simulated_s + STEP_S <= time_s {
            self.simulated_s += STEP_S;
            let outside = self.weather.at(self.simulated_s);
            for house in &mut self.houses {
                house.step(self.simulated_s, STEP_S as f64 / 3600.0, &outside);
            }
        }
    }

    /// Readings within this minute, from the present time on.
    fn measure(&mut self, to_ms: u64, all: &mut Vec<Measured>) {
        let every_ms = self.every_s * 1000;
        let mut due = Vec::new();
        for (number, unit) in self.units.iter().enumerate() {
            // Each unit has its own moment, so that they do not all send at once.
            let offset = unit.offset_ms(every_ms);
            let first = (self.given_ms + every_ms - 1).saturating_sub(offset) / every_ms;
            let times = (first..).map(|turn| turn * every_ms + offset);
            due.extend(
                times
                    .skip_while(|at| *at < self.given_ms)
                    .take_while(|at| *at < to_ms)
                    .map(|at| (at, number)),
            );
        }
        due.sort_unstable();
        for (at_ms, number) in due {
            let unit = &mut self.units[number];
            unit.measure(at_ms, &self.houses[unit.home].air(), all);
        }
    }
}

/// A home at a place derived from its number and the seed.
fn home(dice: Dice, number: u32) -> Home {
    let dice = dice.derive(3).derive(u64::from(number));
    let road = ROADS[number as usize % ROADS.len()];
    let house = 1 + number as usize / ROADS.len() * 2 + usize::from(dice.share(0) < 0.5);
    let id = format!("home-{:02}", number + 1);
    // Around the centre, in different directions.
    let angle = f64::from(number) * 2.399_963 + dice.between(1, -0.2, 0.2);
    let far = SPREAD * dice.between(2, 0.15, 1.0).sqrt();
    let device = |place, room, model, quantities| HomeDevice {
        name: format!("{id}-{place}"),
        room,
        model,
        quantities,
    };
    Home {
        street: format!("{road} {house}"),
        latitude: rounded(CENTRE.0 + far * angle.sin(), 5),
        // A degree of longitude is shorter here.
        longitude: rounded(CENTRE.1 + far * angle.cos() / 0.586, 5),
        devices: vec![
            device(
                "living",
                sensor::LIVING,
                "air quality unit",
                &["radon", "co2", "temperature", "humidity"],
            ),
            device("boiler", sensor::BOILER, "carbon monoxide alarm", &["co", "temperature"]),
        ],
        id,
    }
}

/// Relative radon below each home: a permutation of 0 to `count`, as a share.
fn ranks(dice: Dice, count: u32) -> Vec<f64> {
    let mut order: Vec<u32> = (0..count).collect();
    order.sort_by(|&a, &b| dice.share(a.into()).total_cmp(&dice.share(b.into())));
    let mut ranks = vec![0.0; order.len()];
    for (rank, home) in order.into_iter().enumerate() {
        ranks[home as usize] = (rank as f64 + 0.5) / f64::from(count);
    }
    ranks
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

//! A house as one volume of air: sources, losses and exchange with the outside.
//!
//! Balances are per hour, with explicit time steps; with a step of a minute and at most nine air changes per hour,
//! that is stable.

use super::people::{Doing, People};
use super::weather::{Outside, saturation};
use crate::dice::Dice;

/// Half of the radon has decayed after 3.82 days.
const RADON_DECAY_PER_H: f64 = 0.007_55;
/// Radon in outside air.
const RADON_OUTSIDE: f64 = 8.0;
const CO2_OUTSIDE: f64 = 425.0;

/// Carbon dioxide that a person exhales, in m³ per hour; less asleep.
const CO2_AWAKE_M3: f64 = 0.019;
const CO2_ASLEEP_M3: f64 = 0.012;
/// Water vapour from a person, cooking and a shower, in g per hour.
const WATER_PERSON_G: f64 = 45.0;
const WATER_COOKING_G: f64 = 700.0;
const WATER_SHOWER_G: f64 = 1800.0;
/// Walls, furniture and clothes absorb moisture: the air behaves like this many times its volume.
const MOISTURE_BUFFER: f64 = 3.0;

/// Air changes per hour that an open window adds.
const WINDOW_PER_H: f64 = 4.0;

/// The flue of one home is sometimes blocked: on one day of this many, from this hour, for this long.
const FLUE_EVERY_DAYS: u64 = 9;
const FLUE_FROM_H: f64 = 19.0;
const FLUE_FOR_H: f64 = 0.75;
/// Carbon monoxide from the blocked flue, in ppm per hour.
const FLUE_CO_PER_H: f64 = 210.0;
/// Above this the alarm sounds and windows are opened, in ppm, until it is below the second value.
const CO_ALARM: f64 = 100.0;
const CO_ALARM_ENDS: f64 = 10.0;

/// The indoor air at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Air {
    pub(super) radon: f64,
    pub(super) co2: f64,
    pub(super) co: f64,
    pub(super) temperature: f64,
    pub(super) humidity: f64,
}

#[derive(Debug)]
pub(super) struct House {
    people: People,
    volume_m3: f64,
    /// Air changes per hour with windows closed and little wind.
    leak_per_h: f64,
    /// Radon from the ground, in Bq/m³ per hour.
    radon_per_h: f64,
    /// Time in which the temperature follows that outside, in h.
    inertia_h: f64,
    set_point: f64,
    gas_cooker: bool,
    /// Day of its cycle on which the flue is blocked.
    flue_day: Option<u64>,
    alarm: bool,
    temperature: f64,
    moisture: f64,
    radon: f64,
    co2: f64,
    co: f64,
}

impl House {
    /// `rank` is the position of its radon among all homes, 0 to 1.
    pub(super) fn new(dice: Dice, rank: f64, bad_flue: bool) -> House {
        let leak_per_h = dice.between(0, 0.25, 0.6);
        // Radon in homes is distributed log-normally, here with a median of 75 Bq/m³ and a geometric standard
        // deviation of 2.7; the logistic curve is near the normal one.
        let normal = (rank / (1.0 - rank)).ln() / 1.702;
        let usual = 75.0 * (normal * 2.7f64.ln()).exp();
        House {
            people: People::new(dice.derive(1)),
            volume_m3: dice.between(1, 180.0, 420.0),
            leak_per_h,
            radon_per_h: usual * (leak_per_h + RADON_DECAY_PER_H),
            inertia_h: dice.between(2, 25.0, 70.0),
            set_point: dice.between(3, 19.0, 22.0),
            gas_cooker: dice.share(4) < 0.4,
            flue_day: bad_flue.then(|| (dice.share(5) * FLUE_EVERY_DAYS as f64) as u64),
            alarm: false,
            temperature: 19.0,
            moisture: 8.0,
            radon: usual,
            co2: 600.0,
            co: 0.5,
        }
    }

    /// One step, which ends at `time_s`.
    pub(super) fn step(&mut self, time_s: u64, hours: f64, outside: &Outside) {
        let doing = self.people.at(time_s, self.temperature);
        let changes = self.changes_per_h(&doing, outside);
        let of_volume = 1.0 / self.volume_m3;
        let breath = if doing.asleep { CO2_ASLEEP_M3 } else { CO2_AWAKE_M3 };
        let co2_in = doing.present * breath * of_volume * 1e6;
        self.co2 += hours * (co2_in - changes * (self.co2 - CO2_OUTSIDE));
        let stack = 1.0 + 0.03 * (self.temperature - outside.temperature).clamp(-5.0, 25.0);
        let drawn = self.radon_per_h * stack * (1.0 - 0.3 * outside.pressure_change).max(0.2);
        let lost = changes * (self.radon - RADON_OUTSIDE) + RADON_DECAY_PER_H * self.radon;
        self.radon += hours * (drawn - lost);
        self.step_co(time_s, hours, changes, &doing);
        self.step_water(hours, changes, &doing, outside);
        self.step_heat(time_s, hours, changes, &doing, outside);
    }

    fn changes_per_h(&self, doing: &Doing, outside: &Outside) -> f64 {
        let difference = (self.temperature - outside.temperature).abs();
        let closed = self.leak_per_h * (0.6 + 0.25 * outside.wind + 0.012 * difference);
        let open = if doing.window_open || self.alarm { WINDOW_PER_H * outside.wind } else { 0.0 };
        closed + open
    }

    fn step_co(&mut self, time_s: u64, hours: f64, changes: f64, doing: &Doing) {
        let day = time_s / 86_400;
        let hour = (time_s % 86_400) as f64 / 3600.0;
        let blocked = self.flue_day == Some(day % FLUE_EVERY_DAYS)
            && (FLUE_FROM_H..FLUE_FROM_H + FLUE_FOR_H).contains(&hour);
        let cooker = if doing.cooking && self.gas_cooker { 6.0 } else { 0.0 };
        let flue = if blocked { FLUE_CO_PER_H } else { 0.0 };
        self.co += hours * (cooker + flue - changes * (self.co - 0.2));
        self.alarm = self.co > if self.alarm { CO_ALARM_ENDS } else { CO_ALARM };
    }

    fn step_water(&mut self, hours: f64, changes: f64, doing: &Doing, outside: &Outside) {
        let cooking = if doing.cooking { WATER_COOKING_G } else { 0.0 };
        let shower = if doing.showering { WATER_SHOWER_G } else { 0.0 };
        let given = (doing.present * WATER_PERSON_G + cooking + shower) / self.volume_m3;
        let gone = changes * (self.moisture - outside.moisture);
        self.moisture += hours * (given - gone) / MOISTURE_BUFFER;
        self.moisture = self.moisture.min(saturation(self.temperature));
    }

    fn step_heat(
        &mut self,
        time_s: u64,
        hours: f64,
        changes: f64,
        doing: &Doing,
        outside: &Outside,
    ) {
        let hour = (time_s % 86_400) as f64 / 3600.0;
        // From before they rise until they sleep; lower at night and while nobody is at home.
        let lower = if !(6.0..22.5).contains(&hour) {
            3.0
        } else if doing.present == 0.0 {
            2.0
        } else {
            0.0
        };
        let missing = self.set_point - lower - self.temperature;
        let heating = (2.0 * missing).clamp(0.0, 2.2);
        let gains = 0.07 * doing.present + if doing.cooking { 0.6 } else { 0.0 };
        // Exchanged air carries less heat than the walls store.
        let loss =
            (self.temperature - outside.temperature) * (1.0 / self.inertia_h + 0.02 * changes);
        self.temperature += hours * (heating + gains - loss);
    }

    pub(super) fn air(&self) -> Air {
        Air {
            radon: self.radon.max(0.0),
            co2: self.co2,
            co: self.co.max(0.0),
            temperature: self.temperature,
            humidity: 100.0 * self.moisture / saturation(self.temperature),
        }
    }
}

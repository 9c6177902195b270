//! The weather outside: temperature with season, day and spells, moisture, wind and pressure.

use crate::dice::Dice;

const DAY_S: f64 = 86_400.0;
const YEAR_DAYS: f64 = 365.25;

/// The outside at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outside {
    /// °C.
    pub(super) temperature: f64,
    /// Water in the air, g/m³.
    pub(super) moisture: f64,
    /// The change of pressure, about -1 to 1: falling pressure draws radon out of the ground.
    pub(super) pressure_change: f64,
    /// The strength of the wind, 1 on average.
    pub(super) wind: f64,
}

#[derive(Debug)]
pub(super) struct Weather {
    dice: Dice,
}

impl Weather {
    pub(super) fn new(dice: Dice) -> Weather {
        Weather { dice }
    }

    pub(super) fn at(&self, time_s: u64) -> Outside {
        let time = time_s as f64;
        let day = time / DAY_S;
        let wave = |share: f64| (share * std::f64::consts::TAU).cos();
        // Warmest at the end of July and at three in the afternoon.
        let season = 6.0 * wave((day % YEAR_DAYS - 208.0) / YEAR_DAYS);
        let spell = 2.5 * self.dice.derive(0).curve(time, 2.5 * DAY_S);
        let hour = 2.8 * wave(day.fract() - 15.0 / 24.0);
        let temperature = 9.5 + season + spell + hour;
        let humid =
            (0.84 - 0.02 * hour + 0.06 * self.dice.derive(1).curve(time, DAY_S)).clamp(0.4, 1.0);
        Outside {
            temperature,
            moisture: saturation(temperature) * humid,
            pressure_change: self.dice.derive(2).curve(time, 0.7 * DAY_S),
            wind: (1.0 + 0.4 * self.dice.derive(3).curve(time, 0.3 * DAY_S)).max(0.2),
        }
    }
}

/// Water that air can hold at a temperature in °C, g/m³ (Magnus formula).
pub(super) fn saturation(temperature: f64) -> f64 {
    let pressure_pa = 611.2 * (17.62 * temperature / (243.12 + temperature)).exp();
    2.1667 * pressure_pa / (temperature + 273.15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summers_are_warm_and_winters_are_not() {
        let weather = Weather::new(Dice::new(1));
        let mean = |from_day: u64| {
            let hours = (from_day * 24)..((from_day + 60) * 24);
            hours.map(|hour| weather.at(hour * 3600).temperature).sum::<f64>() / (60.0 * 24.0)
        };
        // 2026-01-01 is day 20,454.
        let (winter, summer) = (mean(20_454), mean(20_454 + 181));
        assert!((0.0..9.0).contains(&winter), "{winter}");
        assert!((11.0..20.0).contains(&summer), "{summer}");
    }

    #[test]
    fn warm_air_holds_more_water() {
        assert!((saturation(20.0) - 17.3).abs() < 0.1, "{}", saturation(20.0));
        assert!(saturation(0.0) < 5.0);
    }
}

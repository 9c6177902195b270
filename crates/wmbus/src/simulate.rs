//! A town of meters and a van that drives past them: receptions with levels that depend on distance.
//!
//! Everything follows from a seed: where meters are, when they send, what they count, what reaches the
//! van. Frames are real ones, encrypted as meters of that kind do. Time is simulated; who wants it to
//! pass waits between receptions. A drive ends with the last street unless it is [`Drive::endless`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write;

use fastrand::Rng;

use crate::address::{Address, Medium, MeterId};
use crate::encode::{Seal, encode};
use crate::frame::HEADER_BYTES;
use crate::keys::Key;
use crate::received::GeoPosition;
use crate::records::date::Moment;

/// Distance between streets, and between houses on a side of one, m.
const STREET_M: f64 = 80.0;
const HOUSE_M: f64 = 12.0;
/// From the middle of the street to a meter, m.
const SETBACK_M: f64 = 12.0;
/// A van in a town, m/s.
const SPEED_M_S: f64 = 8.3;
/// Where the town's first street begins.
const CORNER: GeoPosition = GeoPosition { latitude: 53.55, longitude: 10.0 };
const METRES_A_DEGREE: f64 = 111_320.0;

/// Level one metre from a meter that sends 25 mW at 868 MHz from a cellar, dBm.
const LEVEL_AT_1_M_DBM: f64 = -32.0;
/// Exponent with which the signal falls: 2 in free space, about 3 between houses.
const PATH_LOSS_EXPONENT: f64 = 3.0;
/// Changes by walls and cars, dB (standard deviation).
const SHADOWING_DB: f64 = 5.0;
/// Below this nothing is received, dBm.
const SENSITIVITY_DBM: f64 = -105.0;
/// Within this of the sensitivity the more frames are damaged the weaker they are, dB.
const MARGIN_DB: f64 = 5.0;
/// The receiver's own measure of level is dBm and this.
const RAW_LEVEL_OFFSET: f64 = 150.0;

/// When a drive begins unless told otherwise: 2026-01-05 08:00:00, in seconds since 2000.
const START_S: u64 = 820_915_200;
const MS: u64 = 1000;
/// Meters for walk-by and drive-by send every 8 to 24 s.
const SHORTEST_INTERVAL_MS: u64 = 8 * MS;

/// Protection of a meter's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mode5,
    Mode7,
    EllCtr,
    Clear,
}

#[derive(Debug)]
struct Meter {
    address: Address,
    kind: Kind,
    key: [u8; 16],
    x_m: f64,
    y_m: f64,
    litres: f64,
    litres_an_hour: f64,
    interval_ms: u64,
    sent: u32,
    street: u32,
    house: u32,
}

/// A meter where it is installed.
#[derive(Clone, Debug, PartialEq)]
pub struct Installed {
    /// Address in the meter's frames.
    pub address: Address,
    /// Key as 32 digits; `None` if the meter does not encrypt.
    pub key: Option<String>,
    /// Where its house is.
    pub place: GeoPosition,
    /// Number of its street, from 0.
    pub street: u32,
    /// Number of its house in the street, from 1.
    pub house: u32,
    /// Count when the drive begins, litres.
    pub litres: f64,
    /// Increase of the count in an hour, litres.
    pub litres_an_hour: f64,
}

impl Installed {
    /// Returns the count `hours` before the drive began, in litres.
    #[must_use]
    pub fn litres_before(&self, hours: f64) -> f64 {
        (self.litres - self.litres_an_hour * hours).max(0.0)
    }
}

/// A telegram that reached the van.
#[derive(Clone, Debug, PartialEq)]
pub struct Reception {
    /// Since the van set out, ms.
    pub elapsed_ms: u64,
    /// By the clock of meters and receiver, in seconds since 2000.
    pub time_s: u64,
    /// Who sent it.
    pub meter: Address,
    /// Count of the meter, litres.
    pub litres: u32,
    /// Signal strength, dBm.
    pub rssi_dbm: f64,
    /// Where the van was.
    pub place: GeoPosition,
    /// Distance to the meter, m.
    pub distance_m: f64,
    /// Whether noise damaged it, which the receiver's checksum shows.
    pub damaged: bool,
    /// The link frame without checksums.
    pub frame: Vec<u8>,
}

impl Reception {
    /// The line that `rtl_wmbus` would have written; its level is dBm and 150.
    #[must_use]
    pub fn rtl_wmbus_line(&self) -> String {
        let level = (self.rssi_dbm + RAW_LEVEL_OFFSET).clamp(0.0, 255.0).round();
        let time = Moment::since_2000(self.time_s);
        let crc_ok = u8::from(!self.damaged);
        let mut line = format!(
            "T1;{crc_ok};1;{time}.{:03};{level};{level};{};0x",
            self.elapsed_ms % MS,
            self.meter.id
        );
        for byte in &self.frame {
            // Writing to a string cannot fail.
            let _ = write!(line, "{byte:02x}");
        }
        line
    }
}

/// The drive: an iterator over what is received, in the order of time.
#[derive(Debug)]
pub struct Drive {
    rng: Rng,
    meters: Vec<Meter>,
    /// When each meter sends next, soonest first.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    streets: f64,
    street_length_m: f64,
    start_s: u64,
    endless: bool,
}

impl Drive {
    /// A town of so many meters. The same seed gives the same drive.
    #[must_use]
    pub fn new(meters: u32, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        // As broad as long: streets times their distance is the length of a street.
        let houses = (f64::from(meters) / 2.0 * STREET_M / HOUSE_M).sqrt().ceil().max(1.0);
        let streets = (f64::from(meters) / (2.0 * houses)).ceil().max(1.0);
        let meters: Vec<Meter> =
            (0..meters).map(|number| meter(number, houses, &mut rng)).collect();
        let next = meters.iter().enumerate();
        let next = next.map(|(at, meter)| Reverse((rng.u64(0..meter.interval_ms), at))).collect();
        let street_length_m = houses * HOUSE_M;
        Self { rng, meters, next, streets, street_length_m, start_s: START_S, endless: false }
    }

    /// The same, beginning later, in seconds since 2000 by the meters' clocks. Meters have counted and sent
    /// all the time until then: a drive that begins after another does not look like its replay.
    #[must_use]
    pub fn beginning(mut self, start_s: u64) -> Self {
        let later_s = start_s.saturating_sub(self.start_s);
        for meter in &mut self.meters {
            meter.litres += meter.litres_an_hour * later_s as f64 / 3600.0;
            // No meter sends more often than this.
            let sent = later_s / (SHORTEST_INTERVAL_MS / MS);
            meter.sent = meter.sent.wrapping_add(sent as u32);
        }
        self.start_s = start_s;
        self
    }

    /// The same without an end: the van turns at the end of its route and drives it the other way.
    #[must_use]
    pub fn endless(self) -> Self {
        Self { endless: true, ..self }
    }

    /// All meters, in the order of their numbers.
    pub fn installed(&self) -> impl Iterator<Item = Installed> {
        self.meters.iter().map(|meter| Installed {
            address: meter.address,
            key: (meter.kind != Kind::Clear).then(|| digits(&meter.key)),
            place: place(meter.x_m, meter.y_m),
            street: meter.street,
            house: meter.house,
            litres: meter.litres,
            litres_an_hour: meter.litres_an_hour,
        })
    }

    /// All meters and, of those that encrypt, the key as 32 digits.
    pub fn keys(&self) -> impl Iterator<Item = (Address, String)> {
        let encrypting = self.meters.iter().filter(|meter| meter.kind != Kind::Clear);
        encrypting.map(|meter| (meter.address, digits(&meter.key)))
    }

    /// Duration of the drive, ms.
    #[must_use]
    pub fn duration_ms(&self) -> u64 {
        (self.streets * (self.street_length_m + STREET_M) / SPEED_M_S * MS as f64) as u64
    }

    /// Where the van is: up one street, down the next, and back by the same way.
    fn van(&self, elapsed_ms: u64) -> (f64, f64) {
        let there_ms = self.duration_ms().max(1);
        let in_lap_ms = elapsed_ms % (2 * there_ms);
        let on_way_ms = in_lap_ms.min(2 * there_ms - in_lap_ms);
        let driven = on_way_ms as f64 / MS as f64 * SPEED_M_S;
        let leg = self.street_length_m + STREET_M;
        let street = (driven / leg).floor();
        let along = driven - street * leg;
        let up = street % 2.0 == 0.0;
        let length = self.street_length_m;
        let x = if up { along.min(length) } else { (length - along).max(0.0) };
        (x, street * STREET_M + (along - length).max(0.0))
    }

    /// Level at this distance, this time.
    fn level(&mut self, distance_m: f64) -> f64 {
        // Box and Muller's normal deviate; the smallest argument keeps the logarithm finite.
        let radius = (-2.0 * self.rng.f64().max(1e-12).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.rng.f64()).cos();
        LEVEL_AT_1_M_DBM - 10.0 * PATH_LOSS_EXPONENT * distance_m.max(1.0).log10()
            + SHADOWING_DB * normal
    }

    fn send(&mut self, at: usize, elapsed_ms: u64) -> Option<Reception> {
        let (x, y) = self.van(elapsed_ms);
        self.meters[at].sent += 1;
        let (dx, dy) = (self.meters[at].x_m - x, self.meters[at].y_m - y);
        let distance_m = dx.hypot(dy);
        let rssi_dbm = self.level(distance_m);
        if rssi_dbm < SENSITIVITY_DBM {
            return None;
        }
        let damaged = self.rng.f64() * MARGIN_DB > rssi_dbm - SENSITIVITY_DBM;
        let meter = &self.meters[at];
        let hours = elapsed_ms as f64 / (3600 * MS) as f64;
        let litres = (meter.litres + meter.litres_an_hour * hours) as u32;
        let time_s = self.start_s + elapsed_ms / MS;
        let mut frame = meter.frame(litres, time_s);
        if damaged {
            let place = self.rng.usize(HEADER_BYTES..frame.len());
            frame[place] ^= 1 << self.rng.u8(0..8);
        }
        Some(Reception {
            elapsed_ms,
            time_s,
            meter: meter.address,
            litres,
            rssi_dbm,
            place: place(x, y),
            distance_m,
            damaged,
            frame,
        })
    }
}

impl Iterator for Drive {
    type Item = Reception;

    fn next(&mut self) -> Option<Reception> {
        loop {
            let Reverse((now, at)) = self.next.pop()?;
            if !self.endless && now >= self.duration_ms() {
                return None;
            }
            self.next.push(Reverse((now + self.meters[at].interval_ms, at)));
            if let Some(reception) = self.send(at, now) {
                return Some(reception);
            }
        }
    }
}

fn place(x_m: f64, y_m: f64) -> GeoPosition {
    let latitude = CORNER.latitude + y_m / METRES_A_DEGREE;
    let longitude = CORNER.longitude + x_m / METRES_A_DEGREE / latitude.to_radians().cos();
    GeoPosition { latitude, longitude }
}

fn digits(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// A meter in its house: odd ones left of the street, even ones right.
fn meter(number: u32, houses: f64, rng: &mut Rng) -> Meter {
    const MANUFACTURERS: [(&str, u8); 4] =
        [("KAM", 0x1B), ("DME", 0x70), ("SEN", 0x68), ("EFE", 0x70)];
    let place = f64::from(number);
    let street = (place / (2.0 * houses)).floor();
    let house = ((place - street * 2.0 * houses) / 2.0).floor();
    let side = if number.is_multiple_of(2) { 1.0 } else { -1.0 };
    let (manufacturer, version) = MANUFACTURERS[rng.usize(..MANUFACTURERS.len())];
    let kind = match rng.u8(0..20) {
        0..=12 => Kind::Mode5,
        13..=16 => Kind::Mode7,
        17..=18 => Kind::EllCtr,
        _ => Kind::Clear,
    };
    let warm = rng.u8(0..4) == 0;
    Meter {
        address: Address {
            // Those above are letters; another would show as a manufacturer that does not exist.
            manufacturer: manufacturer.parse().unwrap_or(crate::Manufacturer::from_code(0)),
            id: MeterId::from_number(10_000_000 + number),
            version,
            medium: Medium(if warm { 0x06 } else { 0x07 }),
        },
        kind,
        key: rng.u128(..).to_be_bytes(),
        x_m: (house + 0.5) * HOUSE_M,
        y_m: street * STREET_M + side * SETBACK_M,
        litres: rng.f64() * 900_000.0,
        litres_an_hour: if rng.u8(0..3) == 0 { rng.f64() * 600.0 } else { 0.0 },
        interval_ms: SHORTEST_INTERVAL_MS + rng.u64(0..2 * SHORTEST_INTERVAL_MS),
        sent: rng.u32(0..1 << 20),
        street: street as u32,
        house: (number - street as u32 * 2 * houses as u32) + 1,
    }
}

impl Meter {
    fn frame(&self, litres: u32, seconds: u64) -> Vec<u8> {
        let now = Moment::since_2000(seconds);
        let mut records = vec![0x04, 0x13];
        records.extend(litres.to_le_bytes());
        records.extend([0x04, 0x6D]);
        records.extend(now.to_type_f());
        records.extend([0x02, 0xFD, 0x17, 0, 0]);
        let key = Key::new(self.key);
        // Minutes and a number within them, which grows because no meter sends more often than this.
        let session = ((seconds / 60) << 4) | (seconds % 60 / (SHORTEST_INTERVAL_MS / MS));
        let seal = match self.kind {
            Kind::Mode5 => Seal::Mode5(&key),
            Kind::Mode7 => Seal::Mode7(&key, self.sent),
            Kind::EllCtr => Seal::EllCtr(&key, session as u32),
            Kind::Clear => Seal::None,
        };
        encode(self.address, self.sent as u8, 0, seal, &records)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::input::{Input, Kind as InputKind};
    use crate::{Decoder, InMemoryKeys, Value};
    use std::collections::HashSet;

    #[test]
    fn what_undamaged_telegrams_say_is_what_meters_counted() {
        let drive = Drive::new(300, 7);
        let mut keys = InMemoryKeys::new();
        drive.keys().for_each(|(meter, key)| {
            keys.insert(&meter.id.to_string(), key.parse().unwrap()).unwrap();
        });
        let mut decoder = Decoder::new(keys);
        let (mut heard, mut damaged) = (HashSet::new(), 0);
        for reception in drive {
            let mut input = Input::new(InputKind::Auto);
            input.feed(reception.rtl_wmbus_line().as_bytes());
            input.feed(b"\n");
            let received = input.next().unwrap();
            if reception.damaged {
                damaged += 1;
                assert!(received.is_err(), "the receiver saw it");
                continue;
            }
            let telegram = decoder.decode(&received.unwrap()).unwrap();
            assert_eq!(telegram.meter, reception.meter);
            let litres = Value::Number(f64::from(reception.litres) / 1000.0);
            assert_eq!(telegram.main("volume").unwrap().value, litres);
            heard.insert(reception.meter);
        }
        assert_eq!(heard.len(), 300, "no meter is missed");
        assert!(damaged > 10, "{damaged}");
    }

    #[test]
    fn the_seed_decides_everything() {
        let drive = |seed| Drive::new(50, seed).take(100).collect::<Vec<_>>();
        assert_eq!(drive(1), drive(1));
        assert_ne!(drive(1), drive(2));
    }

    #[test]
    fn an_endless_drive_comes_back_and_goes_on_counting() {
        let start_s = START_S + 86_400;
        let drive = Drive::new(50, 7).beginning(start_s).endless();
        let there_ms = drive.duration_ms();
        assert_eq!(drive.van(there_ms / 3), drive.van(2 * there_ms - there_ms / 3));
        assert_eq!(drive.van(there_ms / 3), drive.van(2 * there_ms + there_ms / 3));
        let mut keys = InMemoryKeys::new();
        let installed: Vec<Installed> = drive.installed().collect();
        for meter in installed.iter().filter(|meter| meter.key.is_some()) {
            let key = meter.key.as_deref().unwrap().parse().unwrap();
            keys.insert(&meter.address.id.to_string(), key).unwrap();
        }
        let mut decoder = Decoder::new(keys);
        let houses: HashSet<_> = installed.iter().map(|m| (m.street, m.house)).collect();
        assert_eq!(houses.len(), 50, "each has a house of its own");
        let mut laps = drive.take_while(|reception| reception.elapsed_ms < 4 * there_ms);
        let first = laps.next().unwrap();
        assert!(first.rtl_wmbus_line().contains("2026-01-06 08:00"), "{}", first.rtl_wmbus_line());
        // Nothing looks like a replay, two laps long.
        for reception in laps.filter(|reception| !reception.damaged) {
            let mut input = Input::new(InputKind::Auto);
            input.feed(reception.rtl_wmbus_line().as_bytes());
            input.feed(b"\n");
            decoder.decode(&input.next().unwrap().unwrap()).unwrap();
        }
    }

    #[test]
    fn nearer_meters_are_stronger() {
        let all: Vec<Reception> = Drive::new(500, 3).collect();
        let mean = |from: f64, to: f64| {
            let levels = all.iter().filter(|r| (from..to).contains(&r.distance_m));
            let (sum, count) = levels.fold((0.0, 0.0), |(s, n), r| (s + r.rssi_dbm, n + 1.0));
            sum / count
        };
        assert!(mean(0.0, 30.0) > mean(30.0, 100.0) + 10.0);
        assert!(mean(30.0, 100.0) > mean(100.0, 300.0) + 5.0);
    }
}

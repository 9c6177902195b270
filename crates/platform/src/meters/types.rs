//! What a meter is to the platform.

use std::fmt;
use std::str::FromStr;

use fulmar_wmbus::{Manufacturer, MeterId};
use utoipa::PartialSchema;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

use crate::text::text_form;
use crate::values::*;

words! {
    /// Medium of a meter.
    Medium {
        /// Cold water.
        Water = "water",
        /// Warm water.
        WarmWater = "warm_water",
        /// Heat.
        Heat = "heat",
        /// Gas.
        Gas = "gas",
        /// Electricity.
        Electricity = "electricity",
        /// Heat at a radiator, in units that only a statement of costs makes something of.
        HeatCost = "heat_cost",
        /// Something else.
        Other = "other",
    }
}

words! {
    /// The way in which a reading was taken.
    Method {
        /// Somebody typed what the register showed.
        Manual = "manual",
        /// The same, with a photo of it.
        Photo = "photo",
        /// The meter sent it.
        Radio = "radio",
    }
}

words! {
    /// Proof that a meter sent what came by radio.
    Protection {
        /// Nothing: anybody could have sent it.
        Unauthenticated = "unauthenticated",
        /// It was encrypted under the meter's key, without an authentication code: it may have been altered.
        Encrypted = "encrypted",
        /// An authentication code under the meter's key.
        Authenticated = "authenticated",
    }
}

impl From<fulmar_wmbus::Protection> for Protection {
    fn from(protection: fulmar_wmbus::Protection) -> Protection {
        match protection {
            fulmar_wmbus::Protection::Unauthenticated => Protection::Unauthenticated,
            fulmar_wmbus::Protection::Encrypted => Protection::Encrypted,
            fulmar_wmbus::Protection::Authenticated => Protection::Authenticated,
        }
    }
}

words! {
    /// Whether something is wrong with a meter.
    MeterState {
        /// Nothing known.
        Ok = "ok",
        /// A work list that is due or done has no reading of it.
        Missed = "missed",
        /// It counts without a pause.
        LeakSuspected = "leak_suspected",
    }
}

impl Medium {
    /// Unit in which its meters count, unless they say otherwise.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Medium::Heat | Medium::Electricity => "kWh",
            Medium::HeatCost => "units",
            Medium::Water | Medium::WarmWater | Medium::Gas | Medium::Other => "m3",
        }
    }

    /// Whether its meters may show a negative value: electricity may be the balance of a home that generates some.
    pub(crate) fn may_be_negative(self) -> bool {
        matches!(self, Medium::Electricity | Medium::Other)
    }
}

/// A wireless M-Bus address: manufacturer, number and, where they are known, version and type, as
/// `KAM-12345678-16-1b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RadioAddress {
    maker: Manufacturer,
    number: MeterId,
    model: Option<(u8, u8)>,
}

const ADDRESS_PATTERN: &str = "^[A-Za-z]{3}-[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2})?$";

impl RadioAddress {
    /// Address of a received frame.
    pub(crate) fn from_received(address: &fulmar_wmbus::Address) -> RadioAddress {
        let model = Some((address.version, address.medium.0));
        RadioAddress { maker: address.manufacturer, number: address.id, model }
    }

    /// Manufacturer and number, such as `KAM-12345678`: they identify a meter. The database has them in the column
    /// `radio_key`.
    pub(crate) fn short(&self) -> String {
        format!("{}-{}", self.maker, self.number)
    }

    /// Version and medium, if they are known.
    pub(crate) fn model(&self) -> Option<(u8, u8)> {
        self.model
    }

    /// The manufacturer's letters.
    pub(crate) fn maker(&self) -> String {
        self.maker.to_string()
    }
}

impl fmt::Display for RadioAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.maker, self.number)?;
        match self.model {
            Some((version, medium)) => write!(f, "-{version:02x}-{medium:02x}"),
            None => Ok(()),
        }
    }
}

impl FromStr for RadioAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<RadioAddress, Self::Err> {
        let wrong = "expected an address such as KAM-12345678-16-1b";
        let byte = |text: &str| match text.len() {
            2 if text.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
                u8::from_str_radix(text, 16).ok()
            }
            _ => None,
        };
        let parts: Vec<&str> = text.split('-').collect();
        let (maker, number, model) = match parts[..] {
            [maker, number] => (maker, number, None),
            [maker, number, version, medium] => {
                let model = byte(version).zip(byte(medium)).ok_or(wrong)?;
                (maker, number, Some(model))
            }
            _ => return Err(wrong),
        };
        let (maker, number) =
            (maker.parse().map_err(|_| wrong)?, number.parse().map_err(|_| wrong)?);
        Ok(RadioAddress { maker, number, model })
    }
}

text_form!(RadioAddress);

impl PartialSchema for RadioAddress {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::String).pattern(Some(ADDRESS_PATTERN)).into()
    }
}

impl ToSchema for RadioAddress {}

/// Where the next value is expected.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Expected {
    /// At least.
    pub(crate) low: Amount,
    /// At most.
    pub(crate) high: Amount,
}

impl Expected {
    /// The limits as two columns, where they are given.
    pub(crate) fn columns(
        given: Option<Option<Expected>>,
    ) -> (Option<Option<Amount>>, Option<Option<Amount>>) {
        given.map(|given| given.map(|range| (range.low, range.high)).unzip()).unzip()
    }
}

/// Last reading of a meter.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct LastReading {
    pub(crate) value: f64,
    pub(crate) unit: String,
    pub(crate) at: Time,
    pub(crate) method: Method,
    /// Proof that the meter sent it; null if it did not come by radio, or before the server recorded that.
    pub(crate) protection: Option<Protection>,
}

/// A meter.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Meter {
    pub(crate) id: Name,
    /// Wireless M-Bus address, such as `KAM-12345678-16-1b`; null without a radio.
    pub(crate) address: Option<String>,
    pub(crate) serial: Option<String>,
    pub(crate) manufacturer: Option<String>,
    pub(crate) medium: Medium,
    pub(crate) place: Option<Place>,
    pub(crate) street: Option<String>,
    /// Unit, such as `m3` or `kWh`.
    pub(crate) unit: String,
    /// Digits of its register before the decimal point.
    pub(crate) register_digits: u8,
    /// Whether it has a radio.
    pub(crate) radio: bool,
    /// Whether the server has its key.
    pub(crate) has_key: bool,
    /// Whether its messages by radio were protected.
    #[serde(skip)]
    pub(crate) is_protected: bool,
    pub(crate) note: Option<String>,
    /// The plausible range of its next value, if it is known. One that was set holds until the next reading.
    pub(crate) expected: Option<Expected>,
    pub(crate) last: Option<LastReading>,
    pub(crate) state: MeterState,
    /// When anything of it changed last.
    pub(crate) changed_at: Time,
    /// For If-Match.
    pub(crate) etag: String,
}

impl Meter {
    /// Whether its register can show this: with a sign only for some media, and no more digits than it has. Those of
    /// another unit than the meter's are not known.
    pub(crate) fn can_show(&self, value: f64, unit: &str) -> bool {
        let fits = unit != self.unit || value.abs() < 10_f64.powi(self.register_digits.into());
        fits && (value >= 0.0 || self.medium.may_be_negative())
    }

    /// Keeps only what a receiver needs to recognize meters.
    pub(crate) fn strip(&mut self) {
        (self.serial, self.place, self.street, self.note) = (None, None, None, None);
        (self.expected, self.last, self.state) = (None, None, MeterState::Ok);
    }
}

/// A new meter.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMeter {
    /// Name in addresses and topics; made from its radio address, or at random, if not given.
    pub(crate) id: Option<Name>,
    pub(crate) address: Option<RadioAddress>,
    pub(crate) serial: Option<Line>,
    pub(crate) manufacturer: Option<Line>,
    pub(crate) medium: Option<Medium>,
    pub(crate) place: Option<Place>,
    pub(crate) street: Option<Line>,
    pub(crate) unit: Option<Text<1, 16>>,
    /// Digits of its register before the decimal point.
    #[schema(minimum = 1, maximum = 12)]
    pub(crate) register_digits: Option<u8>,
    pub(crate) note: Option<Note>,
    /// The plausible range of its next value; the next reading clears it.
    pub(crate) expected: Option<Expected>,
}

/// Changes: omitted fields stay as they are, null clears.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeterChange {
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Line>)]
    pub(crate) serial: Option<Option<Line>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Line>)]
    pub(crate) manufacturer: Option<Option<Line>>,
    pub(crate) medium: Option<Medium>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Place>)]
    pub(crate) place: Option<Option<Place>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Line>)]
    pub(crate) street: Option<Option<Line>>,
    pub(crate) unit: Option<Text<1, 16>>,
    /// Digits of its register before the decimal point.
    #[schema(minimum = 1, maximum = 12)]
    pub(crate) register_digits: Option<u8>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Note>)]
    pub(crate) note: Option<Option<Note>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Expected>)]
    pub(crate) expected: Option<Option<Expected>>,
}

page_query! {
    /// Filter of meters.
    MeterQuery, 5000 {
        /// A part of the map: west,south,east,north in degrees.
        #[param(value_type = Option<String>, example = "9.9,53.5,10.1,53.6",
            pattern = r"^-?\d{1,3}(\.\d{1,15})?(,-?\d{1,3}(\.\d{1,15})?){3}$")]
        bbox: Bounds,
        /// A part of identifier, serial number, address or street.
        #[param(value_type = Option<String>, max_length = 200)]
        q: Line,
        /// Only those of which anything changed after this.
        changed_since: Time,
    }
}

/// A new exchange of a meter. The server sets the other members of an `Exchange`, and ignores them here.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct NewExchange {
    /// Chosen by the sender. An exchange that is sent again under the same id is stored once.
    pub(crate) id: Uuid,
    /// Readings before this time are of the old register, those at or after it of the new one.
    pub(crate) at: Time,
    /// The last value of the old register.
    #[serde(rename = "final")]
    pub(crate) last: Amount,
    /// The first value of the new register.
    pub(crate) first: Amount,
    /// The old meter's serial number: the meter's, unless given.
    pub(crate) old_serial: Option<Line>,
    /// The new meter's serial number. Of the newest exchange, it becomes the meter's.
    pub(crate) new_serial: Option<Line>,
    pub(crate) note: Option<Note>,
}

/// An exchange of a meter.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Exchange {
    #[serde(flatten)]
    pub(crate) new: NewExchange,
    pub(crate) entered_by: Name,
    pub(crate) entered_at: Time,
    /// The account that took it back; null if it counts.
    pub(crate) withdrawn_by: Option<Name>,
    pub(crate) withdrawn_at: Option<Time>,
}

/// Number of digits that registers have.
pub(crate) const REGISTER_DIGITS: std::ops::RangeInclusive<u8> = 1..=12;
/// Digits of most water meters' registers.
pub(crate) const USUAL_DIGITS: u8 = 8;

/// Where the next value is expected now, from use so far: from `first` at `since` to `last` at
/// `at`. Three times the use so far and a day's more is still plausible; of less than a day nothing
/// follows. Counted to the end of the day, so that the answer is the same all day.
pub(crate) fn expect(first: f64, since: Time, last: f64, at: Time, now: Time) -> Option<Expected> {
    let known_ms = at.ms_since(since);
    if known_ms < DAY_MS || last < first {
        return None;
    }
    let per_day = (last - first) / (known_ms as f64 / DAY_MS as f64);
    let end_of_day = (now.0.div_euclid(DAY_MS) + 1) * DAY_MS;
    let days = ((end_of_day - at.0) as f64 / DAY_MS as f64).max(0.0) + 1.0;
    let high = last + (3.0 * per_day * days).max(1.0);
    let rounded = |value: f64| Amount::new((value * 1000.0).round() / 1000.0);
    Some(Expected { low: rounded(last)?, high: rounded(high)? })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn radio_addresses_are_read_and_written() {
        for text in ["KAM-12345678-16-1b", "KAM-12345678"] {
            assert_eq!(text.parse::<RadioAddress>().unwrap().to_string(), text);
        }
        let lower = "kam-1234567a-16-1B".parse::<RadioAddress>().unwrap();
        assert_eq!(
            (lower.to_string(), lower.short()),
            ("KAM-1234567A-16-1b".into(), "KAM-1234567A".into())
        );
        for wrong in
            ["", "KAM", "KAM-1234567", "KAM-12345678-16", "KA1-12345678", "KAM-12345678-+1-1b"]
        {
            assert!(wrong.parse::<RadioAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_expected_follows_from_use() {
        let day = |n: i64| Time(n * DAY_MS);
        let expected = expect(100.0, day(0), 110.0, day(10), day(20)).unwrap();
        assert_eq!((*expected.low, *expected.high), (110.0, 110.0 + 3.0 * 12.0));
        assert_eq!(expect(100.0, day(0), 110.0, day(0), day(20)), None, "too short a time");
        assert_eq!(expect(100.0, day(0), 10.0, day(9), day(20)), None, "it was exchanged");
    }
}

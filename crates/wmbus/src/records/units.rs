//! What a record's value means (EN 13757-3, 6.4): the tables of value information fields, their two
//! extensions, and the fields that qualify them.
//!
//! Units are brought to one a quantity: m³, kWh, kW, m³/h, kg, °C, bar. Durations keep the unit the
//! meter sends, which is how people say them. What is not in the tables keeps its raw bytes and the
//! quantity `unknown`.

use std::borrow::Cow;

use super::header::RecordHeader;

/// Interpretation of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A number; binary ones with a sign.
    Number,
    /// A number without a sign.
    Unsigned,
    /// Flags, or what only the manufacturer can interpret: as a number without a sign, every code of which counts.
    Bits,
    /// Digits that stand for nothing but themselves, such as a serial number.
    Label,
    /// A date, a time or both.
    Moment,
    /// Several values in one record, equally spaced in time.
    Profile,
    /// Bytes that only the manufacturer can interpret.
    Opaque,
}

/// A value's quantity and unit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Meaning {
    pub(crate) quantity: &'static str,
    pub(crate) unit: Cow<'static, str>,
    pub(crate) kind: Kind,
    /// The data are multiplied by ten to this power ...
    pub(crate) exponent: i8,
    pub(crate) factor: f64,
    pub(crate) qualifiers: Vec<&'static str>,
}

/// Joules in a kilowatt hour: the factor is applied to the power of ten that was reached before.
const KWH_IN_MJ: f64 = 1.0 / 3.6;
const KWH_IN_MCAL: f64 = 1.163;
const M3_IN_CUBIC_FEET: f64 = 0.028_316_846_592;

const DURATIONS: [&str; 4] = ["s", "min", "h", "d"];
const LONG_DURATIONS: [&str; 4] = ["h", "d", "months", "years"];

impl Meaning {
    fn new(quantity: &'static str, unit: &'static str, exponent: i8) -> Self {
        Self {
            quantity,
            unit: Cow::Borrowed(unit),
            kind: Kind::Number,
            exponent,
            factor: 1.0,
            qualifiers: Vec::new(),
        }
    }

    fn without_unit(quantity: &'static str, kind: Kind) -> Self {
        Self { kind, ..Self::new(quantity, "", 0) }
    }

    fn times(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    fn unsigned(self) -> Self {
        Self { kind: Kind::Unsigned, ..self }
    }

    fn duration(quantity: &'static str, code: u8) -> Self {
        Self::new(quantity, DURATIONS[usize::from(code & 3)], 0).unsigned()
    }

    fn long_duration(quantity: &'static str, code: u8) -> Self {
        Self::new(quantity, LONG_DURATIONS[usize::from(code & 3)], 0).unsigned()
    }

    /// Returns the meaning that a header gives its data.
    pub(crate) fn of_header(header: &RecordHeader<'_>) -> Self {
        let mut extensions = header.extensions;
        let mut meaning = match header.vif {
            0xFB | 0xFD => {
                let Some((&code, rest)) = extensions.split_first() else {
                    return Self::without_unit("unknown", Kind::Number);
                };
                extensions = rest;
                if header.vif == 0xFB {
                    first_extension(code & 0x7F)
                } else {
                    main_extension(code & 0x7F)
                }
            }
            // Everything after it is manufacturer-specific.
            0x7F | 0xFF => return Self::without_unit("manufacturer specific", Kind::Bits),
            0x7C | 0xFC => {
                let text: String = header.text.iter().rev().map(|byte| char::from(*byte)).collect();
                Self { unit: Cow::Owned(text), ..Self::new("plain text unit", "", 0) }
            }
            vif => primary(vif & 0x7F),
        };
        meaning.qualify(extensions);
        meaning
    }

    /// Applies the fields behind the first (EN 13757-3, table 15).
    fn qualify(&mut self, extensions: &[u8]) {
        let mut codes = extensions.iter().map(|code| code & 0x7F);
        while let Some(code) = codes.next() {
            match code {
                0x7C => self.qualifiers.push(codes.next().map_or("reserved", second_level)),
                0x7F => {
                    self.qualifiers.push("manufacturer specific");
                    return;
                }
                0x70..=0x77 => self.exponent += code as i8 - 0x76,
                0x7D => self.exponent += 3,
                _ => self.combine(code),
            }
        }
    }

    fn combine(&mut self, code: u8) {
        match code {
            0x13 | 0x1E | 0x1F => self.kind = Kind::Profile,
            0x39 | 0x42 | 0x43 | 0x46 | 0x47 | 0x4A | 0x4B | 0x4E | 0x4F | 0x6A | 0x6B | 0x6E
            | 0x6F => {
                self.kind = Kind::Moment;
                self.unit = Cow::Borrowed("");
            }
            0x41 | 0x49 => {
                self.kind = Kind::Unsigned;
                (self.exponent, self.factor, self.unit) = (0, 1.0, Cow::Borrowed(""));
            }
            0x50..=0x67 => {
                self.kind = Kind::Unsigned;
                (self.exponent, self.factor) = (0, 1.0);
                self.unit = Cow::Borrowed(DURATIONS[usize::from(code & 3)]);
            }
            _ => {}
        }
        self.qualifiers.push(combinable(code));
    }
}

/// The primary table (EN 13757-3, table 10).
fn primary(code: u8) -> Meaning {
    let low = |bits: u8| (code & bits) as i8;
    match code {
        0x00..=0x07 => Meaning::new("energy", "kWh", low(7) - 6),
        0x08..=0x0F => Meaning::new("energy", "kWh", low(7) - 6).times(KWH_IN_MJ),
        0x10..=0x17 => Meaning::new("volume", "m³", low(7) - 6),
        0x18..=0x1F => Meaning::new("mass", "kg", low(7) - 3),
        0x20..=0x23 => Meaning::duration("on time", code),
        0x24..=0x27 => Meaning::duration("operating time", code),
        0x28..=0x2F => Meaning::new("power", "kW", low(7) - 6),
        0x30..=0x37 => Meaning::new("power", "kW", low(7) - 6).times(KWH_IN_MJ),
        0x38..=0x3F => Meaning::new("volume flow", "m³/h", low(7) - 6),
        0x40..=0x47 => Meaning::new("volume flow", "m³/h", low(7) - 7).times(60.0),
        0x48..=0x4F => Meaning::new("volume flow", "m³/h", low(7) - 9).times(3600.0),
        0x50..=0x57 => Meaning::new("mass flow", "kg/h", low(7) - 3),
        0x58..=0x5B => Meaning::new("flow temperature", "°C", low(3) - 3),
        0x5C..=0x5F => Meaning::new("return temperature", "°C", low(3) - 3),
        0x60..=0x63 => Meaning::new("temperature difference", "K", low(3) - 3),
        0x64..=0x67 => Meaning::new("external temperature", "°C", low(3) - 3),
        0x68..=0x6B => Meaning::new("pressure", "bar", low(3) - 3),
        0x6C => Meaning::without_unit("date", Kind::Moment),
        0x6D => Meaning::without_unit("date and time", Kind::Moment),
        0x6E => Meaning::new("heat cost allocation", "units", 0).unsigned(),
        0x70..=0x73 => Meaning::duration("averaging duration", code),
        0x74..=0x77 => Meaning::duration("actuality duration", code),
        0x78 => Meaning::without_unit("fabrication number", Kind::Label),
        0x79 => Meaning::without_unit("enhanced identification", Kind::Label),
        0x7A => Meaning::without_unit("bus address", Kind::Unsigned),
        0x7E => Meaning::without_unit("any", Kind::Number),
        _ => Meaning::without_unit("unknown", Kind::Number),
    }
}

/// The extension that 0xFB announces (EN 13757-3, table 14).
fn first_extension(code: u8) -> Meaning {
    let low = |bits: u8| (code & bits) as i8;
    match code {
        0x00 | 0x01 => Meaning::new("energy", "kWh", low(1) + 2),
        0x02 | 0x03 => Meaning::new("reactive energy", "kvarh", low(1)),
        0x04 | 0x05 => Meaning::new("apparent energy", "kVAh", low(1)),
        0x08 | 0x09 => Meaning::new("energy", "kWh", low(1) + 2).times(KWH_IN_MJ),
        0x0C..=0x0F => Meaning::new("energy", "kWh", low(3) - 1).times(KWH_IN_MCAL),
        0x10 | 0x11 => Meaning::new("volume", "m³", low(1) + 2),
        0x14..=0x17 => Meaning::new("reactive power", "kvar", low(3) - 3),
        0x18 | 0x19 => Meaning::new("mass", "kg", low(1) + 5),
        0x1A | 0x1B => Meaning::new("relative humidity", "%", low(1) - 1).unsigned(),
        0x20 => Meaning::new("volume", "m³", 0).times(M3_IN_CUBIC_FEET),
        0x21 => Meaning::new("volume", "m³", -1).times(M3_IN_CUBIC_FEET),
        0x28 | 0x29 => Meaning::new("power", "kW", low(1) + 2),
        0x2A => Meaning::new("phase between voltages", "°", -1),
        0x2B => Meaning::new("phase between voltage and current", "°", -1),
        0x2C..=0x2F => Meaning::new("frequency", "Hz", low(3) - 3),
        0x30 | 0x31 => Meaning::new("power", "kW", low(1) + 2).times(KWH_IN_MJ),
        0x34..=0x37 => Meaning::new("apparent power", "kVA", low(3) - 3),
        0x58..=0x5B => Meaning::new("flow temperature", "°F", low(3) - 3),
        0x5C..=0x5F => Meaning::new("return temperature", "°F", low(3) - 3),
        0x60..=0x63 => Meaning::new("temperature difference", "°F", low(3) - 3),
        0x64..=0x67 => Meaning::new("external temperature", "°F", low(3) - 3),
        0x68 => Meaning::new("rating factor K", "", 0).unsigned().times(1.0 / 4096.0),
        0x69 => Meaning::new("rating factor KQ", "W", 0).unsigned(),
        0x6A => Meaning::new("rating factor KC", "", 0).unsigned().times(1.0 / 4096.0),
        0x6B => Meaning::new("rating factor KT", "", 0).unsigned().times(1.0 / 4096.0),
        0x6C => Meaning::new("rating factor KF", "", 0).unsigned().times(1.0 / 4096.0),
        0x70..=0x73 => Meaning::new("temperature limit", "°F", low(3) - 3),
        0x74..=0x77 => Meaning::new("temperature limit", "°C", low(3) - 3),
        0x78..=0x7F => Meaning::new("cumulative maximum power", "kW", low(7) - 6),
        _ => Meaning::without_unit("unknown", Kind::Number),
    }
}

/// The extension that 0xFD announces (EN 13757-3, table 12).
fn main_extension(code: u8) -> Meaning {
    let low = |bits: u8| (code & bits) as i8;
    let label = |quantity| Meaning::without_unit(quantity, Kind::Label);
    let count = |quantity| Meaning::without_unit(quantity, Kind::Unsigned);
    let bits = |quantity| Meaning::without_unit(quantity, Kind::Bits);
    match code {
        0x00..=0x03 => Meaning::new("credit", "currency units", low(3) - 3),
        0x04..=0x07 => Meaning::new("debit", "currency units", low(3) - 3),
        0x08 => count("access number"),
        0x09 => count("device type"),
        0x0A => label("manufacturer"),
        0x0B => label("parameter set"),
        0x0C => label("model"),
        0x0D => label("hardware version"),
        0x0E => label("firmware version"),
        0x0F => label("software version"),
        0x10 => label("customer location"),
        0x11 => label("customer"),
        0x12..=0x15 => label("access code"),
        0x16 => label("password"),
        0x17 => bits("error flags"),
        0x18 => bits("error mask"),
        0x19 => label("security key"),
        0x1A => bits("digital output"),
        0x1B => bits("digital input"),
        0x1C => Meaning::new("baud rate", "baud", 0).unsigned(),
        0x1D => Meaning::new("response delay", "bit times", 0).unsigned(),
        0x1E => count("retry"),
        0x1F => bits("remote control"),
        0x20 => count("first storage number"),
        0x21 => count("last storage number"),
        0x22 => count("size of storage block"),
        0x23 => count("tariff and subunit descriptor"),
        0x24..=0x27 => Meaning::duration("storage interval", code),
        0x28 => Meaning::new("storage interval", "months", 0).unsigned(),
        0x29 => Meaning::new("storage interval", "years", 0).unsigned(),
        0x2A => label("operator specific data"),
        0x2B => Meaning::new("second of the time point", "s", 0).unsigned(),
        0x2C..=0x2F => Meaning::duration("time since last readout", code),
        0x30 => Meaning::without_unit("start of tariff", Kind::Moment),
        0x31..=0x33 => Meaning::duration("duration of tariff", code),
        0x34..=0x37 => Meaning::duration("period of tariff", code),
        0x38 => Meaning::new("period of tariff", "months", 0).unsigned(),
        0x39 => Meaning::new("period of tariff", "years", 0).unsigned(),
        0x3A => Meaning::new("dimensionless", "", 0),
        0x3B | 0x76 => Meaning::without_unit("data container", Kind::Opaque),
        0x3C..=0x3F => Meaning::duration("transmission period", code),
        0x40..=0x4F => Meaning::new("voltage", "V", low(0x0F) - 9),
        0x50..=0x5F => Meaning::new("current", "A", low(0x0F) - 12),
        0x60 => count("reset counter"),
        0x61 => count("cumulation counter"),
        0x62 => bits("control signal"),
        0x63 => count("day of week"),
        0x64 => count("week number"),
        0x65 => Meaning::without_unit("time of day change", Kind::Moment),
        0x66 => count("state of parameter activation"),
        0x67 => label("supplier information"),
        0x68..=0x6B => Meaning::long_duration("time since last cumulation", code),
        0x6C..=0x6F => Meaning::long_duration("battery operating time", code),
        0x70 => Meaning::without_unit("battery change", Kind::Moment),
        0x71 => Meaning::new("received level", "dBm", 0),
        0x72 => count("daylight saving"),
        0x73 => Meaning::without_unit("listening window", Kind::Opaque),
        0x74 => Meaning::new("remaining battery life", "d", 0).unsigned(),
        0x75 => count("times the meter was stopped"),
        _ => Meaning::without_unit("unknown", Kind::Number),
    }
}

/// Names of the fields that qualify a value; powers of ten are applied instead (EN 13757-3, tables 15
/// to 17).
fn combinable(code: u8) -> &'static str {
    match code {
        0x00..=0x0F => record_error(code),
        0x12 => "average",
        0x13 => "inverse compact profile",
        0x14 => "relative deviation",
        0x15 => "error: no data available",
        0x16 => "error: data overflow",
        0x17 => "error: data underflow",
        0x18 => "error: data error",
        0x1C => "error: premature end of record",
        0x1D => "standard conform",
        0x1E => "compact profile with register numbers",
        0x1F => "compact profile",
        0x20 => "per second",
        0x21 => "per minute",
        0x22 => "per hour",
        0x23 => "per day",
        0x24 => "per week",
        0x25 => "per month",
        0x26 => "per year",
        0x27 => "per revolution or measurement",
        0x28..=0x29 => "increment per input pulse",
        0x2A..=0x2B => "increment per output pulse",
        0x2C => "per litre",
        0x2D => "per m³",
        0x2E => "per kg",
        0x2F => "per K",
        0x30 => "per kWh",
        0x31 => "per GJ",
        0x32 => "per kW",
        0x33 => "per K and litre",
        0x34 => "per V",
        0x35 => "per A",
        0x36 => "times s",
        0x37 => "times s/V",
        0x38 => "times s/A",
        0x39 => "start",
        0x3A => "uncorrected unit",
        0x3B => "forward",
        0x3C => "backward",
        0x3D => "non-metric unit",
        0x3E => "at base conditions",
        0x3F => "OBIS declaration",
        0x40 => "lower limit",
        0x48 => "upper limit",
        0x41 => "times below lower limit",
        0x49 => "times above upper limit",
        0x42 => "begin of first time below lower limit",
        0x43 => "end of first time below lower limit",
        0x46 => "begin of last time below lower limit",
        0x47 => "end of last time below lower limit",
        0x4A => "begin of first time above upper limit",
        0x4B => "end of first time above upper limit",
        0x4E => "begin of last time above upper limit",
        0x4F => "end of last time above upper limit",
        0x50..=0x53 => "duration of first time below lower limit",
        0x54..=0x57 => "duration of last time below lower limit",
        0x58..=0x5B => "duration of first time above upper limit",
        0x5C..=0x5F => "duration of last time above upper limit",
        0x60..=0x63 => "duration of first",
        0x64..=0x67 => "duration of last",
        0x68 => "while below lower limit",
        0x69 => "leakage",
        0x6A => "begin of first",
        0x6B => "end of first",
        0x6C => "while above upper limit",
        0x6D => "overflow",
        0x6E => "begin of last",
        0x6F => "end of last",
        0x78..=0x7B => "additive correction",
        0x7E => "future value",
        _ => "reserved",
    }
}

/// Names of the errors of a record (EN 13757-3, table 18).
fn record_error(code: u8) -> &'static str {
    match code {
        0x00 => "no error",
        0x01 => "error: too many data extensions",
        0x02 => "error: storage number not implemented",
        0x03 => "error: subunit not implemented",
        0x04 => "error: tariff not implemented",
        0x05 => "error: function not implemented",
        0x06 => "error: data class not implemented",
        0x07 => "error: data size not implemented",
        0x0B => "error: too many value extensions",
        0x0C => "error: illegal value field",
        0x0D => "error: illegal exponent",
        0x0E => "error: value and data field do not fit",
        0x0F => "error: action not implemented",
        _ => "reserved",
    }
}

/// Names of the fields behind 0x7C among those that qualify.
const fn second_level(code: u8) -> &'static str {
    match code {
        0x01 => "phase L1",
        0x02 => "phase L2",
        0x03 => "phase L3",
        0x04 => "neutral",
        0x05 => "between L1 and L2",
        0x06 => "between L2 and L3",
        0x07 => "between L3 and L1",
        0x08 => "quadrant 1",
        0x09 => "quadrant 2",
        0x0A => "quadrant 3",
        0x0B => "quadrant 4",
        0x0C => "import less export",
        0x10 => "forward and backward",
        0x11 => "type C",
        0x12 => "type D",
        0x13 => "to the meter",
        0x14 => "from the meter",
        _ => "reserved",
    }
}

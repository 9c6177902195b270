//! A telegram as a line, for people or as JSON.

use std::fmt;
use std::io::Write;

use fulmar_command::terminal;
use fulmar_wmbus::{
    Address, Function, Protection, Reading, Received, Security, Sighting, Telegram,
};
use serde::Serialize;

/// Writes one line.
pub(super) fn write(
    out: &mut impl Write,
    json: bool,
    line: &(impl Serialize + fmt::Display),
) -> anyhow::Result<()> {
    if json {
        writeln!(out, "{}", terminal::json(serde_json::to_string(line)?))?;
    } else {
        // Units and texts are the radio's.
        writeln!(out, "{}", terminal::printable_lines(&line.to_string()))?;
    }
    Ok(())
}

/// The received meter, and how it was received.
#[derive(Serialize)]
struct Reception<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a str>,
    meter: String,
    manufacturer: String,
    version: u8,
    medium: &'static str,
    medium_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rssi_dbm: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rssi_raw: Option<u16>,
}

impl<'a> Reception<'a> {
    fn new(
        meter: Address,
        time: &'a Option<String>,
        mode: &'a Option<String>,
        rssi_dbm: Option<f32>,
        rssi_raw: Option<u16>,
    ) -> Self {
        Self {
            time: time.as_deref(),
            meter: meter.id.to_string(),
            manufacturer: meter.manufacturer.to_string(),
            version: meter.version,
            medium: meter.medium.name(),
            medium_code: meter.medium.0,
            mode: mode.as_deref(),
            rssi_dbm,
            rssi_raw,
        }
    }
}

impl fmt::Display for Reception<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(time) = self.time {
            write!(f, "{time} ")?;
        }
        write!(f, "{} {} {}", self.manufacturer, self.meter, self.medium)?;
        match self.rssi_dbm {
            Some(dbm) => write!(f, " {dbm} dBm"),
            None => Ok(()),
        }
    }
}

/// A decoded telegram.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    #[serde(flatten)]
    heard: Reception<'a>,
    security: Security,
    authenticated: bool,
    protection: Protection,
    /// Whether it should have been protected, because there is a key.
    #[serde(skip)]
    is_doubtful: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_byte: Option<u8>,
    readings: &'a [Reading],
    #[serde(skip_serializing_if = "Option::is_none")]
    manufacturer_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl<'a> Line<'a> {
    pub(super) fn new(received: &'a Received, telegram: &'a Telegram, has_key: bool) -> Self {
        let records = &telegram.records;
        let raw = records.manufacturer.iter().map(|byte| format!("{byte:02X}")).collect::<String>();
        let Received { time, mode, rssi_dbm, rssi_raw, .. } = received;
        Self {
            heard: Reception::new(telegram.meter, time, mode, *rssi_dbm, *rssi_raw),
            security: telegram.security,
            authenticated: telegram.protection == Protection::Authenticated,
            protection: telegram.protection,
            is_doubtful: has_key && telegram.protection == Protection::Unauthenticated,
            access: telegram.access,
            status: telegram.status.map(|status| status.to_string()),
            status_byte: telegram.status.map(fulmar_wmbus::Status::byte),
            readings: &records.readings,
            manufacturer_data: (!raw.is_empty()).then_some(raw),
            problem: records
                .problem
                .as_ref()
                .map(|problem| format!("a part could not be read: {problem}")),
        }
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.heard)?;
        let mut between = " ";
        for reading in self.readings {
            f.write_str(between)?;
            write_reading(f, reading, self.protection)?;
            between = "; ";
        }
        if let Some(raw) = &self.manufacturer_data {
            write!(f, "{between}maker's data {raw}")?;
            between = "; ";
        }
        if let Some(status) = self.status.as_ref().filter(|status| *status != "ok") {
            write!(f, "{between}status: {status}")?;
            between = "; ";
        }
        if self.is_doubtful {
            write!(f, "{between}unauthenticated: not encrypted, although there is a key")?;
            between = "; ";
        }
        self.problem.as_ref().map_or(Ok(()), |problem| write!(f, "{between}{problem}"))
    }
}

/// `volume 2.5 m³`, and in brackets what makes it another volume than the one of now.
fn write_reading(
    f: &mut fmt::Formatter<'_>,
    reading: &Reading,
    telegram: Protection,
) -> fmt::Result {
    write!(f, "{} {}", reading.quantity, reading.value)?;
    if !reading.unit.is_empty() {
        write!(f, " {}", reading.unit)?;
    }
    let mut notes: Vec<String> = Vec::new();
    match reading.function {
        Function::Instantaneous => {}
        Function::Maximum => notes.push("maximum".into()),
        Function::Minimum => notes.push("minimum".into()),
        Function::Error => notes.push("at error".into()),
    }
    for (name, number) in [
        ("storage", reading.storage),
        ("tariff", u64::from(reading.tariff)),
        ("subunit", u64::from(reading.subunit)),
    ] {
        if number != 0 {
            notes.push(format!("{name} {number}"));
        }
    }
    notes.extend(reading.qualifiers.iter().map(|&qualifier| qualifier.to_owned()));
    if reading.protection < telegram {
        notes.push("unauthenticated: behind the encrypted part".to_owned());
    }
    if notes.is_empty() { Ok(()) } else { write!(f, " ({})", notes.join(", ")) }
}

/// Frame that could not be decoded, and the reason.
#[derive(Serialize)]
pub(super) struct Failure<'a> {
    #[serde(flatten)]
    heard: Option<Reception<'a>>,
    error: &'static str,
    message: String,
}

impl<'a> Failure<'a> {
    pub(super) fn new(
        sighting: Option<&'a Sighting>,
        code: &'static str,
        error: &dyn fmt::Display,
    ) -> Self {
        let heard = sighting.map(|sighting| {
            let Sighting { meter, time, mode, rssi_dbm, rssi_raw, .. } = sighting;
            Reception::new(*meter, time, mode, *rssi_dbm, *rssi_raw)
        });
        Self { heard, error: code, message: error.to_string() }
    }
}

impl fmt::Display for Failure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.heard {
            Some(heard) => write!(f, "{heard}: ")?,
            None => f.write_str("? ")?,
        }
        write!(f, "error ({}): {}", self.error, self.message)
    }
}

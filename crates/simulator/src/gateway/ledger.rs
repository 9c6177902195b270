//! The readings, and what is promised about each.

use std::collections::BTreeMap;

use fulmar_mqtt::QoS;

use super::stored::Stored;

/// Quantities that devices measure; the gateway sends the first ahead of the others.
pub(crate) const QUANTITIES: [&str; 3] = ["co", "radon", "temperature"];

/// A reading from its device's view. Its value is its number.
#[derive(Debug)]
struct Reading {
    device: usize,
    quantity: usize,
    qos: QoS,
    acknowledged: bool,
    /// Or given up.
    refused: bool,
}

/// All readings.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    readings: Vec<Reading>,
    /// The newest reading of a topic and quality of service that has reached the platform, and all that have.
    newest: BTreeMap<(usize, usize, QoS), usize>,
    arrived: Vec<bool>,
}

/// A device's name.
pub(crate) fn device_name(device: usize) -> String {
    format!("probe-{device}")
}

impl Ledger {
    /// A device sends a new reading; its number.
    pub(crate) fn send(&mut self, device: usize, quantity: usize, qos: QoS) -> usize {
        self.readings.push(Reading { device, quantity, qos, acknowledged: false, refused: false });
        self.arrived.push(false);
        self.readings.len() - 1
    }

    /// The device is done with the reading; nobody acknowledges one at QoS 0.
    pub(crate) fn done(&mut self, number: usize) {
        let reading = &mut self.readings[number];
        reading.acknowledged = reading.qos > QoS::AtMostOnce;
    }

    /// The device saw the reading refused, and gives it up.
    pub(crate) fn refused(&mut self, number: usize) {
        self.readings[number].refused = true;
    }

    /// The device forgets the readings that were not acknowledged.
    pub(crate) fn forget(&mut self, device: usize) {
        let own = self.readings.iter_mut().filter(|reading| reading.device == device);
        own.filter(|reading| !reading.acknowledged).for_each(|reading| reading.refused = true);
    }

    pub(crate) fn len(&self) -> usize {
        self.readings.len()
    }

    /// A message reaches the platform. Whatever crashes, the readings of a topic first arrive in the order in which
    /// they were sent, as far as brokers keep it: for each quality of service ([MQTT-4.6.0-6]), and if `ordered`.
    pub(crate) fn arrive(
        &mut self,
        topic: &str,
        payload: &[u8],
        ordered: bool,
    ) -> Result<(), String> {
        let number = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        let known = number.and_then(|number: usize| Some((number, self.readings.get(number)?)));
        let Some((number, reading)) = known else {
            return Err(format!("{topic} has {:?}", String::from_utf8_lossy(payload)));
        };
        let device = device_name(reading.device);
        let sent_to = format!("fulmar/rural/sensor/{device}/{}", QUANTITIES[reading.quantity]);
        if topic != sent_to {
            return Err(format!("reading {number} of {sent_to} arrives on {topic}"));
        }
        if std::mem::replace(&mut self.arrived[number], true) || reading.qos == QoS::AtMostOnce {
            return Ok(());
        }
        let newest = self.newest.insert((reading.device, reading.quantity, reading.qos), number);
        match newest.filter(|newest| ordered && *newest > number) {
            Some(newest) => Err(format!("reading {number} arrives after reading {newest}")),
            None => Ok(()),
        }
    }

    /// At rest: each acknowledged reading is stored once, any other at most once, and nothing else is. If not
    /// `only_once`, each may be stored again.
    pub(crate) fn check(&self, stored: &Stored, only_once: bool) -> Result<(), String> {
        let mut stored = stored.clone();
        for (number, reading) in self.readings.iter().enumerate() {
            let quantity = QUANTITIES[reading.quantity].to_owned();
            let key = (device_name(reading.device), quantity, number as u64);
            let times = stored.remove(&key).unwrap_or(0);
            if reading.acknowledged && times == 0 {
                return Err(format!("reading {number} is lost: {reading:?}"));
            }
            if times > 1 && only_once {
                return Err(format!("reading {number} is stored {times} times: {reading:?}"));
            }
        }
        match stored.first_key_value() {
            Some((what, times)) => Err(format!("nobody sent {what:?}, stored {times} times")),
            None => Ok(()),
        }
    }

    /// Whether every reading that is repeated until it is acknowledged is.
    pub(crate) fn check_acknowledged(&self) -> Result<(), String> {
        let mut waiting = self.readings.iter().enumerate();
        let done = |reading: &Reading| reading.acknowledged || reading.refused;
        match waiting.find(|(_, reading)| !done(reading) && reading.qos > QoS::AtMostOnce) {
            Some((number, reading)) => {
                Err(format!("reading {number} is not acknowledged: {reading:?}"))
            }
            None => Ok(()),
        }
    }
}

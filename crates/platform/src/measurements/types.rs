//! What a measurement is to the platform.

use crate::values::*;
use std::str::FromStr;

/// Maximum length of a quantity in letters.
const MAX_QUANTITY: usize = 32;

/// Quantity that is measured: a word such as `radon` or `co2`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub(crate) struct Quantity(String);

impl FromStr for Quantity {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Quantity, Self::Err> {
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if (1..=MAX_QUANTITY).contains(&text.len()) && text.bytes().all(good) {
            Ok(Quantity(text.to_owned()))
        } else {
            Err("a quantity must have 1 to 32 letters of a-z, 0-9 and _")
        }
    }
}

checked_text!(Quantity, "^[a-z0-9_]{1,32}$");

/// Measurement of a sensor.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMeasurement {
    pub(crate) device: Name,
    pub(crate) quantity: Quantity,
    /// When it was measured.
    pub(crate) at: Time,
    pub(crate) value: Amount,
    /// The quantity's usual unit, if there is none.
    pub(crate) unit: Option<Text<0, 16>>,
    /// Says that what comes again under it is the same; without one, the same value of the same moment is.
    pub(crate) id: Option<Text<1, 160>>,
}

/// The result for a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MeasurementStatus {
    /// It is stored.
    Stored,
    /// It was stored before.
    Duplicate,
    /// It cannot be taken.
    Rejected,
}

/// The result for a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct MeasurementResult {
    pub(crate) status: MeasurementStatus,
    /// Why it was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
}

impl MeasurementResult {
    pub(crate) fn duplicate() -> MeasurementResult {
        MeasurementResult { status: MeasurementStatus::Duplicate, detail: None }
    }

    pub(crate) fn rejected(detail: impl Into<String>) -> MeasurementResult {
        MeasurementResult { status: MeasurementStatus::Rejected, detail: Some(detail.into()) }
    }
}

/// A stored measurement, for those who listen.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LiveValue {
    pub(crate) device: Name,
    pub(crate) home: Option<Name>,
    pub(crate) quantity: Quantity,
    pub(crate) value: f64,
    pub(crate) unit: String,
    pub(crate) at: Time,
}

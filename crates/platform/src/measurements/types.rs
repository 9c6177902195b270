//! What a measurement is to the platform.

use std::fmt;
use std::ops::Deref;

use crate::store::sql::{FromSql, Mismatch, ToSql, Value};
use serde::{Deserialize, Deserializer, Serialize, de};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::number::Amount;
use crate::text::{Name, Text};
use crate::time::Time;

/// Maximum length of a quantity in letters.
const MAX_QUANTITY: usize = 32;

/// What is measured: a word such as `radon` or `co2`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub(crate) struct Quantity(String);

impl Quantity {
    /// The quantity of this name.
    pub(crate) fn new(text: &str) -> Result<Quantity, &'static str> {
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if (1..=MAX_QUANTITY).contains(&text.len()) && text.bytes().all(good) {
            Ok(Quantity(text.to_owned()))
        } else {
            Err("a quantity must have 1 to 32 letters of a-z, 0-9 and _")
        }
    }
}

impl Deref for Quantity {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Quantity, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        Quantity::new(&text).map_err(de::Error::custom)
    }
}

impl PartialSchema for Quantity {
    fn schema() -> RefOr<Schema> {
        let pattern = Some("^[a-z0-9_]{1,32}$");
        ObjectBuilder::new().schema_type(Type::String).pattern(pattern).into()
    }
}

impl ToSchema for Quantity {}

impl ToSql for Quantity {
    fn to_sql(&self) -> Value<'_> {
        self.0.to_sql()
    }
}

impl FromSql for Quantity {
    /// What is in the database was checked when it came.
    fn from_sql(value: Value<'_>) -> Result<Quantity, Mismatch> {
        String::from_sql(value).map(Quantity)
    }
}

/// What a sensor measured.
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

//! Numbers within bounds, and places made of them.

use std::borrow::Cow;
use std::ops::Deref;

use crate::store::sql::stored_as;
use serde::{Deserialize, Deserializer, Serialize, de};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// A number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub(crate) struct Bounded<const MIN: i64, const MAX: i64>(f64);

/// Value of a register, in its unit.
pub(crate) type Amount = Bounded<-1_000_000_000_000, 1_000_000_000_000>;
/// Received power, dBm.
pub(crate) type Rssi = Bounded<-200, 100>;

impl<const MIN: i64, const MAX: i64> Bounded<MIN, MAX> {
    /// The number, if it is within the bounds.
    pub(crate) fn new(number: f64) -> Option<Self> {
        (number >= MIN as f64 && number <= MAX as f64).then_some(Bounded(number))
    }
}

impl<const MIN: i64, const MAX: i64> Deref for Bounded<MIN, MAX> {
    type Target = f64;

    fn deref(&self) -> &f64 {
        &self.0
    }
}

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Bounded<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let wrong = || de::Error::custom(format!("expected a number from {MIN} to {MAX}"));
        Bounded::new(f64::deserialize(from)?).ok_or_else(wrong)
    }
}

impl<const MIN: i64, const MAX: i64> PartialSchema for Bounded<MIN, MAX> {
    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new().schema_type(Type::Number);
        number.minimum(Some(MIN as f64)).maximum(Some(MAX as f64)).into()
    }
}

impl<const MIN: i64, const MAX: i64> ToSchema for Bounded<MIN, MAX> {
    // Each has its own bounds, so that the document must not take them for one.
    fn name() -> Cow<'static, str> {
        format!("Number_{MIN}_to_{MAX}").into()
    }
}

stored_as!(f64: impl<const MIN: i64, const MAX: i64> Bounded<MIN, MAX>);

/// A position in degrees (WGS 84).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Place {
    /// Degrees north.
    #[schema(value_type = f64, minimum = -90, maximum = 90)]
    pub(crate) lat: Bounded<-90, 90>,
    /// Degrees east.
    #[schema(value_type = f64, minimum = -180, maximum = 180)]
    pub(crate) lon: Bounded<-180, 180>,
}

impl Place {
    /// The position as two columns.
    pub(crate) fn columns(place: Option<Place>) -> (Option<f64>, Option<f64>) {
        (place.map(|place| *place.lat), place.map(|place| *place.lon))
    }
}

/// An area of the map, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) west: f64,
    pub(crate) south: f64,
    pub(crate) east: f64,
    pub(crate) north: f64,
}

impl<'de> Deserialize<'de> for Bounds {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bounds, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        let numbers: Option<Vec<f64>> = text.split(',').map(|part| part.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[west, south, east, north])
                if [west, south, east, north].iter().all(|n| n.is_finite()) =>
            {
                Ok(Bounds { west, south, east, north })
            }
            _ => Err(de::Error::custom("expected west,south,east,north in degrees")),
        }
    }
}

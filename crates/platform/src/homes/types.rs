//! What a home is to the platform.

use crate::alerts::Severity;
use crate::measurements::Quantity;
use crate::values::*;

/// Time for which a sensor of which nothing is known may be quiet.
const USUAL_SILENCE_MS: i64 = 15 * 60 * SECOND_MS;
/// The number of usual intervals without a measurement before a sensor counts as silent.
const MISSED_BEFORE_SILENT: i64 = 3;

/// Time for which a sensor may be quiet before something is wrong.
pub(crate) fn silent_after_ms(expected_every_s: Option<u32>) -> i64 {
    let missed = |every: u32| i64::from(every) * SECOND_MS * MISSED_BEFORE_SILENT;
    expected_every_s.map_or(USUAL_SILENCE_MS, missed)
}

/// Whether a sensor with this last measurement is silent.
pub(crate) fn is_silent(last_at: Time, expected_every_s: Option<u32>, now: Time) -> bool {
    now.ms_since(last_at) > silent_after_ms(expected_every_s)
}

/// Last value of a sensor.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct LastValue {
    pub(crate) device: Name,
    pub(crate) quantity: Quantity,
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// When it was measured.
    pub(crate) at: Time,
    /// Whether there should have been a newer one by now.
    pub(crate) stale: bool,
}

/// Worst fault in a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Worst {
    /// No alert is raised.
    Ok,
    /// Worth knowing.
    Info,
    /// Something is to be done.
    Warning,
    /// Something is to be done now.
    Critical,
}

impl From<Option<Severity>> for Worst {
    fn from(severity: Option<Severity>) -> Worst {
        match severity {
            None => Worst::Ok,
            Some(Severity::Info) => Worst::Info,
            Some(Severity::Warning) => Worst::Warning,
            Some(Severity::Critical) => Worst::Critical,
        }
    }
}

/// A place with sensors.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Home {
    pub(crate) id: Name,
    pub(crate) name: String,
    pub(crate) place: Option<Place>,
    pub(crate) street: Option<String>,
    pub(crate) note: Option<String>,
    /// The gateway its sensors speak through.
    pub(crate) gateway: Option<Name>,
    /// Number of its sensor units.
    pub(crate) devices: u64,
    /// Their last measurements, by device and quantity.
    pub(crate) values: Vec<LastValue>,
    /// The worst of its raised alerts.
    pub(crate) worst: Worst,
    /// Number of raised alerts, acknowledged ones too.
    pub(crate) alerts: u64,
    /// ETag of the home without its values, for `If-Match`.
    pub(crate) etag: String,
}

/// A new home.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewHome {
    /// Made up, if there is none.
    pub(crate) id: Option<Name>,
    pub(crate) name: Title,
    pub(crate) place: Option<Place>,
    pub(crate) street: Option<Line>,
    pub(crate) note: Option<Note>,
    pub(crate) gateway: Option<Name>,
}

/// Changes: omitted fields stay as they are, null clears.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HomeChange {
    pub(crate) name: Option<Title>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Place>)]
    pub(crate) place: Option<Option<Place>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Line>)]
    pub(crate) street: Option<Option<Line>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Note>)]
    pub(crate) note: Option<Option<Note>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Name>)]
    pub(crate) gateway: Option<Option<Name>>,
}

page_query! {
    /// Filter of homes.
    HomeQuery, 1000 {
        /// A part of the map: west,south,east,north in degrees.
        #[param(value_type = Option<String>, example = "9.9,53.5,10.1,53.6",
            pattern = r"^-?\d{1,3}(\.\d{1,15})?(,-?\d{1,3}(\.\d{1,15})?){3}$")]
        bbox: Bounds,
        /// A part of identifier, name or street.
        #[param(value_type = Option<String>, max_length = 200)]
        q: Line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sensor_is_silent_after_three_missed_intervals() {
        let measured = Time(0);
        let cases =
            [(Some(60), 180, false), (Some(60), 181, true), (None, 900, false), (None, 901, true)];
        for (every, seconds, silent) in cases {
            assert_eq!(is_silent(measured, every, Time(seconds * 1000)), silent, "{every:?}");
        }
    }
}

//! What a twin is, and which names one may have.

use crate::values::*;

/// Names that are the server's own addresses.
const RESERVED: &str = "api assets mqtt health metrics connections static icons fonts docs login logout app map office well-known";

words! {
    /// Subject of a twin.
    TwinKind {
        /// A utility's meters.
        Meters = "meters",
        /// Homes with sensors.
        Homes = "homes",
    }
}

/// An installation.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Twin {
    pub(crate) id: Name,
    pub(crate) name: String,
    pub(crate) kind: TwinKind,
    /// The centre of a new map: the configured place, or the middle of its meters or homes.
    pub(crate) centre: Option<Place>,
    /// Number of its meters.
    pub(crate) meters: u64,
    /// Number of its work lists.
    pub(crate) work_lists: u64,
    /// Number of its homes.
    pub(crate) homes: u64,
}

/// A new twin.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTwin {
    pub(super) id: Name,
    pub(super) name: Title,
    /// Subject; the default is meters.
    pub(super) kind: Option<TwinKind>,
    pub(super) centre: Option<Place>,
}

/// Why the name cannot be a twin's.
pub(crate) fn check_name(id: &Name) -> Result<()> {
    let lower = id.to_ascii_lowercase();
    if lower.contains(['.', '@']) || RESERVED.split(' ').any(|name| name == lower) {
        let detail =
            "the server uses this name itself; a twin's name must not contain . or @ either";
        return Err(Problem::invalid("id", detail));
    }
    Ok(())
}

//! The town: its streets, and its meters in the format of the platform's import.
//!
//! Places, addresses, keys and counts come from the simulated drive, so that what the van receives is of the
//! meters that the platform knows. Some have no radio and are read by hand.

use fulmar_wmbus::simulate::{Drive, Installed};
use serde_json::{Value, json};

/// The utility.
pub(super) const NAME: &str = "Gullhaven Water";
/// The twin's identifier.
pub(super) const TWIN: &str = "gullhaven";

/// One in this many meters has no radio.
const WITHOUT_RADIO: usize = 20;

const STREETS: [&str; 24] = [
    "Kittiwake Road",
    "Petrel Lane",
    "Guillemot Street",
    "Razorbill Row",
    "Puffin Square",
    "Shearwater Avenue",
    "Gannet Hill",
    "Skua Street",
    "Tern Terrace",
    "Eider Way",
    "Cormorant Street",
    "Harbour Row",
    "Lighthouse Road",
    "Ropewalk",
    "Sailmaker Street",
    "Anchor Lane",
    "Tide Street",
    "Kelp Lane",
    "Driftwood Road",
    "Beacon Hill",
    "Pilot Street",
    "Net Yard",
    "Chandler Street",
    "Old Quay",
];

/// A meter, and how it is read.
#[derive(Clone, Debug)]
pub(super) struct TownMeter {
    pub(super) installed: Installed,
    pub(super) radio: bool,
}

/// A town that follows from two numbers.
pub(super) struct Town {
    pub(super) meters: Vec<TownMeter>,
    drive: (u32, u64),
}

impl Town {
    pub(super) fn new(meters: u32, seed: u64) -> Town {
        let drive = (meters, seed);
        let simulated = Drive::new(meters, seed).beginning(now_s());
        let meters = simulated
            .installed()
            .enumerate()
            .map(|(number, installed)| TownMeter {
                installed,
                radio: number % WITHOUT_RADIO != WITHOUT_RADIO - 1,
            })
            .collect();
        Town { meters, drive }
    }

    /// Returns the number of meters and the seed with which the town was made.
    pub(super) fn made_with(&self) -> (u32, u64) {
        self.drive
    }

    /// A van's drive that begins now and does not end.
    pub(super) fn drive(&self) -> Drive {
        Drive::new(self.drive.0, self.drive.1).beginning(now_s()).endless()
    }
}

/// Seconds since 2000 in UTC, which the meters' clocks show.
fn now_s() -> u64 {
    const EPOCH_2000_S: u64 = 946_684_800;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs().saturating_sub(EPOCH_2000_S)
}

impl TownMeter {
    /// Identifier of the meter in the platform.
    pub(super) fn id(&self) -> String {
        format!("{}-{}", self.installed.address.manufacturer, self.installed.address.id)
    }

    /// Returns the meter as JSON for the platform.
    pub(super) fn as_json(&self) -> Value {
        let Installed { address, place, street, house, .. } = &self.installed;
        let model = format!("{:02x}-{:02x}", address.version, address.medium.0);
        let radio = format!("{}-{}-{model}", address.manufacturer, address.id);
        let street = STREETS[*street as usize % STREETS.len()];
        json!({
            "id": self.id(),
            "address": self.radio.then_some(radio),
            "serial": address.id.to_string(),
            "manufacturer": address.manufacturer.to_string(),
            "medium": if address.medium.0 == 0x06 { "warm_water" } else { "water" },
            "place": { "lat": place.latitude, "lon": place.longitude },
            "street": format!("{street} {house}"),
            "unit": "m3",
            "register_digits": 8,
            "note": (!self.radio).then_some("In the cellar; no radio"),
        })
    }
}

//! What members of a twin may do.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Role of a member of a twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Everything, users and meters' keys included.
    Admin,
    /// Meters, work lists, homes, reports and commands.
    Office,
    /// Own and unassigned work lists, meters; sends readings, photos, frames and telemetry.
    Reader,
    /// A receiver or gateway: sends frames, measurements and its own telemetry, takes its own commands.
    Device,
    /// Looks only.
    Viewer,
}

/// Action of a request, as far as roles go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Looks at meters' names and radio addresses, and at its own devices.
    Look,
    /// Looks at all of meters, where they are and whose included, and at work lists.
    LookAtWork,
    /// Looks at readings.
    LookAtReadings,
    /// Looks at reports and exports: what customers used, over time and all together.
    Report,
    /// Sends readings and photos, and works on work lists.
    Read,
    /// Sends frames.
    Receive,
    /// Sends what sensors measured.
    Measure,
    /// Sends telemetry as a device, and receives commands.
    BeDevice,
    /// Changes meters and work lists, gives commands.
    Manage,
    /// Users and keys.
    Administer,
}

fulmar_text::names!(
    Role:
    Admin = "admin",
    Office = "office",
    Reader = "reader",
    Device = "device",
    Viewer = "viewer",
);

impl Role {
    /// Whether the role may do this.
    pub(crate) fn may(self, deed: Deed) -> bool {
        match deed {
            Deed::Look => true,
            Deed::LookAtWork | Deed::LookAtReadings => self != Role::Device,
            Deed::Report => matches!(self, Role::Admin | Role::Office | Role::Viewer),
            Deed::Read => matches!(self, Role::Admin | Role::Office | Role::Reader),
            Deed::Measure => matches!(self, Role::Admin | Role::Office | Role::Device),
            Deed::Receive | Deed::BeDevice => self != Role::Viewer,
            Deed::Manage => matches!(self, Role::Admin | Role::Office),
            Deed::Administer => self == Role::Admin,
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Role, String> {
        let role = Role::ALL.into_iter().find(|role| role.name() == text);
        role.ok_or_else(|| "a role must be admin, office, reader, device or viewer".to_owned())
    }
}

//! Plays schedules, one seed after another: `make simulate READINGS=1`. `fulmar_simulator::campaign` documents the
//! environment variables.

use std::process::ExitCode;

use fulmar_gatewaysim::{Scenery, play};
use fulmar_simulator::campaign;

fn main() -> ExitCode {
    let scenery = Scenery::new();
    campaign(|schedule| play(schedule, &scenery))
}

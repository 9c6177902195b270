//! Plays schedules over the real store on a bad disk, one seed after another: `make simulate STORE=1`.
//! `fulmar_simulator::campaign` documents the environment variables.

use std::process::ExitCode;

use fulmar_baddisk::RealVolume;
use fulmar_simulator::{Schedule, campaign, play_on};

fn main() -> ExitCode {
    let blank = RealVolume::blank();
    campaign(|schedule: &Schedule| {
        play_on(schedule, || RealVolume::start(schedule.seed, Some(&blank)))
    })
}

//! Plays schedules over the real store on a bad disk, one seed after the other: `make simulate STORE=1`.
//! `fulmar_simulator::campaign` says what the environment decides on.

use std::process::ExitCode;

use fulmar_baddisk::RealVolume;
use fulmar_simulator::{campaign, play_on};

fn main() -> ExitCode {
    let blank = RealVolume::blank();
    campaign(|schedule| play_on(schedule, || RealVolume::start(schedule.seed, Some(&blank))))
}

//! Plays schedules, one seed after another: `make simulate CLUSTER=1`. `fulmar_simulator::campaign` documents the
//! environment variables; `MISTAKE` (TwoInFlight, NoLease, WallLease, NoChain, EndsAtStrangers or PassesDamage) puts a mistake into the nodes.

use std::process::ExitCode;

use fulmar_clustersim::{Mistake, play};
use fulmar_simulator::campaign;

fn main() -> ExitCode {
    let mistake = match std::env::var("MISTAKE").as_deref() {
        Ok("TwoInFlight") => Mistake::TwoInFlight,
        Ok("NoLease") => Mistake::NoLease,
        Ok("WallLease") => Mistake::WallLease,
        Ok("NoChain") => Mistake::NoChain,
        Ok("EndsAtStrangers") => Mistake::EndsAtStrangers,
        Ok("PassesDamage") => Mistake::PassesDamage,
        _ => Mistake::None,
    };
    campaign(|schedule| play(schedule, mistake))
}

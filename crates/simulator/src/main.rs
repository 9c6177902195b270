//! Plays schedules of a world, one seed after another: `fulmar-simulator WORLD`. [`fulmar_simulator::campaign`] documents
//! the environment variables; `MISTAKE` puts a mistake into the nodes of a cluster, by its name in [`Mistake`].

use std::process::ExitCode;

use fulmar_simulator::bad_disk::StoreVolume;
use fulmar_simulator::cluster::Mistake;
use fulmar_simulator::gateway::Scenery;
use fulmar_simulator::{broker, campaign, cluster, gateway};

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("broker") => campaign(broker::play),
        Some("store") => {
            let blank = StoreVolume::blank();
            campaign(|schedule: &broker::Schedule| {
                broker::play_on(schedule, || StoreVolume::start(schedule.seed, Some(&blank)))
            })
        }
        Some("gateway") => {
            let scenery = Scenery::default();
            campaign(|schedule| gateway::play(schedule, &scenery))
        }
        Some("cluster") => {
            let name = std::env::var("MISTAKE").unwrap_or_default();
            let mistake = Mistake::ALL.into_iter().find(|mistake| format!("{mistake:?}") == name);
            campaign(|schedule| cluster::play(schedule, mistake))
        }
        _ => {
            eprintln!("usage: fulmar-simulator broker|store|gateway|cluster");
            ExitCode::from(2)
        }
    }
}

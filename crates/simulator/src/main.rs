//! Plays schedules over the simulated storage, one seed after the other: see `campaign`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fulmar_simulator::campaign(fulmar_simulator::play)
}

//! The one way to make a broker for an end-to-end test: [`TestBroker::start`].
//!
//! It runs the real program, as a process of its own, on ports the system chooses and with a data
//! folder that goes with it. What a test says to it, it says over the network or by signals;
//! nothing of the broker's code is linked here. Clients are the tests' own affair.
#![allow(clippy::unwrap_used)]

mod binary;
mod broker;
mod clock;
mod log;
mod page;
mod ports;
mod relay;
mod wire;

use std::time::{Duration, Instant};

pub use binary::{fulmar, good, run, run_within};
pub use broker::{Builder, TestBroker, http_get, shrink_pipe};
pub use clock::TestClock;
pub use log::Log;
pub use page::{Host, Program, blocks};
pub use ports::{default_listeners, names_a_default_port};
pub use relay::Relay;
pub use wire::{Wire, connect, field, packet};

/// Longest time to wait for anything that must happen; far above what a busy machine needs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Writes a file with a secret, for its owner alone.
///
/// # Panics
/// The system refuses.
pub fn write_secret(path: impl AsRef<std::path::Path>, contents: impl AsRef<[u8]>) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(&path, contents).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Looks again and again until `done`.
///
/// # Panics
/// It is not done within [`PATIENCE`]; names `what`.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited too long for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! A server with a consumer that appends every message of `plant/#` to a file: what it has acknowledged is in the file,
//! also after a crash.
//!
//!     cargo run --package fulmar-server --example consumer -- measurements.txt

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write as _;

use fulmar_server::{Config, Consumer, Message, Server};

pub(crate) struct FileConsumer(pub(crate) File);

impl Consumer for FileConsumer {
    fn name(&self) -> &str {
        "file"
    }

    fn filters(&self) -> Vec<String> {
        vec!["plant/#".to_owned()]
    }

    fn consume(&mut self, batch: &[Message]) -> Result<(), Box<dyn Error + Send + Sync>> {
        for Message { topic, payload, .. } in batch {
            writeln!(self.0, "{topic} {}", String::from_utf8_lossy(payload))?;
        }
        Ok(self.0.sync_data()?)
    }
}

/// Runs until a line is entered.
///
/// # Errors
/// The file cannot be opened, or the server cannot start or stop.
fn main() -> anyhow::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "measurements.txt".to_owned());
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let server = Server::start_with(Config::default(), vec![Box::new(FileConsumer(file))])?;
    println!("ready {:?}; ENTER ends it", server.bound());
    std::io::stdin().read_line(&mut String::new())?;
    server.stop()
}

//! Sinks: messages of clients into PostgreSQL, time series databases and web services (`docs/sinks.md`).
//!
//! Each sink of the configuration has a durable session inside the broker, as consumers have. Where a publication that it
//! will get enters the broker, it is stamped with an identifier and a time (`stamps`), which it keeps over restarts. A
//! batch of the session is mapped to records (`mapping`), and acknowledged when the target (`target`; `postgres`,
//! `service`, `lines`) has stored it. What the target is to blame for is tried again; a message that cannot be written
//! goes to the dead letters (`dead_letters`), and the rest goes on.

mod dead_letters;
mod lines;
mod mapping;
mod postgres;
mod service;
mod stamps;
mod status;
mod target;
mod writer;

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fulmar_config::Sink;
use fulmar_mqtt::topic::{check_name, matches};
use fulmar_part::consumer::{Publications, Session};
use fulmar_part::internal_sessions::InternalSessions;
use fulmar_part::thread::{Thread, runtime};
use fulmar_part::{Core, Opening, Part, Source};
use tokio::sync::mpsc;

pub use crate::dead_letters::{DeadLetter, DeadLetters};
pub use crate::mapping::Letter;
use crate::stamps::Stamps;
use crate::status::Status;
use crate::target::{Fault, Target};
use crate::writer::Writer;

/// Messages that `retry` writes together.
const RETRIED: usize = 500;

struct Running {
    session: Session,
    writer: Option<Writer>,
    status: Arc<Status>,
    thread: Option<Thread>,
}

/// All sinks.
struct Sinks(Vec<Running>);

/// Opens the sinks of the configuration, if there are any.
///
/// # Errors
/// An address or a file of the configuration cannot be used.
pub fn open(opening: &mut Opening<'_>) -> anyhow::Result<Option<Box<dyn Part>>> {
    let config = opening.config;
    if config.sinks.is_empty() {
        return Ok(None);
    }
    let folder = opening.data.join(dead_letters::FOLDER);
    fulmar_certs::files::make_private_dir(&folder)?;
    let open = |(name, sink): (&String, &Sink)| {
        let target = Target::new(sink).with_context(|| format!("[sinks.{name}]"))?;
        // The broker sends no more before it gets acknowledgements.
        let batch = sink.batch_messages.min(config.limits.max_in_flight.into()).max(1);
        let session = Session {
            listener: "sink",
            client_id: format!("sink-{name}"),
            filters: sink.filters.clone(),
            linger: Duration::from_millis(sink.batch_interval_ms.into()),
            batch,
        };
        let letters = DeadLetters::new(opening.data, name, sink.dead_letter_max_bytes);
        let client_id = session.client_id.clone();
        let status = Status { name: name.clone(), client_id, letters, ..Status::default() };
        let status = Arc::new(status);
        let writer = Writer { target, status: Arc::clone(&status), batch };
        Ok(Running { session, writer: Some(writer), status, thread: None })
    };
    let sinks = Sinks(config.sinks.iter().map(open).collect::<anyhow::Result<_>>()?);
    let filters = config.sinks.values().flat_map(|sink| sink.filters.clone());
    opening.offers.hooks.push(Box::new(Stamps::new(filters.collect())));
    opening.offers.sinks = Some(status::health(sinks.statuses()));
    Ok(Some(Box::new(sinks)))
}

impl Sinks {
    fn statuses(&self) -> Vec<Arc<Status>> {
        self.0.iter().map(|sink| Arc::clone(&sink.status)).collect()
    }
}

impl Part for Sinks {
    fn add_internal_sessions(&self, sessions: &mut InternalSessions<'_>) {
        self.0.iter().for_each(|sink| sink.session.add_to(sessions));
    }

    fn go_live(&mut self, core: &Core) -> anyhow::Result<()> {
        for sink in &mut self.0 {
            let Some(mut writer) = sink.writer.take() else { continue };
            drop(sink.status.broker.set(Arc::downgrade(&core.broker)));
            let (session, handoff) = (sink.session.clone(), core.handoff.clone());
            let run = move || async move {
                let (_none, queue) = mpsc::channel::<Infallible>(1);
                let mut publications = Publications { queue, read: |never| match *never {} };
                session.run(&handoff, &mut writer, &mut publications).await;
            };
            sink.thread = Some(Thread::start("fulmar-sink", run)?);
        }
        Ok(())
    }

    fn metrics(&self) -> Option<Source> {
        let statuses = self.statuses();
        Some(Arc::new(move |to| status::report(&statuses, to)))
    }
}

/// The row or record that a sink would write for a message.
///
/// # Errors
/// The message does not fit, with the reason, or a file of the configuration cannot be used.
pub fn try_message(sink: &Sink, letter: &Letter) -> anyhow::Result<String> {
    let topic = &letter.topic;
    anyhow::ensure!(check_name(topic).is_ok(), "{topic:?} is not the topic of a message");
    anyhow::ensure!(
        sink.filters.iter().any(|filter| matches(filter, topic)),
        "no filter of the sink matches {topic:?}: it would not get this message"
    );
    let text = Target::new(sink)?.text(letter);
    text.map_err(|reason| anyhow::anyhow!("this message would become a dead letter: {reason}"))
}

/// Writes the dead letters of a sink to its target; those that still do not fit stay. Returns how many were written, and
/// how many stay.
///
/// # Errors
/// The target accepts nothing now, or the file cannot be used; all letters stay then, of which some may be written.
pub fn retry(sink: &Sink, name: &str, data: &Path) -> anyhow::Result<(usize, usize)> {
    let file = DeadLetters::new(data, name, sink.dead_letter_max_bytes);
    let _locked = file.lock().context("the dead letters are in use, or there is no data folder")?;
    let letters = file.read().with_context(|| file.path().display().to_string())?;
    if letters.is_empty() {
        // A file made by root would be none that the server may change.
        return Ok((0, 0));
    }
    let mut target = Target::new(sink)?;
    let (mut left, runtime) = (Vec::new(), runtime()?);
    for part in letters.chunks(RETRIED) {
        let part: Vec<Letter> = part.iter().map(|dead| dead.letter.clone()).collect();
        let give_up = async |fault: Fault| Err(fault);
        let dead = runtime.block_on(target.write_apart(&part, give_up)).map_err(|fault| {
            let text = fault.text();
            anyhow::anyhow!("the target accepts nothing, and all dead letters stay: {text}")
        })?;
        left.extend(dead);
    }
    runtime.shutdown_background();
    file.replace(&left)?;
    Ok((letters.len() - left.len(), left.len()))
}

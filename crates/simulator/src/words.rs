//! The steps of a schedule as text, for people.

use std::fmt;

use crate::liars::Lie;
use crate::schedule::{Aside, FILTERS, Step, TOPICS, Wanted};

impl fmt::Display for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Aside::Read { line, stream } => {
                write!(f, "another worker reads a packet (connection {line}, stream {stream})")
            }
            Aside::Exchange { worker } => write!(f, "worker {worker} takes its events and sends"),
            Aside::EndTurn { worker } => write!(f, "worker {worker} ends its turn"),
            Aside::Commit => write!(f, "storage commits"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Step::Connect { client, worker, quic, clean, .. } => write!(
                f,
                "client {client} connects to worker {worker} over {}{}",
                if quic { "QUIC" } else { "TCP" },
                if clean { " for a new session" } else { "" }
            ),
            Step::Cut { client, lossy } => {
                let lost = if lossy { ", with what it said last" } else { "" };
                write!(f, "the connection of client {client} breaks{lost}")
            }
            Step::Leave { client } => write!(f, "client {client} disconnects"),
            Step::Publish { client, topic, qos, stream, retain, expiry_s } => {
                let topic = if retain { "its retained topic" } else { TOPICS[topic] };
                write!(
                    f,
                    "client {client} publishes to {topic} at QoS {} on stream {stream}",
                    qos as u8
                )?;
                expiry_s.map_or(Ok(()), |seconds| write!(f, ", to expire in {seconds} s"))
            }
            Step::Subscribe { client, filter, qos, stream } => {
                let filter = FILTERS[filter];
                write!(
                    f,
                    "client {client} subscribes to {filter} at QoS {} on stream {stream}",
                    qos as u8
                )
            }
            Step::Unsubscribe { client, filter } => {
                write!(f, "client {client} unsubscribes from {}", FILTERS[filter])
            }
            Step::OpenStream { client, name, keep, wanted } => {
                write!(f, "client {client} opens a stream ")?;
                match name {
                    Some(name) if keep => write!(f, "with flow {name}, which outlives it"),
                    Some(name) => write!(f, "with flow {name}"),
                    None => write!(f, "without a name"),
                }?;
                match wanted {
                    Wanted::Any => Ok(()),
                    Wanted::AsLeft => write!(f, ", if the broker knows it"),
                    Wanted::Clean => write!(f, ", emptied"),
                }
            }
            Step::EndStream { client, stream, finish } => {
                let verb = if finish { "finishes" } else { "resets" };
                write!(f, "client {client} {verb} stream {stream}")
            }
            Step::Hear { client, stream } => write!(f, "client {client} reads (stream {stream})"),
            Step::Acknowledge { client, pick } => {
                write!(f, "client {client} acknowledges ({pick})")
            }
            Step::Read { line, stream, amid } => {
                write!(f, "a worker reads a packet (connection {line}, stream {stream})")?;
                let Some(amid) = amid else { return Ok(()) };
                write!(f, "; if it publishes, before receiver {}:", amid.before)?;
                amid.asides.iter().flatten().try_for_each(|aside| write!(f, " {aside};"))
            }
            Step::Exchange { worker } => write!(f, "worker {worker} takes its events and sends"),
            Step::EndTurn { worker } => write!(f, "worker {worker} ends its turn"),
            Step::Commit { most } => write!(f, "storage commits up to {most} batches"),
            Step::Disk { failing: true } => write!(f, "the disk is full"),
            Step::Disk { failing: false } => write!(f, "the disk has room again"),
            Step::Timers { worker } => write!(f, "timers fire on worker {worker}"),
            Step::Wait { seconds } => write!(f, "{seconds} s pass"),
            Step::Crash { workers } => {
                write!(f, "the broker crashes and starts again with {workers} workers")
            }
            Step::Stall => write!(f, "storage commits nothing until everything is overdue"),
            Step::Rest => write!(f, "everything comes to rest"),
            Step::Clock(step) => write!(f, "{step:?}"),
            Step::Lie(Lie(deed)) => write!(f, "{deed:?}"),
        }
    }
}

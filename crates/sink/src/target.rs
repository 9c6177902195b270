//! A target of any kind, and whose fault it is that it does not accept messages.

use fulmar_config::{Sink, SinkKind};

use crate::dead_letters::DeadLetter;
use crate::mapping::{Letter, Mapping, Record};
use crate::postgres::Table;
use crate::service::{self, Service};

/// Why a batch was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It passes by itself: the target is away or busy.
    Temporary(String),
    /// The target accepts nothing until somebody changes something.
    Target(String),
    /// At least one of the messages cannot be written.
    Message(String),
}

impl Fault {
    pub(crate) fn text(&self) -> &str {
        let (Fault::Temporary(text) | Fault::Target(text) | Fault::Message(text)) = self;
        text
    }
}

enum Kind {
    Table(Box<Table>),
    Service(Box<Service>),
}

/// A target with its mapping.
pub(crate) struct Target {
    mapping: Mapping,
    kind: Kind,
}

impl Target {
    /// The target of these settings. It is not contacted yet.
    ///
    /// # Errors
    /// An address or a file cannot be used.
    pub(crate) fn new(sink: &Sink) -> anyhow::Result<Target> {
        let mapping = Mapping::new(sink);
        let kind = match sink.kind {
            Some(SinkKind::Postgres) => Kind::Table(Box::new(Table::new(sink, &mapping)?)),
            _ => Kind::Service(Box::new(Service::new(sink)?)),
        };
        Ok(Target { mapping, kind })
    }

    /// The row or record for a message, as text.
    ///
    /// # Errors
    /// The message does not fit; the text says why.
    pub(crate) fn text(&self, letter: &Letter) -> Result<String, String> {
        let record = self.mapping.record(letter)?;
        match &self.kind {
            Kind::Table(_) => Ok(service::json(&self.mapping, &record).to_string() + "\n"),
            Kind::Service(service) => service.text(&self.mapping, &record),
        }
    }

    async fn write(&mut self, records: &[Record]) -> Result<(), Fault> {
        match &mut self.kind {
            Kind::Table(table) => table.write(records).await,
            Kind::Service(service) => service.write(&self.mapping, records).await,
        }
    }

    /// Writes messages in their order, in parts until each that cannot be written is alone, and returns those.
    /// When it is not the messages' fault, `pause` is called, and the part is written again.
    ///
    /// # Errors
    /// Those of `pause`. Some messages may be written.
    pub(crate) async fn write_apart<E>(
        &mut self,
        letters: &[Letter],
        mut pause: impl AsyncFnMut(Fault) -> Result<(), E>,
    ) -> Result<Vec<DeadLetter>, E> {
        let (mut records, mut of_records, mut dead) = (Vec::new(), Vec::new(), Vec::new());
        let bury = |letter: &Letter, reason| DeadLetter { reason, letter: letter.clone() };
        for letter in letters {
            match self.mapping.record(letter) {
                Ok(record) => {
                    records.push(record);
                    of_records.push(letter);
                }
                Err(reason) => dead.push(bury(letter, reason)),
            }
        }
        let mut parts: Vec<_> = std::iter::once(0..records.len()).collect();
        while let Some(part) = parts.pop().filter(|part| !part.is_empty()) {
            match self.write(&records[part.clone()]).await {
                Ok(()) => {}
                Err(Fault::Message(reason)) if part.len() == 1 => {
                    dead.push(bury(of_records[part.start], reason));
                }
                Err(Fault::Message(_)) => {
                    let middle = part.start + part.len() / 2;
                    parts.extend([middle..part.end, part.start..middle]);
                }
                Err(fault) => {
                    pause(fault).await?;
                    parts.push(part);
                }
            }
        }
        Ok(dead)
    }
}

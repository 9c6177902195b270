//! Packets encoded for one stream that its connection has not taken yet, and the stream's topic aliases. Packets leave
//! in the order in which they were added; if one does not leave, neither do those after it. So an alias is set once
//! its packet is added.

use std::sync::Arc;

use fulmar_mqtt::Version;

use crate::aliases::{self, Naming, SentAliases};
use crate::memory::{Account, Charge, FREE_OUTPUT, MemoryOwner};

/// The limits that a client sets with CONNECT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLimits {
    pub(crate) version: Version,
    /// Its Maximum Packet Size, in bytes.
    pub(crate) max_packet_bytes: u32,
    /// Topic aliases on each stream.
    pub(crate) aliases: u16,
}

/// Encoded packets that the connection has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// None before the first message that could get an alias.
    aliases: Option<Box<SentAliases>>,
    /// Of a receiver that is slow: what is counted for its owner.
    counted: Option<Box<Charge>>,
}

impl Outbox {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The packets, for their stream.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.counted = None;
        std::mem::take(&mut self.bytes)
    }

    /// Whether so much has been added that it has to be counted.
    #[inline]
    pub(crate) fn is_uncounted(&self) -> bool {
        if self.bytes.len() < FREE_OUTPUT {
            return false;
        }
        let counted = self.counted.as_ref().map_or(0, |counted| counted.bytes());
        self.bytes.len() >= counted + FREE_OUTPUT
    }

    /// Counts what waits.
    pub(crate) fn count(&mut self, owner: &Arc<MemoryOwner>) {
        let new = || Box::new(Charge::new(Arc::clone(owner), Account::Output));
        self.counted.get_or_insert_with(new).set(self.bytes.len());
    }

    /// Where packets other than PUBLISH go.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a PUBLISH to a client that allows no aliases, unless it is larger than the client accepts
    /// ([MQTT-3.1.2-24]). Returns whether it fits.
    #[inline]
    pub(crate) fn publish(
        &mut self,
        client: ClientLimits,
        buffer: impl FnOnce() -> Vec<u8>,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let start = self.start(buffer);
        encode(&mut self.bytes);
        self.keep_if_it_fits(start, client)
    }

    /// The same to a client that allows aliases. `encode` may be called twice.
    pub(crate) fn publish_aliased(
        &mut self,
        client: ClientLimits,
        buffer: impl FnOnce() -> Vec<u8>,
        topic: &str,
        mut encode: impl FnMut(&mut Vec<u8>, Naming),
    ) -> bool {
        let start = self.start(buffer);
        let mut naming = Naming::Topic;
        if aliases::is_worth_one(topic) {
            naming = self.aliases.get_or_insert_default().choose(topic, client.aliases);
        }
        encode(&mut self.bytes, naming);
        let fits = self.keep_if_it_fits(start, client);
        let Naming::Set(alias) = naming else { return fits };
        if fits {
            self.aliases.get_or_insert_default().set(alias, topic);
            return true;
        }
        // Perhaps it fits without the alias.
        encode(&mut self.bytes, Naming::Topic);
        self.keep_if_it_fits(start, client)
    }

    #[inline]
    fn start(&mut self, buffer: impl FnOnce() -> Vec<u8>) -> usize {
        if self.bytes.capacity() == 0 {
            self.bytes = buffer();
        }
        self.bytes.len()
    }

    #[inline]
    fn keep_if_it_fits(&mut self, start: usize, client: ClientLimits) -> bool {
        let fits = self.bytes.len() - start <= client.max_packet_bytes as usize;
        if !fits {
            self.bytes.truncate(start);
        }
        fits
    }
}

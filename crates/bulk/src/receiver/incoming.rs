//! An object that is being received: which symbols of which blocks have arrived.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::{ObjectKey, Shared, Storage};
use crate::partition::Partition;
use crate::rs::Code;
use crate::sender::Symbols;
use crate::wire::{Fec, Fti, ObjectMessage, flags};

/// The most blocks of an object, so that a hostile sender cannot cause large allocations.
const MAX_BLOCKS: u32 = 1 << 20;
/// Incomplete blocks that an object may have even when the limit of all objects is reached.
const LEAST_PARTIAL: usize = 64;
/// Memory per held symbol besides its bytes.
const SYMBOL_OVERHEAD_BYTES: usize = 48;

/// An incomplete block.
#[derive(Debug, Default)]
pub(super) struct Partial {
    pub(super) have: Symbols,
    /// Number of source symbols received.
    sources: u16,
    parity: Vec<(u8, Vec<u8>)>,
    /// Parity was dropped for lack of memory: only source symbols are useful now.
    pub(super) no_room: bool,
}

impl Partial {
    /// Symbols received, of either kind.
    pub(super) fn count(&self) -> u16 {
        self.sources + self.parity.len() as u16
    }
}

/// An object.
#[derive(Debug)]
pub(super) struct Incoming {
    key: ObjectKey,
    pub(super) fec: Fec,
    pub(super) partition: Partition,
    fti: Fti,
    code: Rc<Code>,
    has_info: bool,
    info: Option<Vec<u8>>,
    done: Vec<u64>,
    done_blocks: u32,
    /// Bytes received.
    received: u64,
    /// All blocks before this one are complete.
    pub(super) prefix: u32,
    pub(super) partial: BTreeMap<u32, Partial>,
}

impl Incoming {
    /// An object as its first message with parameters describes it; or why it cannot be received.
    pub(super) fn open<S: Storage>(
        key: ObjectKey,
        message: &ObjectMessage<'_>,
        fti: Fti,
        shared: &mut Shared<S>,
    ) -> Result<Incoming, String> {
        if message.flags & flags::STREAM != 0 {
            return Err("streams are not supported".into());
        }
        if fti.object_bytes > shared.config.max_object_bytes {
            return Err(format!("{} bytes are too many", fti.object_bytes));
        }
        let partition = Partition::new(fti.object_bytes, fti.symbol_bytes, fti.max_block)
            .map_err(|error| error.to_string())?;
        if partition.blocks() > MAX_BLOCKS {
            return Err(format!("{} blocks are too many", partition.blocks()));
        }
        let code = shared.code(fti.max_block, fti.parity).ok_or("no such code")?;
        shared.storage.open(key, fti.object_bytes).map_err(|error| error.to_string())?;
        shared.progress.total_bytes += fti.object_bytes;
        Ok(Incoming {
            key,
            fec: message.fec,
            partition,
            fti,
            code,
            has_info: message.flags & flags::INFO != 0,
            info: None,
            done: vec![0; (partition.blocks() as usize).div_ceil(64)],
            done_blocks: 0,
            received: 0,
            prefix: 0,
            partial: BTreeMap::new(),
        })
    }

    pub(super) fn parity(&self) -> u16 {
        self.fti.parity
    }

    pub(super) fn is_done(&self, block: u32) -> bool {
        self.done.get(block as usize / 64).is_some_and(|word| word & (1 << (block % 64)) != 0)
    }

    pub(super) fn needs_info(&self) -> bool {
        self.has_info && self.info.is_none()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.done_blocks == self.partition.blocks() && !self.needs_info()
    }

    pub(super) fn info(&self) -> &[u8] {
        self.info.as_deref().unwrap_or_default()
    }

    /// Receives a message of the object. Returns whether it is consistent with earlier ones; the error is the
    /// storage's, as text.
    pub(super) fn receive<S: Storage>(
        &mut self,
        message: &ObjectMessage<'_>,
        shared: &mut Shared<S>,
    ) -> Result<bool, String> {
        if message.fti.is_some_and(|fti| fti != self.fti) || message.fec != self.fec {
            return Ok(false);
        }
        self.has_info |= message.flags & flags::INFO != 0;
        let Some(symbol) = message.symbol else {
            if self.info.is_none() {
                self.info = Some(message.payload.to_vec());
                self.resume(message.payload, shared).map_err(|error| error.to_string())?;
            }
            return Ok(true);
        };
        let symbols = self.partition.symbols(symbol.block);
        let length = usize::from(self.partition.symbol_bytes());
        let expected = if symbol.symbol < symbols {
            let start = usize::from(symbol.symbol) * length;
            self.partition.block_bytes(symbol.block).saturating_sub(start).min(length)
        } else {
            length
        };
        let fits = symbol.symbol < symbols.saturating_add(self.fti.parity);
        let (true, Ok(number)) = (fits, u8::try_from(symbol.symbol)) else { return Ok(false) };
        if symbols == 0 || message.payload.len() != expected {
            return Ok(false);
        }
        let taken = self.symbol(symbol.block, number, message.payload, shared);
        taken.map_err(|error| error.to_string())?;
        Ok(true)
    }

    /// The object's info is known: an earlier run may have left a part of the object.
    fn resume<S: Storage>(&mut self, info: &[u8], shared: &mut Shared<S>) -> std::io::Result<()> {
        let parts = self.partition;
        let kept = shared.storage.identify(self.key, info, &parts)?;
        if kept.is_empty() {
            let done = (0..parts.blocks()).filter(|&block| self.is_done(block));
            return done
                .into_iter()
                .try_for_each(|block| shared.storage.block_complete(self.key, &parts, block));
        }
        self.release(shared);
        self.done.fill(0);
        shared.progress.received_bytes -= self.received;
        (self.done_blocks, self.prefix, self.received) = (0, 0, 0);
        for block in kept.into_iter().filter(|&block| block < parts.blocks()) {
            if !self.is_done(block) {
                let bytes = parts.block_bytes(block) as u64;
                self.count(bytes, shared);
                shared.progress.resumed_bytes += bytes;
                self.set_done(block);
            }
        }
        self.go_on(shared)
    }

    fn count<S>(&mut self, bytes: u64, shared: &mut Shared<S>) {
        self.received += bytes;
        shared.progress.received_bytes += bytes;
    }

    fn set_done(&mut self, block: u32) {
        if let Some(word) = self.done.get_mut(block as usize / 64) {
            *word |= 1 << (block % 64);
        }
        self.done_blocks += 1;
    }

    fn symbol<S: Storage>(
        &mut self,
        block: u32,
        symbol: u8,
        payload: &[u8],
        shared: &mut Shared<S>,
    ) -> std::io::Result<()> {
        let symbols = self.partition.symbols(block);
        let source = u16::from(symbol) < symbols;
        let known = self.partial.get(&block).is_some_and(|partial| partial.have.contains(symbol));
        if self.is_done(block) || known {
            shared.progress.duplicates += 1;
            return Ok(());
        }
        if !self.has_room(block, shared) {
            shared.progress.dropped += 1;
            return Ok(());
        }
        let held = payload.len() + SYMBOL_OVERHEAD_BYTES;
        if !source && shared.parity_bytes + held > shared.config.max_parity_bytes {
            shared.progress.dropped += 1;
            self.partial(block, shared).no_room = true;
            return Ok(());
        }
        if source {
            let within = u64::from(symbol) * u64::from(self.partition.symbol_bytes());
            shared.storage.write(self.key, self.partition.offset(block) + within, payload)?;
            self.count(payload.len() as u64, shared);
        }
        let partial = self.partial(block, shared);
        partial.have.insert(symbol);
        if source {
            partial.sources += 1;
        } else {
            shared.parity_bytes += held;
            partial.parity.push((symbol, payload.to_vec()));
        }
        if partial.count() >= symbols {
            self.complete_block(block, shared)?;
        }
        Ok(())
    }

    /// Whether this block may be started, or is started already.
    fn has_room<S>(&self, block: u32, shared: &Shared<S>) -> bool {
        let few = shared.partial_blocks < shared.config.max_partial_blocks
            || self.partial.len() < LEAST_PARTIAL;
        few || self.partial.contains_key(&block)
    }

    fn partial<S>(&mut self, block: u32, shared: &mut Shared<S>) -> &mut Partial {
        self.partial.entry(block).or_insert_with(|| {
            shared.partial_blocks += 1;
            Partial::default()
        })
    }

    /// There are enough symbols: computes the missing ones.
    fn complete_block<S: Storage>(
        &mut self,
        block: u32,
        shared: &mut Shared<S>,
    ) -> std::io::Result<()> {
        let Some(partial) = self.partial.remove(&block) else { return Ok(()) };
        shared.partial_blocks -= 1;
        let held = |(_, symbol): &(u8, Vec<u8>)| symbol.len() + SYMBOL_OVERHEAD_BYTES;
        shared.parity_bytes -= partial.parity.iter().map(held).sum::<usize>();
        let symbols = self.partition.symbols(block);
        if partial.sources < symbols {
            self.recover(block, partial, shared)?;
        }
        self.set_done(block);
        if self.info.is_some() {
            shared.storage.block_complete(self.key, &self.partition, block)?;
        }
        self.go_on(shared)
    }

    /// Notifies the storage how many blocks from the beginning are complete.
    fn go_on<S: Storage>(&mut self, shared: &mut Shared<S>) -> std::io::Result<()> {
        let before = self.prefix;
        while self.prefix < self.partition.blocks() && self.is_done(self.prefix) {
            self.prefix += 1;
        }
        if self.prefix > before {
            let to = self.partition.offset(self.prefix).min(self.partition.bytes());
            shared.storage.advance(self.key, to)?;
        }
        Ok(())
    }

    fn recover<S: Storage>(
        &mut self,
        block: u32,
        partial: Partial,
        shared: &mut Shared<S>,
    ) -> std::io::Result<()> {
        let (symbols, length) = (self.partition.symbols(block), self.partition.symbol_bytes());
        let (length, bytes) = (usize::from(length), self.partition.block_bytes(block));
        let offset = self.partition.offset(block);
        let mut whole = vec![0; usize::from(symbols) * length];
        shared.storage.read(self.key, offset, &mut whole[..bytes])?;
        let missing: Vec<usize> = (0..symbols)
            .filter(|&symbol| !partial.have.contains(symbol as u8))
            .map(usize::from)
            .collect();
        for &symbol in &missing {
            whole[symbol * length..][..length].fill(0);
        }
        let number = |symbol: u8| usize::from(u16::from(symbol) - symbols);
        let parity = partial.parity.into_iter().map(|(symbol, bytes)| (number(symbol), bytes));
        if !self.code.recover(&mut whole, length, &missing, parity.collect()) {
            return Err(std::io::Error::other("a block cannot be recovered"));
        }
        for &symbol in &missing {
            let start = symbol * length;
            let made = &whole[start..bytes.min(start + length)];
            shared.storage.write(self.key, offset + start as u64, made)?;
            self.count(made.len() as u64, shared);
        }
        shared.progress.recovered += missing.len() as u64;
        Ok(())
    }

    /// Gives the object up.
    pub(super) fn abandon<S: Storage>(mut self, shared: &mut Shared<S>) {
        self.release(shared);
        shared.storage.abandon(self.key);
    }

    /// Drops the memory of incomplete blocks.
    fn release<S>(&mut self, shared: &mut Shared<S>) {
        let partial = std::mem::take(&mut self.partial);
        shared.partial_blocks -= partial.len();
        let parity = partial.values().flat_map(|partial| &partial.parity);
        let held: usize = parity.map(|(_, symbol)| symbol.len() + SYMBOL_OVERHEAD_BYTES).sum();
        shared.parity_bytes -= held;
    }
}

//! Repair requests (RFC 5740 section 4.3.1): the content of NACKs and of NORM_CMD(REPAIR_ADV).
//!
//! A message carries several lists, each with a form, a level and items. [`Requests::check`] reads all of them once,
//! so that [`Requests::spans`] cannot fail.

use super::error::WireError;
use super::object::{Fec, SymbolId};
use super::read::{Read, put16};

/// The meaning of the items of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Each item is one request.
    Items,
    /// Two items are the first and last of a range.
    Ranges,
    /// The symbol number is a count of missing symbols.
    Erasures,
}

/// Parts that are requested; combinations are possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// The symbols named.
    pub segment: bool,
    /// The blocks named as a whole.
    pub block: bool,
    /// The objects' NORM_INFO.
    pub info: bool,
    /// The objects named as a whole.
    pub object: bool,
}

impl Level {
    fn decode(flags: u8) -> Level {
        let is = |bit| flags & bit != 0;
        Level { segment: is(1), block: is(2), info: is(4), object: is(8) }
    }

    fn encode(self) -> u8 {
        let bit = |is, bit| if is { bit } else { 0 };
        bit(self.segment, 1) | bit(self.block, 2) | bit(self.info, 4) | bit(self.object, 8)
    }
}

/// One request: from a symbol of an object to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The form of the request; `first` and `last` are equal unless it is a range.
    pub form: Form,
    /// Parts that are requested.
    pub level: Level,
    /// The first object and symbol.
    pub first: (u16, SymbolId),
    /// The last ones.
    pub last: (u16, SymbolId),
}

/// Lists of requests, checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests<'a>(&'a [u8]);

impl<'a> Requests<'a> {
    /// Checks bytes as lists of requests.
    ///
    /// # Errors
    /// They are not.
    pub fn check(bytes: &'a [u8]) -> Result<Requests<'a>, WireError> {
        let mut walk = Walk { lists: Read(bytes), items: Read(&[]), head: None };
        while walk.step()?.is_some() {}
        Ok(Requests(bytes))
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether there are no requests.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The requests one by one.
    pub fn spans(self) -> impl Iterator<Item = Span> + 'a {
        let mut walk = Walk { lists: Read(self.0), items: Read(&[]), head: None };
        std::iter::from_fn(move || walk.step().ok().flatten())
    }
}

struct Walk<'a> {
    lists: Read<'a>,
    items: Read<'a>,
    head: Option<(Form, Level)>,
}

impl Walk<'_> {
    fn step(&mut self) -> Result<Option<Span>, WireError> {
        loop {
            if let Some((form, level)) = self.head
                && !self.items.0.is_empty()
            {
                let first = item(&mut self.items)?;
                let last = if form == Form::Ranges { item(&mut self.items)? } else { first };
                return Ok(Some(Span { form, level, first, last }));
            }
            if self.lists.0.is_empty() {
                return Ok(None);
            }
            let form = match self.lists.u8()? {
                1 => Form::Items,
                2 => Form::Ranges,
                3 => Form::Erasures,
                other => return Err(WireError::Kind(other)),
            };
            let level = Level::decode(self.lists.u8()?);
            let bytes = self.lists.u16()?;
            self.items = Read(self.lists.bytes(bytes.into())?);
            self.head = Some((form, level));
        }
    }
}

fn item(read: &mut Read<'_>) -> Result<(u16, SymbolId), WireError> {
    let fec = Fec::from_number(read.u8()?)?;
    read.u8()?;
    let object = read.u16()?;
    Ok((object, SymbolId::decode(read, fec)?))
}

/// Writes lists of requests, up to a number of bytes.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    limit: usize,
    fec: Fec,
    /// The beginning of the open list, its form and level.
    open: Option<(usize, Form, Level)>,
}

impl Writer {
    /// Requests of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize, fec: Fec) -> Writer {
        Writer { bytes: Vec::new(), limit, fec, open: None }
    }

    /// Appends a request: an item if first and last are the same, otherwise a range. Returns whether it fitted.
    pub fn push(&mut self, level: Level, first: (u16, SymbolId), last: (u16, SymbolId)) -> bool {
        let form = if first == last { Form::Items } else { Form::Ranges };
        let same = self.open.is_some_and(|(_, open, at)| (open, at) == (form, level));
        let item = if self.fec == Fec::ReedSolomon8 { 8 } else { 12 };
        let needed = if same { 0 } else { 4 } + if form == Form::Items { item } else { 2 * item };
        if self.bytes.len() + needed > self.limit.min(usize::from(u16::MAX)) {
            return false;
        }
        if !same {
            self.open = Some((self.bytes.len(), form, level));
            let number = if form == Form::Items { 1 } else { 2 };
            self.bytes.extend([number, level.encode(), 0, 0]);
        }
        let items = if form == Form::Items { &[first][..] } else { &[first, last] };
        for &(object, symbol) in items {
            self.bytes.extend([self.fec.number(), 0]);
            put16(&mut self.bytes, object);
            symbol.encode(&mut self.bytes, self.fec);
        }
        if let Some((start, ..)) = self.open {
            // Within `limit`, so it fits.
            let length = (self.bytes.len() - start - 4) as u16;
            self.bytes[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
        }
        true
    }

    /// The requests so far.
    #[must_use]
    pub fn requests(&self) -> Requests<'_> {
        Requests(&self.bytes)
    }
}

//! One peer's bodies in blocks (RFC 7959): those partly received, and those partly sent, which are kept so that all
//! blocks have the same state of the resource.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::block::Block;
use crate::message::{Code, code};
use crate::server::reply::Etag;

/// Bodies in transfer of a peer, per direction.
const MAX_BODIES: usize = 4;

/// The result of receiving a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More blocks follow.
    Continue,
    /// The body is complete.
    Whole(Bytes),
    /// The body is refused with this code.
    Refused(Code),
}

/// Bodies being received from the peer.
#[derive(Debug, Default)]
pub(super) struct Uploads(VecDeque<(Vec<u8>, Vec<u8>)>);

impl Uploads {
    /// Adds a block to the body with this `key`, which may have `max` bytes; `room` bytes may be added.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        block: Block,
        payload: &[u8],
        max: usize,
        room: usize,
    ) -> Progress {
        if block.more && payload.len() != block.size() {
            return Progress::Refused(code::BAD_REQUEST);
        }
        let known = self.0.iter().position(|(other, _)| other == key);
        let known = known.and_then(|at| self.0.remove(at));
        let from = block.offset();
        let mut body = match known {
            _ if block.number == 0 => Vec::new(),
            Some((_, body)) if body.len() == from => body,
            // The answer to it was lost, so that the peer sends it again, perhaps as another message.
            Some(kept) if kept.1.get(from..from + payload.len()) == Some(payload) => {
                self.0.push_back(kept);
                return Progress::Continue;
            }
            // The block before it is in flight, or was lost and is sent again.
            Some(kept) if kept.1.len() < from => {
                self.0.push_back(kept);
                return Progress::Refused(code::INCOMPLETE);
            }
            _ => return Progress::Refused(code::INCOMPLETE),
        };
        if body.len() + payload.len() > max {
            return Progress::Refused(code::TOO_LARGE);
        }
        body.extend_from_slice(payload);
        if !block.more {
            return Progress::Whole(body.into());
        }
        if payload.len() > room {
            return Progress::Refused(code::UNAVAILABLE);
        }
        if self.0.len() >= MAX_BODIES {
            self.0.pop_front();
        }
        self.0.push_back((key.to_vec(), body));
        Progress::Continue
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(key, body)| key.len() + body.capacity()).sum()
    }
}

/// A body being sent to the peer.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) content: Bytes,
    pub(super) etag: Option<Etag>,
    pub(super) content_format: Option<u16>,
    pub(super) max_age_s: Option<u32>,
}

/// Bodies being sent to the peer.
#[derive(Debug, Default)]
pub(super) struct Downloads(VecDeque<(Vec<u8>, Body)>);

impl Downloads {
    /// Stores a body if there is room; without it, further blocks have the resource's state at the time of their
    /// request.
    pub(super) fn store(&mut self, key: &[u8], body: Body, room: usize) {
        self.0.retain(|(other, _)| other != key);
        if body.content.len() > room {
            return;
        }
        if self.0.len() >= MAX_BODIES {
            self.0.pop_front();
        }
        self.0.push_back((key.to_vec(), body));
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<&Body> {
        self.0.iter().find(|(other, _)| other == key).map(|(_, body)| body)
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(key, body)| key.len() + body.content.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u32, more: bool) -> Block {
        Block { number, more, szx: 0 }
    }

    #[test]
    fn blocks_are_taken_in_order() {
        let mut uploads = Uploads::default();
        let mut take =
            |number, more, len| uploads.add(b"k", block(number, more), &vec![7; len], 100, 100);
        assert_eq!(take(0, true, 16), Progress::Continue);
        assert_eq!(take(2, true, 16), Progress::Refused(code::INCOMPLETE), "one is missing");
        assert_eq!(take(1, true, 16), Progress::Continue, "and comes late");
        assert_eq!(take(1, true, 16), Progress::Continue, "and again");
        assert_eq!(take(2, true, 16), Progress::Continue);
        assert_eq!(take(1, true, 16), Progress::Continue, "overtaken");
        assert_eq!(take(3, false, 5), Progress::Whole(vec![7; 53].into()));
        assert_eq!(take(0, true, 16), Progress::Continue);
        assert_eq!(take(1, true, 15), Progress::Refused(code::BAD_REQUEST), "not a whole block");
        assert_eq!(take(1, false, 3), Progress::Whole(vec![7; 19].into()));
        assert_eq!(take(0, false, 5), Progress::Whole(vec![7; 5].into()));
    }

    #[test]
    fn a_block_with_other_content_begins_nothing() {
        let mut uploads = Uploads::default();
        let mut take = |number, byte| uploads.add(b"k", block(number, true), &[byte; 16], 99, 99);
        assert_eq!((take(0, 1), take(1, 2)), (Progress::Continue, Progress::Continue));
        assert_eq!(take(1, 3), Progress::Refused(code::INCOMPLETE));
        assert_eq!(take(2, 4), Progress::Refused(code::INCOMPLETE), "all is forgotten");
    }

    #[test]
    fn bodies_are_bounded() {
        let mut uploads = Uploads::default();
        assert_eq!(uploads.add(b"k", block(0, true), &[0; 16], 20, 100), Progress::Continue);
        let refused = uploads.add(b"k", block(1, true), &[0; 16], 20, 100);
        assert_eq!(refused, Progress::Refused(code::TOO_LARGE));
        assert_eq!(uploads.bytes(), 0);
        let refused = uploads.add(b"k", block(0, true), &[0; 16], 20, 15);
        assert_eq!(refused, Progress::Refused(code::UNAVAILABLE));
        for key in 0..20 {
            uploads.add(&[key], block(0, true), &[0; 16], 20, 100);
        }
        assert_eq!(uploads.0.len(), MAX_BODIES);
    }
}

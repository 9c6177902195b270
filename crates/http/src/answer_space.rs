//! The memory for answers that clients have not taken yet, and an account's share of it.
//!
//! The platform and the administration API share it, each with accounts of its own.
//!
//! A client may ask for much and take none of it until its time is over. Below half of the space, an account gets what it
//! asks for; above, it may have as much as is still free, as with the broker's memory. An account that has nothing gets one
//! answer even if it is larger than that, so that a long table can be had where the space is small.
//!
//! For an answer that is made as a whole there is room, or it is 503. Photos and tables come in parts
//! ([`AnswerSpace::parts`]); each waits for room before it is read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use fulmar_broker::LogLimiter;
use fulmar_transport::Clock;
use futures_util::{Stream, StreamExt as _, stream};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Memory counted for a part until its size is known.
pub const PART_BYTES: usize = 256 * 1024;
/// Smaller answers are not counted.
const SMALL_BYTES: u64 = 4 * 1024;
/// Longest wait of a part for room.
const PATIENCE: Duration = Duration::from_secs(10);

/// The space; clones share it.
#[derive(Clone, Debug)]
pub struct AnswerSpace(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    held: Mutex<SpaceUse>,
    /// Notified when there is more room.
    freed: Notify,
    clock: Clock,
    log: Mutex<LogLimiter>,
}

#[derive(Debug, Default)]
struct SpaceUse {
    bytes: usize,
    /// None has 0.
    accounts: HashMap<Box<str>, usize>,
    refused: u64,
}

/// Bytes used, their limit, and the number of refused answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerTotals {
    /// Bytes that clients have not taken yet.
    pub used: u64,
    /// Bytes that there may be.
    pub limit: u64,
    /// Answers refused so far.
    pub refused: u64,
}

/// There is no room for an answer: earlier ones to the account have not been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", NoRoom::DETAIL)]
pub struct NoRoom;

impl NoRoom {
    /// Error text for the client: the cause, and the next step.
    pub const DETAIL: &str = "earlier answers to this account have not been taken; try again";
}

/// Room for an answer, or for what is kept for it besides its parts; given back when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct AnswerRoom {
    space: AnswerSpace,
    account: Box<str>,
    bytes: usize,
}

impl AnswerSpace {
    /// Space of this many bytes.
    pub fn new(limit: usize) -> AnswerSpace {
        let (held, freed) = (Mutex::default(), Notify::new());
        let (clock, log) = (Clock::start(), Mutex::default());
        AnswerSpace(Arc::new(Shared { limit, held, freed, clock, log }))
    }

    /// Returns the bytes used, their limit, and the number of refused answers.
    pub fn totals(&self) -> AnswerTotals {
        let held = self.0.held.lock();
        let limit = u64::try_from(self.0.limit).unwrap_or(u64::MAX);
        AnswerTotals { used: held.bytes as u64, limit, refused: held.refused }
    }

    /// Room for an answer of `account`, if there is any now.
    fn reserve(&self, account: &str, bytes: usize) -> Option<AnswerRoom> {
        let mut held = self.0.held.lock();
        if !held.has_room(self.0.limit, account, bytes) {
            return None;
        }
        held.bytes += bytes;
        *held.accounts.entry(account.into()).or_default() += bytes;
        Some(AnswerRoom { space: self.clone(), account: account.into(), bytes })
    }

    /// Room for a part, as soon as there is any.
    async fn wait(&self, account: &str) -> Result<AnswerRoom, NoRoom> {
        let room = async {
            loop {
                let freed = self.0.freed.notified();
                if let Some(room) = self.reserve(account, PART_BYTES) {
                    return room;
                }
                freed.await;
            }
        };
        let room = tokio::time::timeout(PATIENCE, room).await;
        room.map_err(|_| self.refuse(account))
    }

    /// Counts an answer that was made as a whole until it is taken.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn count(&self, account: &str, response: Response) -> Result<Response, NoRoom> {
        // Those that come in parts count themselves.
        let size = response.body().size_hint().exact().filter(|bytes| *bytes > SMALL_BYTES);
        let Some(bytes) = size else { return Ok(response) };
        let room = self.reserve(account, usize::try_from(bytes).unwrap_or(usize::MAX));
        let room = room.ok_or_else(|| self.refuse(account))?;
        let counted = move |frame| {
            let _until_the_body_is_dropped = &room;
            frame
        };
        Ok(response.map(|body| Body::new(body.map_frame(counted))))
    }

    /// Counts what is kept for an answer besides its parts, until the room is dropped. What is small is not counted.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn reserve_stored(
        &self,
        account: &str,
        bytes: usize,
    ) -> Result<Option<AnswerRoom>, NoRoom> {
        if bytes as u64 <= SMALL_BYTES {
            return Ok(None);
        }
        self.reserve(account, bytes).map(Some).ok_or_else(|| self.refuse(account))
    }

    fn refuse(&self, account: &str) -> NoRoom {
        self.0.held.lock().refused += 1;
        let times = self.0.log.lock().occurred(self.0.clock.now());
        if let Some(times) = times {
            let limit = self.0.limit;
            tracing::warn!(
                user = account,
                times,
                limit,
                "answer refused: earlier ones are not taken"
            );
        }
        NoRoom
    }

    /// The same parts, each of at most about [`PART_BYTES`] and kept until the next one is asked for. Each is looked up
    /// when there is room for it; should there be none for too long, that is the end.
    pub fn parts<S, E>(
        &self,
        account: &str,
        parts: S,
    ) -> impl Stream<Item = Result<Bytes, E>> + Send + 'static + use<S, E>
    where
        S: Stream<Item = Result<Bytes, E>> + Send + Unpin + 'static,
        E: From<NoRoom> + Send + 'static,
    {
        let (space, account) = (self.clone(), Box::<str>::from(account));
        stream::unfold((Some(parts), None), move |(parts, before)| {
            let (space, account) = (space.clone(), account.clone());
            // Now that it is taken.
            drop::<Option<AnswerRoom>>(before);
            async move {
                let mut parts = parts?;
                let mut room = match space.wait(&account).await {
                    Ok(room) => room,
                    Err(refused) => return Some((Err(refused.into()), (None, None))),
                };
                let part = parts.next().await?;
                if let Ok(bytes) = &part {
                    room.resize(bytes.len());
                }
                Some((part, (Some(parts), Some(room))))
            }
        })
    }
}

impl SpaceUse {
    fn has_room(&self, limit: usize, account: &str, bytes: usize) -> bool {
        let free = limit.saturating_sub(self.bytes);
        let has = self.accounts.get(account).copied().unwrap_or(0);
        match has {
            0 if free > 0 => true,
            _ if bytes > free => false,
            _ => self.bytes + bytes <= limit / 2 || has + bytes <= free,
        }
    }
}

impl AnswerRoom {
    /// Corrects the counted size to `bytes`.
    fn resize(&mut self, bytes: usize) {
        let mut held = self.space.0.held.lock();
        held.bytes = held.bytes - self.bytes + bytes;
        if let Some(has) = held.accounts.get_mut(&self.account) {
            *has = *has - self.bytes + bytes;
        }
        drop(held);
        if bytes < self.bytes {
            self.space.0.freed.notify_waiters();
        }
        self.bytes = bytes;
    }
}

impl Drop for AnswerRoom {
    fn drop(&mut self) {
        let mut held = self.space.0.held.lock();
        held.bytes -= self.bytes;
        if let Some(has) = held.accounts.get_mut(&self.account) {
            *has -= self.bytes;
            if *has == 0 {
                held.accounts.remove(&self.account);
            }
        }
        drop(held);
        self.space.0.freed.notify_waiters();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_account_gets_half_and_others_have_room() {
        let space = AnswerSpace::new(1000);
        let (ann, bob) = ("ann", "bob");
        let anns: Vec<_> = std::iter::from_fn(|| space.reserve(ann, 100)).collect();
        assert_eq!(anns.len(), 5);
        let bobs: Vec<_> = std::iter::from_fn(|| space.reserve(bob, 100)).collect();
        assert_eq!(bobs.len(), 3, "as much as is then still free");
        assert!(space.reserve(ann, 100).is_none());
        // An account that has nothing gets one.
        let eve = space.reserve("eve", 5000).unwrap();
        assert!(space.reserve("kim", 1).is_none(), "there is none left");
        drop((anns, bobs, eve));
        assert_eq!(space.totals(), AnswerTotals { used: 0, limit: 1000, refused: 0 });
        assert!(space.0.held.lock().accounts.is_empty());
    }

    #[test]
    fn a_part_counts_until_the_next_is_asked_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let space = AnswerSpace::new(2 * PART_BYTES);
            let parts =
                ["one", "and two"].map(|part| Ok::<_, NoRoom>(Bytes::from_static(part.as_bytes())));
            let mut parts = Box::pin(space.parts("ann", stream::iter(parts)));
            for bytes in [3, 7] {
                assert_eq!(parts.next().await.unwrap().unwrap().len(), bytes);
                assert_eq!(space.totals().used, bytes as u64);
            }
            assert!(parts.next().await.is_none());
            assert_eq!(space.totals().used, 0);
        });
    }

    #[test]
    fn a_part_waits_for_room() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let space = AnswerSpace::new(PART_BYTES);
            let earlier = space.reserve("ann", 1).unwrap();
            let part = stream::iter([Ok::<_, NoRoom>(Bytes::from_static(b"late"))]);
            let mut parts = Box::pin(space.parts("ann", part));
            assert!(tokio::time::timeout(Duration::ZERO, parts.next()).await.is_err());
            drop(earlier);
            assert_eq!(parts.next().await.unwrap().unwrap(), "late");
        });
    }
}

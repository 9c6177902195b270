//! Gives up a response whose client takes none of it: [`WatchedBody`] drops the rest when none was wanted for some time.
//!
//! In HTTP/2, a body is only read while its stream's window is open, and a client that keeps windows closed would keep its
//! responses for as long as it sends anything else. Nothing asks such a body for more, so its time is watched from outside.
//! A body that waits for data of its own, such as events to come, has all the time it needs.
//!
//! A part that was given is in memory until the client takes it. So a connection has only a few large ones at once, and
//! gets small ones otherwise.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::connection_slots::Activity;

/// Bytes given at once: what HTTP/2 and HTTP/3 then hold for the client is out of reach.
const CHUNK_BYTES: usize = 16 * 1024;

/// The same while enough large parts of the connection's responses wait.
const SMALL_CHUNK_BYTES: usize = 1024;

/// Smaller bodies are not watched: it would take as much.
const SMALL_BYTES: u64 = 4 * 1024;

/// A response's body, as long as its client takes it.
struct WatchedBody {
    state: Arc<Mutex<State>>,
    watch: JoinHandle<()>,
}

struct State {
    /// `None` at its end, and when it was given up.
    body: Option<Body>,
    /// The rest of a large part of it.
    rest: Bytes,
    /// It had nothing to give when it was last asked.
    waits: bool,
    /// When it had something to give since, which its client may leave there.
    woken: Arc<Mutex<Option<Instant>>>,
    /// When it was last asked for more.
    asked: Instant,
    is_given_up: bool,
    activity: Activity,
}

/// Notes when a body has something to give: where its client has closed the stream's window, nobody asks for it.
struct Waking {
    outer: Waker,
    woken: Arc<Mutex<Option<Instant>>>,
}

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        *self.woken.lock() = Some(Instant::now());
        self.outer.wake_by_ref();
    }
}

/// A large part of a response, until it has been sent.
struct LargePart {
    bytes: Bytes,
    #[expect(dead_code, reason = "another may be given when it is dropped")]
    permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for LargePart {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The response was not taken in time.
#[derive(Debug, thiserror::Error)]
#[error("the client took nothing of the response for too long")]
struct NotTaken;

/// The body, which ends with an error when it could go on and is not asked for more for as long as `patience`.
/// `activity` is its connection's.
pub(crate) fn watched(body: Body, patience: Duration, activity: &Activity) -> Body {
    if body.size_hint().upper().is_some_and(|bytes| bytes <= SMALL_BYTES) {
        return body;
    }
    let (body, rest, asked) = (Some(body), Bytes::new(), Instant::now());
    let activity = activity.clone();
    let (waits, woken, is_given_up) = (false, Arc::default(), false);
    let state = State { body, rest, waits, woken, asked, is_given_up, activity };
    let state = Arc::new(Mutex::new(state));
    let watch = tokio::spawn(watch(Arc::clone(&state), patience));
    Body::new(WatchedBody { state, watch })
}

async fn watch(state: Arc<Mutex<State>>, patience: Duration) {
    loop {
        let due = {
            let mut state = state.lock();
            let now = Instant::now();
            let since = if state.waits { *state.woken.lock() } else { Some(state.asked) };
            match since.unwrap_or(now) + patience {
                due if due > now => due,
                _ => {
                    state.is_given_up = true;
                    state.rest = Bytes::new();
                    let body = state.body.take();
                    drop(state);
                    // Not while it is locked: it may be long.
                    drop(body);
                    return;
                }
            }
        };
        tokio::time::sleep_until(due).await;
    }
}

impl State {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        self.asked = Instant::now();
        self.activity.takes();
        if self.is_given_up {
            return Poll::Ready(Some(Err(NotTaken.into())));
        }
        if self.rest.is_empty() {
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            self.waits = true;
            *self.woken.lock() = None;
            let waking = Arc::new(Waking { outer: cx.waker().clone(), woken: self.woken.clone() });
            let waker = Waker::from(waking);
            let frame = ready!(Pin::new(body).poll_frame(&mut Context::from_waker(&waker)));
            self.waits = false;
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) if data.len() > SMALL_CHUNK_BYTES => self.rest = data,
                Some(Ok(Ok(data))) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => {
                    self.body = None;
                    return Poll::Ready(None);
                }
            }
        }
        let permit = Arc::clone(&self.activity.large_parts).try_acquire_owned().ok();
        let most = if permit.is_some() { CHUNK_BYTES } else { SMALL_CHUNK_BYTES };
        let chunk = self.rest.split_to(most.min(self.rest.len()));
        // Copied, because a slice would keep the whole while HTTP/2 holds it.
        let bytes = Bytes::copy_from_slice(&chunk);
        let part = match permit {
            Some(permit) => Bytes::from_owner(LargePart { bytes, permit }),
            None => bytes,
        };
        Poll::Ready(Some(Ok(Frame::data(part))))
    }
}

impl http_body::Body for WatchedBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        self.state.lock().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        let state = self.state.lock();
        let ended = state.body.as_ref().is_none_or(Body::is_end_stream);
        ended && state.rest.is_empty() && !state.is_given_up
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.state.lock();
        let rest = state.rest.len() as u64;
        let coming = state.body.as_ref().map(Body::size_hint).unwrap_or_default();
        let mut hint = SizeHint::new();
        if let Some(upper) = coming.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(coming.lower().saturating_add(rest));
        hint
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Weak;

    use super::*;
    use http_body_util::BodyExt as _;
    use tokio::sync::{Semaphore, mpsc};

    const PATIENCE: Duration = Duration::from_secs(30);

    struct OwnedBytes(Vec<u8>, #[expect(dead_code, reason = "dropped with the bytes")] Arc<()>);

    impl AsRef<[u8]> for OwnedBytes {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    struct Events(mpsc::Receiver<Bytes>);

    impl http_body::Body for Events {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
        }
    }

    /// A body of this many bytes, and whether it is there.
    fn body(bytes: usize) -> (Body, Weak<()>) {
        let kept = Arc::new(());
        let weak = Arc::downgrade(&kept);
        (Body::from(Bytes::from_owner(OwnedBytes(vec![7; bytes], kept))), weak)
    }

    /// A connection's with this many large parts.
    fn parts(most: usize) -> Activity {
        let mut activity = Activity::default();
        activity.large_parts = Arc::new(Semaphore::new(most));
        activity
    }

    #[tokio::test]
    async fn of_many_responses_a_few_are_given_in_large_parts() {
        let parts = parts(1);
        let [mut one, mut other] = [(), ()].map(|()| watched(body(100_000).0, PATIENCE, &parts));
        let part =
            async |body: &mut Body| body.frame().await.unwrap().unwrap().into_data().unwrap();
        let first = part(&mut one).await;
        assert_eq!(first.len(), CHUNK_BYTES);
        assert_eq!(part(&mut other).await.len(), SMALL_CHUNK_BYTES);
        assert_eq!(part(&mut one).await.len(), SMALL_CHUNK_BYTES, "the first is still kept");
        drop(one);
        let half = first.slice(..CHUNK_BYTES / 2);
        drop(first);
        assert_eq!(part(&mut other).await.len(), SMALL_CHUNK_BYTES, "half of it is");
        drop(half);
        assert_eq!(part(&mut other).await.len(), CHUNK_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_takes_is_dropped() {
        let (whole, kept) = body(100_000);
        let mut body = watched(whole, PATIENCE, &parts(1));
        assert_eq!(body.size_hint().exact(), Some(100_000));
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), CHUNK_BYTES);
        tokio::time::sleep(PATIENCE / 2).await;
        assert!(kept.strong_count() > 0);
        tokio::time::sleep(PATIENCE).await;
        assert_eq!(kept.strong_count(), 0);
        assert!(!body.is_end_stream() && body.frame().await.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_taken_slowly_arrives_whole() {
        let mut body = watched(body(100_000).0, PATIENCE, &parts(1));
        let mut bytes = 0;
        while !body.is_end_stream() {
            tokio::time::sleep(PATIENCE - Duration::from_secs(1)).await;
            bytes += body.frame().await.unwrap().unwrap().into_data().unwrap().len();
            assert_eq!(body.size_hint().exact(), Some(100_000 - bytes as u64));
        }
        assert_eq!(bytes, 100_000);
        assert!(body.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_late_and_nobody_takes_is_dropped() {
        let (send, receive) = mpsc::channel(1);
        let mut body = watched(Body::new(Events(receive)), PATIENCE, &parts(1));
        // Asked for, and not again when it is there: its client has closed the window meanwhile.
        assert!(tokio::time::timeout(PATIENCE * 10, body.frame()).await.is_err());
        send.send(Bytes::from_static(b"event")).await.unwrap();
        tokio::time::sleep(PATIENCE / 2).await;
        assert!(!send.is_closed());
        tokio::time::sleep(PATIENCE).await;
        assert!(send.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn events_may_be_long_in_coming() {
        let (send, receive) = mpsc::channel(1);
        let mut body = watched(Body::new(Events(receive)), PATIENCE, &parts(1));
        let read = tokio::spawn(async move { body.frame().await.unwrap().unwrap() });
        tokio::time::sleep(PATIENCE * 10).await;
        send.send(Bytes::from_static(b"event")).await.unwrap();
        assert_eq!(read.await.unwrap().into_data().unwrap(), "event");
    }
}

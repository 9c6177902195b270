//! Answers that take long: their caller's rights are asked about again as long as they last.
//!
//! A request's credential is checked when the request comes, and an answer may go on for hours. What makes such an answer
//! says how to ask again, from memory; when the answer is no, it ends with an error, so that no client takes a part for the
//! whole.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};

/// Time between two questions while nothing comes.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The caller may not have the rest of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", NoLongerAllowed::DETAIL)]
pub struct NoLongerAllowed;

impl NoLongerAllowed {
    /// Error text for the client.
    pub const DETAIL: &str =
        "the credential that asked for this, or its user's role, is no longer valid";
}

impl From<NoLongerAllowed> for std::io::Error {
    fn from(ended: NoLongerAllowed) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::PermissionDenied, ended)
    }
}

/// The same parts while `may_have` holds. It is asked before each part is looked up, again before that is sent, and every
/// second while none comes. `user` is for the log.
pub fn while_allowed<S, E, F>(
    user: &str,
    parts: S,
    may_have: F,
) -> impl Stream<Item = Result<Bytes, E>> + Send + 'static + use<S, E, F>
where
    F: Fn() -> bool + Send + 'static,
    S: Stream<Item = Result<Bytes, E>> + Send + Unpin + 'static,
    E: From<NoLongerAllowed> + Send + 'static,
{
    stream::unfold((Some(parts), may_have, user.to_owned()), |(parts, may_have, user)| async move {
        let mut parts = parts?;
        loop {
            if !may_have() {
                break;
            }
            let Ok(part) = tokio::time::timeout(ASK_EVERY, parts.next()).await else { continue };
            if !may_have() {
                break;
            }
            return Some((part?, (Some(parts), may_have, user)));
        }
        tracing::info!(user, "an answer was cut off: {}", NoLongerAllowed::DETAIL);
        Some((Err(NoLongerAllowed.into()), (None, may_have, user)))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    type Part = Result<Bytes, std::io::Error>;

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_with_an_error_when_its_caller_may_not_have_it_any_more() {
        let allowed = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&allowed);
        let endless = stream::repeat(()).map(|()| Part::Ok(Bytes::from_static(b"part")));
        let mut parts = Box::pin(while_allowed("ann", endless, move || asked.load(Relaxed)));
        assert_eq!(parts.next().await.unwrap().unwrap(), "part");
        allowed.store(false, Relaxed);
        let ended = parts.next().await.unwrap().unwrap_err();
        assert_eq!(ended.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(parts.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_while_nothing_comes() {
        let asked = AtomicBool::new(true);
        let silent = Box::pin(stream::pending::<Part>());
        let parts = while_allowed("ann", silent, move || asked.swap(false, Relaxed));
        let parts: Vec<Part> = parts.collect().await;
        assert!(matches!(&parts[..], [Err(_)]));
    }

    #[tokio::test]
    async fn an_answer_that_is_complete_has_no_error() {
        let whole = stream::iter([Part::Ok(Bytes::from_static(b"whole"))]);
        let parts: Vec<Part> = while_allowed("ann", whole, || true).collect().await;
        assert!(matches!(&parts[..], [Ok(_)]));
    }
}

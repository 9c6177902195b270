//! Logins by password in asynchronous handlers: [`Logins`] has their order, its limits and the threads that hash.
//!
//! A request that is cancelled leaves the queue.

use std::net::IpAddr;
use std::time::Duration;

use fulmar_broker::User;
use fulmar_broker::auth::{Admitted, Applicant, Decision, Logins, ReplyTo, WaitingLogin};
use fulmar_mqtt::ReasonCode;
use tokio::sync::oneshot;

/// Longest wait for a result.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Too many logins wait, or the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowded;

/// Checks a user's password, for a client at this address; `None` if it is wrong.
///
/// # Errors
/// There is no room, or it took too long.
pub async fn log_in(
    logins: &Logins,
    user: User,
    password: &str,
    from: IpAddr,
) -> Result<Option<Admitted>, Crowded> {
    let (send, reply) = oneshot::channel();
    let reply_to = || ReplyTo::new(move |reply| drop(send.send(reply)));
    let applicant = || Applicant { address: from, reply_to: reply_to() };
    let reply = match logins.check(user, password.as_bytes(), applicant) {
        Decision::Now(reply) => reply,
        Decision::Later(waiting) => result(waiting, reply).await?,
    };
    match reply {
        Ok(admitted) => Ok(Some(admitted)),
        Err(ReasonCode::ServerBusy) => Err(Crowded),
        Err(_) => Ok(None),
    }
}

/// Hashes for a user who has logged in, such as a new password.
///
/// # Errors
/// As for [`log_in`].
pub async fn hash<T: Send + 'static>(
    logins: &Logins,
    user: &User,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Crowded> {
    let (send, done) = oneshot::channel();
    let waiting = logins.work(user, move || drop(send.send(work())));
    result(waiting.ok_or(Crowded)?, done).await
}

async fn result<T>(waiting: WaitingLogin, result: oneshot::Receiver<T>) -> Result<T, Crowded> {
    // A login that is evicted drops its sender.
    let result = tokio::time::timeout(MAX_WAIT, result).await;
    drop(waiting);
    result.map_err(|_| Crowded)?.map_err(|_| Crowded)
}

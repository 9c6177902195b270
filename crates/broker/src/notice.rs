//! What the core has for a connection, carried to it by the transport without being looked at.

use crate::auth::AuthReply;
use crate::mailbox::{CloseOrder, Mail};
use crate::peer::Token;

/// News for one connection; pass it to [`crate::Connection::notice`].
#[derive(Debug)]
pub struct Notice(pub(crate) News);

#[derive(Debug)]
pub(crate) enum News {
    /// Its session has output, or it may read on.
    Ready,
    /// Something it waits for is durable.
    Durable,
    TakenOver,
    Expired,
    Overflowed,
    Close(CloseOrder),
    Recheck,
    Authenticated(AuthReply),
}

impl Notice {
    pub(crate) fn durable() -> Notice {
        Notice(News::Durable)
    }

    pub(crate) fn from_mail(mail: Mail) -> (Token, Notice) {
        let (token, news) = match mail {
            Mail::Ready(token) => (token, News::Ready),
            Mail::TakenOver(token) => (token, News::TakenOver),
            Mail::Expired(token) => (token, News::Expired),
            Mail::Overflowed(token) => (token, News::Overflowed),
            Mail::Close(token, order) => (token, News::Close(order)),
            Mail::Recheck(token) => (token, News::Recheck),
            Mail::Authenticated(token, reply) => (token, News::Authenticated(reply)),
        };
        (token, Notice(news))
    }
}

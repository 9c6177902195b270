//! The caller: the account of a request's token, and its role in the twin that the path names.
//!
//! Both are looked up when a request comes. What lasts longer, a body that is still being sent or an answer that goes on,
//! asks again ([`Member::still_is`]).
//!
//! To a user who is not a member of a twin, the twin does not exist, so that names of other twins do not leak.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use axum::extract::{ConnectInfo, FromRequestParts, RawPathParams};
use axum::http::header;
use axum::http::request::Parts;
use bytes::Bytes;
use fulmar_http::while_allowed;
use fulmar_identity::{NewEntry, parse_device_token};
use futures_util::Stream;
use serde_json::Value;

use super::account_cache::Account;
use crate::app::App;
use crate::in_hand::InHand;
use crate::problem::{Problem, Result};
use crate::role::{Deed, Role};
use crate::store::TwinTask;
use crate::text::Name;
use crate::time::Time;

/// The account that sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) account: Account,
    /// Identifier of the token.
    pub(crate) session: String,
    pub(crate) expires_at: Time,
    /// `None` inside the process.
    from: Option<IpAddr>,
}

impl Caller {
    /// An entry for the log of changes.
    pub(crate) fn change(&self, action: &'static str, object: &Name, detail: Value) -> NewEntry {
        let from = self.from.map_or_else(|| "local".to_owned(), |from| from.to_string());
        let (who, object) = (self.account.name.to_string(), object.to_string());
        NewEntry { who, from, action, object, detail: detail.to_string() }
    }

    /// The account as it is now; `None` once the token is not valid any more.
    fn account_now(&self, app: &App) -> Option<Account> {
        let is_good = app.account_cache.is_good(&self.session, Time::now());
        app.account_cache.account(&self.account.name).filter(|_| is_good)
    }

    /// Whether its token is still valid, and the account what it was.
    fn still_is(&self, app: &App) -> bool {
        let now = self.account_now(app);
        now.is_some_and(|now| now.server_admin == self.account.server_admin)
    }
}

impl App {
    /// Whose token this is, if it is good.
    pub(crate) fn caller(&self, token: &str, now: Time) -> Option<Caller> {
        if let Some((id, digest)) = parse_device_token(token) {
            let (account, until) = self.account_cache.credential(id, &digest, now)?;
            let expires_at = until.unwrap_or(Time::NEVER);
            return Some(Caller { account, session: id.to_owned(), expires_at, from: None });
        }
        let (session, expires_at) = self.signer.check(token, now)?;
        let account = self.account_cache.session(&session, now)?;
        Some(Caller { account, session, expires_at, from: None })
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Caller> {
        let shown = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = shown.and_then(|shown| shown.split_once(' '));
        let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some((_, token)) = token else {
            return Err(Problem::unauthorized("log in and send Authorization: Bearer TOKEN"));
        };
        let mut caller = app
            .caller(token.trim(), Time::now())
            .ok_or_else(|| Problem::unauthorized("invalid or expired token: log in again"))?;
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        caller.from = peer.map(|ConnectInfo(peer)| peer.ip().to_canonical());
        if let Some(in_hand) = parts.extensions.get::<InHand>() {
            let (app, asked_by) = (app.clone(), caller.clone());
            in_hand.asked_by(&caller.account.name, move || asked_by.still_is(&app));
        }
        app.requests
            .take_token(caller.account.name.clone(), Instant::now())
            .map_err(|seconds| Problem::too_often("too many requests of this account", seconds))?;
        Ok(caller)
    }
}

/// The caller as a member of the twin in the path.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) caller: Caller,
    pub(crate) twin: Name,
    pub(crate) role: Role,
}

impl FromRequestParts<App> for Member {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Member> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let params = RawPathParams::from_request_parts(parts, app).await;
        let params = params.map_err(|_| Problem::missing("address"))?;
        let named = params.iter().find(|(name, _)| *name == "twin").map(|(_, value)| value);
        let twin: Option<Name> = named.and_then(|value| value.parse().ok());
        let member = twin.and_then(|twin| {
            let role = app.account_cache.role(&caller.account, &twin)?;
            Some(Member { caller, twin, role })
        });
        let member = member.ok_or_else(|| Problem::missing("twin"))?;
        if let Some(in_hand) = parts.extensions.get::<InHand>() {
            let (app, asked_by) = (app.clone(), member.clone());
            in_hand.asked_by(member.name(), move || asked_by.still_is(&app));
        }
        Ok(member)
    }
}

impl Member {
    /// The account's name.
    pub(crate) fn name(&self) -> &Name {
        &self.caller.account.name
    }

    /// Runs `look` on the committed state of the member's twin; see [`crate::store::Store::read`].
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        app: &App,
        look: impl TwinTask<T>,
    ) -> Result<T> {
        let twin = self.twin.clone();
        app.store.read(move |db| look(db.within(&twin))).await
    }

    /// Changes something of the member's twin; see [`crate::store::Store::write`].
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        app: &App,
        change: impl TwinTask<T>,
    ) -> Result<T> {
        let twin = self.twin.clone();
        app.store.write(move |db| change(db.within(&twin))).await
    }

    /// Whether its token is still valid, and its role what it was.
    pub(crate) fn still_is(&self, app: &App) -> bool {
        let now = self.caller.account_now(app);
        now.and_then(|now| app.account_cache.role(&now, &self.twin)) == Some(self.role)
    }

    /// The parts of an answer to this member, while it is one: they count in the memory for answers.
    pub(crate) fn parts<S>(
        &self,
        app: &App,
        parts: S,
    ) -> impl Stream<Item = Result<Bytes>> + Send + 'static + use<S>
    where
        S: Stream<Item = Result<Bytes>> + Send + 'static,
    {
        let (asked_by, asked) = (self.clone(), app.clone());
        let parts = while_allowed(self.name(), Box::pin(parts), move || asked_by.still_is(&asked));
        app.settings.answers.parts(self.name(), Box::pin(parts))
    }

    /// Whether the member's role allows this.
    pub(crate) fn may(&self, deed: Deed) -> Result<()> {
        if self.role.may(deed) {
            return Ok(());
        }
        Err(Problem::forbidden(match deed {
            Deed::Administer => "requires the role admin",
            Deed::Manage => "requires the role office or admin",
            Deed::Read => "requires the role reader, office or admin",
            Deed::Report => "requires the role viewer, office or admin",
            _ => "your role in this twin does not allow this",
        }))
    }
}

/// A call of the API by a member of the twin in the path.
pub(crate) struct Call(pub(crate) App, pub(crate) Member);

impl FromRequestParts<App> for Call {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Call> {
        Ok(Call(app.clone(), Member::from_request_parts(parts, app).await?))
    }
}

/// The names in the path after the twin.
pub(crate) struct Ids<const N: usize>(pub(crate) [Name; N]);

impl<const N: usize> FromRequestParts<App> for Ids<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let nothing = || Problem::missing("address");
        let params = RawPathParams::from_request_parts(parts, app).await.map_err(|_| nothing())?;
        let named = params.iter().filter(|(name, _)| *name != "twin");
        let names: Option<Vec<Name>> = named.map(|(_, value)| value.parse().ok()).collect();
        // Text that is not a valid name names nothing.
        let names = names.and_then(|names| <[Name; N]>::try_from(names).ok());
        names.map(Ids).ok_or_else(nothing)
    }
}

/// The name in the path after the twin, where there is one.
pub(crate) struct Id(pub(crate) Name);

impl FromRequestParts<App> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        Ids::<1>::from_request_parts(parts, app).await.map(|Ids([id])| Id(id))
    }
}

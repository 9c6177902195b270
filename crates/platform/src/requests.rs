//! Requests of a twin's members, by what they consist of besides the caller.
//!
//! Parts are read in this order: a body only when its sender is known.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::accounts::caller::{Call, Id, Member};
use crate::app::App;
use crate::extract::{Body, Params};
use crate::problem::{Problem, Result};
use crate::respond::Conditions;
use crate::text::Name;

/// A request for a list or a report, which has filters.
pub(crate) struct Lookup<Q>(pub(crate) App, pub(crate) Member, pub(crate) Q, pub(crate) Conditions);

impl<Q: DeserializeOwned + Send> FromRequestParts<App> for Lookup<Q> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let Call(_, member) = Call::from_request_parts(parts, app).await?;
        let Params(query) = Params::from_request_parts(parts, app).await?;
        let conditions = Conditions::from_request_parts(parts, app).await?;
        Ok(Lookup(app.clone(), member, query, conditions))
    }
}

/// A request about the one thing of this name, which may have to be what the client has seen.
pub(crate) struct Single(pub(crate) App, pub(crate) Member, pub(crate) Name, pub(crate) Conditions);

impl FromRequestParts<App> for Single {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let Call(_, member) = Call::from_request_parts(parts, app).await?;
        let Id(id) = Id::from_request_parts(parts, app).await?;
        let conditions = Conditions::from_request_parts(parts, app).await?;
        Ok(Single(app.clone(), member, id, conditions))
    }
}

/// The same with a body.
pub(crate) struct Edit<T>(
    pub(crate) App,
    pub(crate) Member,
    pub(crate) Name,
    pub(crate) Conditions,
    pub(crate) T,
);

impl<T: DeserializeOwned> FromRequest<App> for Edit<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let (mut parts, body) = request.into_parts();
        let Single(app, member, id, conditions) =
            Single::from_request_parts(&mut parts, app).await?;
        let Body::<T>(body) = Body::from_request(Request::from_parts(parts, body), &app).await?;
        Ok(Edit(app, member, id, conditions, body))
    }
}

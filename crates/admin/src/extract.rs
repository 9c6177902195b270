//! Queries, bodies and path parameters, with errors as problem details.

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Query as AxumQuery, RawPathParams, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::caller::AskedBy;
use crate::problem::{Problem, Result};

/// Largest body of a request, in bytes.
const MAX_BODY_BYTES: usize = 256 << 10;

pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Query<T>> {
        let query = AxumQuery::<T>::try_from_uri(&parts.uri);
        query.map(|query| Query(query.0)).map_err(|error| Problem::malformed(error.body_text()))
    }
}

/// A JSON body, of a request or of the answer.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &App) -> Result<Json<T>> {
        let asked_by = request.extensions().get::<AskedBy>().cloned().unwrap_or_default();
        let json = body(request.into_body()).await.map(Json)?;
        asked_by.ask_again()?;
        Ok(json)
    }
}

/// A JSON body.
pub(crate) async fn body<T: DeserializeOwned>(sent: Body) -> Result<T> {
    let bytes: Bytes = to_bytes(sent, MAX_BODY_BYTES)
        .await
        .map_err(|_| Problem::malformed(format!("the body exceeds {MAX_BODY_BYTES} bytes")))?;
    let value = serde_json::from_slice(&bytes);
    value.map_err(|error| Problem::malformed(format!("the body: {error}")))
}

/// The only parameter of a path, percent-decoded.
pub(crate) struct Name(pub(crate) String);

impl FromRequestParts<App> for Name {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Name> {
        let params = RawPathParams::from_request_parts(parts, app).await;
        let params = params.map_err(|_| Problem::malformed("the path is not UTF-8"))?;
        let first = params.iter().next().map(|(_, value)| Name(value.to_owned()));
        first.ok_or_else(|| Problem::not_found("there is nothing at this address"))
    }
}

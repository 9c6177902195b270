//! The paths of the API, and the OpenAPI document that lists them: both from the same list.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use fulmar_http::compress;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::caller::AskedBy;
use crate::openapi::{self, PREFIX};
use crate::problem::Problem;
use crate::{
    audit, backup, bans, clients, explain, groups, log, overview, retained, roles, sessions, tap,
    topics, users, web_session,
};

fn api() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(overview::me))
        .routes(routes!(web_session::begin, web_session::end))
        .routes(routes!(overview::show))
        .routes(routes!(overview::show_history))
        .routes(routes!(clients::list))
        .routes(routes!(clients::show, clients::disconnect))
        .routes(routes!(bans::list, bans::add))
        .routes(routes!(bans::lift))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::show, sessions::delete))
        .routes(routes!(retained::list))
        .routes(routes!(retained::show, retained::delete))
        .routes(routes!(topics::list))
        .routes(routes!(explain::explain))
        .routes(routes!(tap::tap))
        .routes(routes!(log::show, log::change))
        .routes(routes!(audit::list))
        .routes(routes!(backup::backup))
        .routes(routes!(groups::list, groups::add))
        .routes(routes!(groups::show, groups::change, groups::remove))
        .routes(routes!(roles::list, roles::add))
        .routes(routes!(roles::show, roles::remove))
        .routes(routes!(roles::add_rule, roles::remove_rule))
        .routes(routes!(users::tokens, users::add_token))
        .routes(routes!(users::remove_token))
        .routes(routes!(users::users, users::add_user))
        .routes(routes!(users::user, users::change_user, users::remove_user))
}

/// Everything the API answers.
pub(crate) fn router(app: App) -> Router {
    let base = OpenApiRouter::with_openapi(openapi::Document::openapi());
    let (api, document) = base.nest(PREFIX, api()).split_for_parts();
    let document = openapi::finish(document);
    let nothing = || async { Problem::not_found("there is nothing at this address") };
    Router::new()
        .merge(api)
        .layer(from_fn(compress))
        .layer(from_fn_with_state(app.clone(), count))
        .merge(fulmar_http::openapi::route(PREFIX, &document))
        .route("/api/admin/{*rest}", any(nothing))
        .method_not_allowed_fallback(|| async { Problem::method() })
        .layer(map_response(not_kept))
        .with_state(app)
}

/// Counts what answers a request until it is taken, as its caller's. Taps and backups have no size, and are few.
async fn count(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let asked_by = AskedBy::default();
    request.extensions_mut().insert(asked_by.clone());
    let response = next.run(request).await;
    let Some(name) = asked_by.name() else { return response };
    // No user of the platform, which has accounts in the same space, has such a name.
    let counted = app.answers.count(&format!("admin:{name}"), response);
    counted.unwrap_or_else(|refused| Problem::unavailable(refused.to_string()).into_response())
}

/// No response may be kept by a cache: all are about one caller and one moment.
async fn not_kept(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

//! The handlers of all addresses, and the OpenAPI document that lists them.
//!
//! Routes and document come from the same list, so that neither can have what the other has not.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use fulmar_http::compress;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::accounts::{sessions, users};
use crate::app::App;
use crate::in_hand::InHand;
use crate::openapi::PREFIX;
use crate::problem::Problem;
use crate::{
    alerts, devices, frames, homes, measurements, meters, openapi, photos, readings, reports,
    sensors, series, twins, work_lists,
};

fn api() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sessions::log_in, sessions::show, sessions::log_out))
        .routes(routes!(sessions::log_out_of_twin))
        .routes(routes!(twins::handlers::list, twins::handlers::add))
        .routes(routes!(twins::handlers::show))
        .routes(routes!(users::list, users::add))
        .routes(routes!(users::change, users::remove))
        .routes(routes!(meters::handlers::list, meters::handlers::add))
        .routes(routes!(meters::handlers::show, meters::handlers::change))
        .routes(routes!(meters::handlers::set_key))
        .routes(routes!(meters::handlers::exchanges, meters::handlers::enter_exchange))
        .routes(routes!(meters::handlers::withdraw_exchange))
        .routes(routes!(reports::handlers::consumption))
        .routes(routes!(reports::handlers::progress))
        .routes(routes!(reports::handlers::missed))
        .routes(routes!(reports::handlers::leaks))
        .routes(routes!(reports::export::csv))
        .routes(routes!(reports::export::xlsx))
        .routes(routes!(work_lists::handlers::list, work_lists::handlers::add))
        .routes(routes!(work_lists::handlers::show, work_lists::handlers::change))
        .routes(routes!(readings::handlers::list, readings::handlers::add))
        .routes(routes!(readings::handlers::show, readings::corrections::change))
        .routes(routes!(readings::corrections::resolve))
        .routes(routes!(readings::corrections::trail))
        .routes(routes!(photos::show, photos::put))
        .routes(routes!(frames::handlers::add))
        .routes(routes!(devices::handlers::list))
        .routes(routes!(devices::handlers::show, devices::handlers::put))
        .routes(routes!(devices::handlers::commands))
        // A command's name is given with POST, its id with PATCH.
        .routes(routes!(devices::handlers::give_command, devices::handlers::change_command))
        .routes(routes!(devices::handlers::telemetry, devices::handlers::add_telemetry))
        .merge(monitoring())
}

/// Homes and what is measured there.
fn monitoring() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(homes::handlers::list, homes::handlers::add))
        .routes(routes!(homes::handlers::show, homes::handlers::change, homes::handlers::remove))
        .routes(routes!(sensors::handlers::list))
        .routes(routes!(sensors::handlers::show, sensors::handlers::put, sensors::removal::remove))
        .routes(routes!(measurements::handlers::add))
        .routes(routes!(series::handlers::show))
        .routes(routes!(series::export::csv))
        .routes(routes!(series::export::xlsx))
        .routes(routes!(alerts::rules::list, alerts::rules::add))
        .routes(routes!(alerts::rules::show, alerts::rules::change, alerts::rules::remove))
        .routes(routes!(alerts::handlers::list))
        .routes(routes!(alerts::handlers::show))
        .routes(routes!(alerts::handlers::acknowledge))
        .routes(routes!(alerts::webhooks::list, alerts::webhooks::add))
        .routes(routes!(alerts::webhooks::remove))
}

/// The addresses without a prefix that the study's app calls.
fn study() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(work_lists::handlers::list))
        .routes(routes!(work_lists::handlers::change))
        .routes(routes!(devices::handlers::give_command))
        .routes(routes!(sessions::log_out_of_twin))
}

/// Everything the platform answers.
pub(crate) fn router(app: App) -> Router {
    let base = OpenApiRouter::with_openapi(openapi::Document::openapi());
    let (api, document) = base.nest(PREFIX, api()).split_for_parts();
    let (study, study_document) = study().split_for_parts();
    let document = openapi::finish(document, study_document);
    Router::new()
        .merge(api)
        .merge(study)
        .layer(from_fn(compress))
        .layer(from_fn_with_state(app.clone(), hold))
        .merge(fulmar_http::openapi::route(PREFIX, &document))
        // Pages are behind every other address; here is nothing but the API.
        .route("/api/{*rest}", any(|| async { Problem::missing("address") }))
        .method_not_allowed_fallback(|| async { Problem::method() })
        .with_state(app)
}

/// Gives each request an [`InHand`], and counts what answers it until that is taken
/// ([`AnswerSpace`](fulmar_http::AnswerSpace)).
async fn hold(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let in_hand = InHand::new(&app.turns);
    request.extensions_mut().insert(in_hand.clone());
    let response = next.run(request).await;
    let Some(account) = in_hand.account() else { return response };
    let counted = app.settings.answers.count(account, response);
    counted.unwrap_or_else(|refused| Problem::from(refused).into_response())
}

//! The OpenAPI document: generated from the handlers, and completed with what all operations have in common.

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::get;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder, SecurityRequirement};

use crate::app::App;
use crate::problem::Problem;

/// The path of the API.
pub const PREFIX: &str = "/api/admin/v1";

/// Path behind [`PREFIX`], at the administration socket, of what changes the platform.
pub const PLATFORM_COMMANDS: &str = "/platform";

/// The document's general information.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Fulmar administration",
        description = "Clients, sessions and messages of a broker. docs/administration.md has examples."
    ),
    components(schemas(Problem))
)]
pub(crate) struct Document;

/// Responses that any request may get.
const PROBLEMS: [(u16, &str); 10] = [
    (400, "The request cannot be understood"),
    (401, "Credentials are missing or wrong"),
    (403, "The role does not allow this"),
    (404, "It does not exist"),
    (405, "The address does not support this method"),
    (409, "The state does not allow this"),
    (422, "A value is invalid"),
    (425, "Not in early data: send it again after the handshake"),
    (429, "Too many requests: wait for Retry-After seconds"),
    (503, "The server cannot do this now: wait for Retry-After seconds"),
];

/// Adds what all operations have in common.
pub(crate) fn finish(mut document: OpenApi) -> OpenApi {
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    document.info.license = None;
    for (path, item) in &mut document.paths.paths {
        let PathItem { get, put, post, delete, patch, .. } = item;
        for operation in [get, put, post, delete, patch].into_iter().flatten() {
            complete(path, operation);
        }
    }
    if let Some(components) = &mut document.components {
        let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("token", SecurityScheme::Http(token));
        let password = HttpBuilder::new().scheme(HttpAuthScheme::Basic).build();
        components.add_security_scheme("password", SecurityScheme::Http(password));
    }
    let one = |name| SecurityRequirement::new(name, Vec::<String>::new());
    document.security = Some(vec![one("token"), one("password")]);
    document
}

fn complete(path: &str, operation: &mut Operation) {
    // The path distinguishes handlers of the same name.
    let subject =
        path.trim_start_matches(PREFIX).replace(['{', '}'], "").replace(['/', '.', '-'], "_");
    let id = operation.operation_id.take().unwrap_or_default();
    operation.operation_id = Some(format!("{id}{subject}"));
    for (status, description) in PROBLEMS {
        let problem = RefOr::from(Ref::from_schema_name("Problem"));
        let content = ContentBuilder::new().schema(Some(problem)).build();
        let response = ResponseBuilder::new().description(description);
        let response = response.content("application/problem+json", content).build();
        let responses = &mut operation.responses.responses;
        responses.entry(status.to_string()).or_insert_with(|| response.into());
    }
}

/// The route that serves the document, to everybody: it has no secrets.
pub(crate) fn route(document: &OpenApi) -> Router<App> {
    // It consists of strings and numbers, so it always has a JSON form.
    // Responses share its bytes: clients that do not read theirs must not make the server keep a copy for each.
    let text = Bytes::from(document.to_json().unwrap_or_default());
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")];
    Router::new()
        .route(&format!("{PREFIX}/openapi.json"), get(move || async move { (headers, text) }))
}

//! The OpenAPI document: generated from the handlers, and completed with the parts common to all operations.

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::get;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, OpenApi, Ref, RefOr, Required, ResponseBuilder, SecurityRequirement,
};

use crate::app::App;
use crate::problem::Problem;

/// The path of the API.
pub(crate) const PREFIX: &str = "/api/v1";

/// The document's general information.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Fulmar platform",
        description = "Meters, work lists and readings of utilities. Live updates are MQTT topics under \
                       fulmar/TWIN; docs/platform.md has examples."
    ),
    components(schemas(Problem))
)]
pub(crate) struct Document;

/// Responses that any request may get.
const PROBLEMS: [(u16, &str); 15] = [
    (304, "Nothing changed since the ETag in If-None-Match"),
    (400, "The request cannot be understood"),
    (401, "No user is logged in"),
    (403, "The role does not allow this"),
    (404, "It does not exist, or not for this user"),
    (405, "The address does not support this method"),
    (409, "It already exists with other contents"),
    (412, "It changed since the ETag in If-Match"),
    (413, "More than is accepted at once"),
    (415, "A type of content that is not accepted"),
    (422, "A value is invalid"),
    (425, "Not in early data: send it again after the handshake"),
    (429, "Too many requests: wait for Retry-After seconds"),
    (503, "The server cannot store or read now: wait for Retry-After seconds"),
    (507, "The disk, or the budget for it, is used up"),
];

/// Adds the short addresses of the meter-reading study's app, and the parts common to all operations.
pub(crate) fn finish(mut document: OpenApi, study: OpenApi) -> OpenApi {
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    document.info.license = None;
    for (path, mut item) in study.paths.paths {
        for operation in operations(&mut item) {
            let id = operation.operation_id.take().unwrap_or_default();
            operation.operation_id = Some(format!("study_{id}"));
        }
        document.paths.paths.insert(path, item);
    }
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            complete(path, operation);
        }
    }
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
    if let Some(components) = &mut document.components {
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
    }
    document.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, patch, .. } = item;
    [get, put, post, delete, patch].into_iter().flatten()
}

fn complete(path: &str, operation: &mut Operation) {
    // The folder distinguishes handlers of the same name.
    let subject = path.trim_start_matches(PREFIX).replace(['{', '}'], "").replace(['/', '.'], "_");
    let id = operation.operation_id.take().unwrap_or_default();
    operation.operation_id = Some(format!("{id}{subject}"));
    let declared = operation.parameters.take().unwrap_or_default();
    let is_declared = |name: &str| {
        let is_it = |parameter: &RefOr<Parameter>| matches!(parameter, RefOr::T(parameter) if parameter.name == name);
        declared.iter().any(is_it)
    };
    let names = path.split(['{', '}']).skip(1).step_by(2).filter(|name| !is_declared(name));
    let mut parameters: Vec<_> = names.map(|name| name_in_path(name).into()).collect();
    parameters.extend(declared);
    operation.parameters = Some(parameters).filter(|parameters| !parameters.is_empty());
    for (status, description) in PROBLEMS {
        let problem = RefOr::from(Ref::from_schema_name("Problem"));
        let content = ContentBuilder::new().schema(Some(problem)).build();
        let response = ResponseBuilder::new().description(description);
        let response = match status {
            304 => response,
            _ => response.content("application/problem+json", content),
        };
        let responses = &mut operation.responses.responses;
        responses.entry(status.to_string()).or_insert_with(|| response.build().into());
    }
}

/// Parts of paths where handlers do not declare something else.
fn name_in_path(name: &str) -> Parameter {
    let path = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path);
    path.required(Required::True).schema(Some(Ref::from_schema_name("Name"))).build()
}

/// The route that serves the document.
pub(crate) fn route(document: &OpenApi) -> Router<App> {
    // It consists of strings and numbers, so it always has a JSON form.
    // Responses share its bytes: clients that do not read theirs must not make the server keep a copy for each.
    let text = Bytes::from(document.to_json().unwrap_or_default());
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")];
    Router::new()
        .route(&format!("{PREFIX}/openapi.json"), get(move || async move { (headers, text) }))
}

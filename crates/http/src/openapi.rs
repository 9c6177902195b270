//! Parts that the OpenAPI documents of all APIs have in common.

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::get;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder};

/// The operations of a path.
pub fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, patch, .. } = item;
    [get, put, post, delete, patch].into_iter().flatten()
}

/// Adds the version, identifiers of operations that contain their path behind `prefix`, because handlers may have the same
/// name, and responses that any request may get: problems, except for 304.
pub fn complete(document: &mut OpenApi, prefix: &str, responses: &[(u16, &str)]) {
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    document.info.license = None;
    for (path, item) in &mut document.paths.paths {
        let subject = path.trim_start_matches(prefix).replace(['{', '}'], "");
        let subject = subject.replace(['/', '.', '-'], "_");
        for operation in operations(item) {
            let id = operation.operation_id.take().unwrap_or_default();
            operation.operation_id = Some(format!("{id}{subject}"));
            for (status, description) in responses {
                let problem = RefOr::from(Ref::from_schema_name("Problem"));
                let content = ContentBuilder::new().schema(Some(problem)).build();
                let response = ResponseBuilder::new().description(*description);
                let response = match status {
                    304 => response,
                    _ => response.content("application/problem+json", content),
                };
                let all = &mut operation.responses.responses;
                all.entry(status.to_string()).or_insert_with(|| response.build().into());
            }
        }
    }
}

/// The route below `prefix` that serves the document, to everybody: it has no secrets.
pub fn route<S: Clone + Send + Sync + 'static>(prefix: &str, document: &OpenApi) -> Router<S> {
    // It consists of strings and numbers, so it always has a JSON form.
    // Responses share its bytes: clients that do not read theirs must not make the server keep a copy for each.
    let text = Bytes::from(document.to_json().unwrap_or_default());
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")];
    Router::new()
        .route(&format!("{prefix}/openapi.json"), get(move || async move { (headers, text) }))
}

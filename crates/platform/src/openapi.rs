//! The OpenAPI document: generated from the handlers, and completed with the parts common to all operations.

use fulmar_http::openapi::{complete, operations};
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{OpenApi, Ref, RefOr, Required, SecurityRequirement};

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
    for (path, mut item) in study.paths.paths {
        for operation in operations(&mut item) {
            let id = operation.operation_id.take().unwrap_or_default();
            operation.operation_id = Some(format!("study_{id}"));
        }
        document.paths.paths.insert(path, item);
    }
    complete(&mut document, PREFIX, &PROBLEMS);
    for (path, item) in &mut document.paths.paths {
        operations(item).for_each(|operation| declare_names(path, operation));
    }
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
    if let Some(components) = &mut document.components {
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
    }
    document.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
    document
}

/// Declares the parts of a path where the handler does not declare something else.
fn declare_names(path: &str, operation: &mut Operation) {
    let declared = operation.parameters.take().unwrap_or_default();
    let is_declared = |name: &str| {
        let is_it = |parameter: &RefOr<Parameter>| matches!(parameter, RefOr::T(parameter) if parameter.name == name);
        declared.iter().any(is_it)
    };
    let names = path.split(['{', '}']).skip(1).step_by(2).filter(|name| !is_declared(name));
    let mut parameters: Vec<_> = names.map(|name| name_in_path(name).into()).collect();
    parameters.extend(declared);
    operation.parameters = Some(parameters).filter(|parameters| !parameters.is_empty());
}

fn name_in_path(name: &str) -> Parameter {
    let path = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path);
    path.required(Required::True).schema(Some(Ref::from_schema_name("Name"))).build()
}

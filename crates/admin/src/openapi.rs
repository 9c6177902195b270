//! The OpenAPI document: generated from the handlers, and completed with what all operations have in common.

use fulmar_http::openapi::complete;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{OpenApi, SecurityRequirement};

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
    complete(&mut document, PREFIX, &PROBLEMS);
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

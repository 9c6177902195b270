//! What an account is in a twin, as users see it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::role::Role;
use crate::text::Name;
use crate::twins::types::TwinKind;

/// Role of an account in a twin.
#[derive(Serialize, ToSchema)]
pub(crate) struct Membership {
    pub(crate) id: Name,
    pub(crate) name: String,
    pub(crate) kind: TwinKind,
    pub(crate) role: Role,
}

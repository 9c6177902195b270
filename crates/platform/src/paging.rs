//! How much of a list is asked for at once.

use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::problem::Problem;

/// Items of a page, unless it says otherwise.
const USUAL: usize = 100;
/// Items of a page at most, unless the list allows more.
pub(crate) const MOST: usize = 1000;

/// Order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// The oldest.
    #[default]
    Asc,
    /// The newest.
    Desc,
}

/// Page that is requested.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub(crate) limit: Option<usize>,
    /// `next` of the previous page.
    pub(crate) cursor: Option<String>,
}

/// The limit, if it is one.
pub(crate) fn limit(asked: Option<usize>, most: usize) -> Result<usize, Problem> {
    let limit = asked.unwrap_or(USUAL);
    if (1..=most).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::invalid("limit", format!("expected 1 to {most}")))
}

//! How much of a list is asked for at once.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::problem::{Problem, Result};

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

/// Declares the query of a list: its filters, each of which may be absent, and the page, of at most `$most` items.
macro_rules! page_query {
    ($(#[$($about:tt)*])* $name:ident, $most:tt { $($(#[$($attribute:tt)*])* $filter:ident: $type:ident),* $(,)? }) => {
        $(#[$($about)*])*
        #[derive(Clone, Debug, Default, serde::Deserialize, utoipa::IntoParams)]
        #[serde(deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        pub(crate) struct $name {
            $($(#[$($attribute)*])* pub(crate) $filter: Option<$type>,)*
            /// Maximum number of items.
            #[param(minimum = 1, maximum = $most, default = 100)]
            pub(crate) limit: Option<usize>,
            /// `next` of the previous page.
            pub(crate) cursor: Option<String>,
        }
    };
}
pub(crate) use page_query;

page_query! {
    /// Page that is requested.
    PageQuery, 1000 {}
}

/// The limit, if it is one.
pub(crate) fn limit(asked: Option<usize>, most: usize) -> Result<usize> {
    let limit = asked.unwrap_or(USUAL);
    if (1..=most).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::invalid("limit", format!("expected 1 to {most}")))
}

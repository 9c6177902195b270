//! What the lists have in common: options, the request for all pages, and the table.

use crate::api::{Api, encode};
use crate::table::{self, Column};

/// Extent of a list.
#[derive(clap::Args, Debug)]
pub(crate) struct ListArgs {
    /// Maximum number to list
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    most: usize,
}

/// Whose clients or sessions, and those with how much in their queues.
#[derive(clap::Args, Debug)]
pub(crate) struct OwnerArgs {
    /// Only those of this user; "" for anonymous clients
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Only those with at least this number of queued messages
    #[arg(long, value_name = "MESSAGES")]
    queued: Option<usize>,
}

impl OwnerArgs {
    /// Both as parameters of a query.
    pub(crate) fn parameters(&self) -> [(&'static str, Option<String>); 2] {
        [("user", self.user.clone()), ("queued", self.queued.map(|queued| queued.to_string()))]
    }
}

/// Requests the list at `/NAME` in all its pages, and prints it. Parameters without a value are left out.
pub(crate) async fn print(
    api: &Api,
    path: &str,
    name: &str,
    parameters: impl IntoIterator<Item = (&'static str, Option<String>)>,
    args: &ListArgs,
    columns: &[Column],
) -> anyhow::Result<()> {
    let parameters = parameters.into_iter();
    let given = parameters.filter_map(|(name, value)| Some(format!("{name}={}", encode(&value?))));
    let query: Vec<String> = given.collect();
    let items = api.pages(&format!("{path}?{}", query.join("&")), name, args.most).await?;
    api.print(&items, |items| table::rows(items, columns));
    Ok(())
}

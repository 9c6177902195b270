//! Lists with pages: `limit` and `cursor` of every list, and what fills a page.

use std::io;
use std::str::FromStr;

use axum::extract::{FromRequestParts, Query as AxumQuery};
use axum::http::Uri;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use crate::app::App;
use crate::problem::{Problem, Result};

/// Items of a page, unless the request says otherwise.
const DEFAULT_LIMIT: usize = 100;
/// Items of a page at most.
pub(crate) const MAX_LIMIT: usize = 1000;
/// Bytes of a page: it ends with the item that makes it so large.
pub(crate) const MAX_PAGE_BYTES: usize = 256 * 1024;
/// Items that are looked at before a page ends, even if it is not full.
const MAX_EXAMINED: usize = 20_000;
/// Items that are looked at at once.
pub(crate) const SLICE: usize = 256;

/// Page that is requested.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

impl PageQuery {
    /// The size of the page.
    pub(crate) fn limit(&self) -> Result<usize> {
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        if (1..=MAX_LIMIT).contains(&limit) {
            return Ok(limit);
        }
        Err(Problem::invalid("limit", format!("expected 1 to {MAX_LIMIT}")))
    }

    /// Behind which item the page begins.
    pub(crate) fn cursor<C: FromStr>(&self) -> Result<Option<C>> {
        let Some(text) = &self.cursor else { return Ok(None) };
        let wrong = |_| Problem::malformed("cursor: expected `next` of the previous page");
        text.parse().map(Some).map_err(wrong)
    }
}

/// No filter: all items of a list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Everything {}

/// The query of a list: the page, and which items.
pub(crate) struct Paged<T> {
    pub(crate) page: PageQuery,
    pub(crate) wanted: T,
}

impl<T: DeserializeOwned> FromRequestParts<App> for Paged<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Paged<T>> {
        // serde cannot refuse unknown fields of two types that share a query.
        let pairs = parts.uri.query().unwrap_or_default().split('&');
        let (page, wanted): (Vec<&str>, Vec<&str>) =
            pairs.partition(|pair| pair.starts_with("limit=") || pair.starts_with("cursor="));
        Ok(Paged { page: parsed(&page)?, wanted: parsed(&wanted)? })
    }
}

fn parsed<T: DeserializeOwned>(pairs: &[&str]) -> Result<T> {
    let uri: Result<Uri, _> = format!("/?{}", pairs.join("&")).parse();
    let uri = uri.map_err(|_| Problem::malformed("the query is malformed"))?;
    let query = AxumQuery::<T>::try_from_uri(&uri);
    query.map(|query| query.0).map_err(|error| Problem::malformed(error.body_text()))
}

/// Items of a list in its order.
pub(crate) struct Slice<I, C> {
    pub(crate) items: Vec<I>,
    /// Behind which item the next slice begins; `None` at the list's end.
    pub(crate) next: Option<C>,
}

impl<I, C> Slice<I, C> {
    /// One that was asked for with [`SLICE`]: a shorter one is the last.
    pub(crate) fn from_items(items: Vec<I>, cursor: impl Fn(&I) -> C) -> Slice<I, C> {
        let next = items.last().filter(|_| items.len() >= SLICE).map(cursor);
        Slice { items, next }
    }
}

/// Counts what is written.
struct ByteCounter(usize);

impl io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Number of bytes that this is of a response.
fn bytes_of(item: &impl Serialize) -> usize {
    let mut counted = ByteCounter(0);
    match serde_json::to_writer(&mut counted, item) {
        Ok(()) => counted.0,
        // The response will have the same error.
        Err(_) => 0,
    }
}

/// The first of these items, as many as a page may have in bytes.
pub(crate) fn fitting<T: Serialize>(items: impl Iterator<Item = T>) -> Vec<T> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    for item in items {
        bytes += bytes_of(&item);
        page.push(item);
        if bytes >= MAX_PAGE_BYTES {
            break;
        }
    }
    page
}

/// Fills a page with at most `most` items and about [`MAX_PAGE_BYTES`], and returns it with the next page's cursor.
/// `slice` returns the items behind
/// a cursor, `cursor` that of an item, and `show` the item as the page shows it, if it is wanted.
pub(crate) async fn fill<I, T: Serialize, C>(
    most: usize,
    from: C,
    mut slice: impl FnMut(&C) -> Slice<I, C>,
    cursor: impl Fn(&I) -> C,
    show: impl Fn(I) -> Option<T>,
) -> (Vec<T>, Option<C>) {
    let (mut page, mut after, mut examined, mut bytes) = (Vec::new(), from, 0, 0);
    loop {
        let Slice { items, next } = slice(&after);
        examined += SLICE;
        for item in items {
            if page.len() >= most || bytes >= MAX_PAGE_BYTES {
                return (page, Some(after));
            }
            after = cursor(&item);
            let shown = show(item);
            bytes += shown.as_ref().map_or(0, bytes_of);
            page.extend(shown);
        }
        let Some(next) = next else { return (page, None) };
        after = next;
        if examined >= MAX_EXAMINED {
            return (page, Some(after));
        }
        // Other requests and MQTT inside HTTP have the same thread.
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn page(
        list: usize,
        most: usize,
        from: usize,
        every: usize,
    ) -> (Vec<usize>, Option<usize>) {
        let slice = |after: &usize| {
            Slice::from_items((after + 1..=list).take(SLICE).collect(), |item| *item)
        };
        let show = |item: usize| item.is_multiple_of(every).then_some(item);
        fill(most, from, slice, |item| *item, show).await
    }

    #[tokio::test]
    async fn pages_have_all_items_once() {
        for (list, most, every) in
            [(0, 1, 1), (256, 256, 1), (257, 256, 1), (1000, 7, 3), (60_000, 5, 30_000)]
        {
            let (mut all, mut from, mut pages) = (Vec::new(), 0, 0);
            loop {
                let (items, next) = page(list, most, from, every).await;
                assert!(items.len() <= most);
                all.extend(items);
                pages += 1;
                assert!(pages <= 1000, "no end");
                let Some(next) = next else { break };
                from = next;
            }
            let expected: Vec<usize> =
                (1..=list).filter(|item| item.is_multiple_of(every)).collect();
            assert_eq!(all, expected, "{list} {most} {every}");
        }
    }

    #[test]
    fn what_is_too_long_for_a_page_is_left_out() {
        let all = (0..1000).map(|number| format!("{number}{}", "x".repeat(100_000)));
        assert_eq!(fitting(all.clone()), all.take(3).collect::<Vec<_>>());
        assert_eq!(fitting(0..1000), (0..1000).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_page_ends_although_nothing_is_wanted() {
        let (items, next) = page(1_000_000, 10, 0, 2_000_000).await;
        assert!(
            items.is_empty() && next.is_some_and(|next| next <= MAX_EXAMINED + SLICE),
            "{next:?}"
        );
    }
}

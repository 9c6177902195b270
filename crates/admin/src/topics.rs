//! Retained topics as a tree: the levels below a topic, without what is below those.
//!
//! Topics are in order, so that everything below a level is passed over at once.

use std::collections::BTreeMap;

use crate::page::MAX_PAGE_BYTES;
use crate::prelude::*;
use crate::topic_cursor;

/// Topics that are looked up between two pauses.
const SLICE: usize = 64;

/// Filter of levels.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TopicQuery {
    /// The topic whose next levels are wanted; absent for the first levels.
    under: Option<String>,
}

/// A level.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Level {
    /// The level alone; it may be empty.
    level: String,
    /// The whole topic up to this level.
    topic: String,
    /// Whether this topic has a retained message.
    has_message: bool,
    /// Whether there are topics below.
    has_levels: bool,
}

/// A page of levels, by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct Levels {
    levels: Vec<Level>,
    /// The next page's `cursor`; absent on the last page. A level may be on two pages: once for its message, once for
    /// what is below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// The smallest topic that is greater.
fn after(topic: &str) -> String {
    format!("{topic}\0")
}

/// Collects levels from topics, and says where the next topic of interest may be.
struct Collected {
    /// The topic with its separator; empty for the first levels.
    prefix: String,
    levels: BTreeMap<String, (bool, bool)>,
    /// Bytes of the levels as they are shown.
    bytes: usize,
}

impl Collected {
    fn below(prefix: String) -> Collected {
        Collected { prefix, levels: BTreeMap::new(), bytes: 0 }
    }

    /// The first topic from which on to look after this one; `None` if it is not below the prefix.
    fn add(&mut self, topic: &str) -> Option<String> {
        let known = self.levels.len();
        let next = self.add_level(topic)?;
        if self.levels.len() > known {
            let level = topic[self.prefix.len()..].split('/').next().unwrap_or_default();
            self.bytes += self.prefix.len() + 2 * level.len();
        }
        Some(next)
    }

    fn add_level(&mut self, topic: &str) -> Option<String> {
        let rest = topic.strip_prefix(self.prefix.as_str())?;
        let Some((level, _)) = rest.split_once('/') else {
            self.levels.entry(rest.to_owned()).or_default().0 = true;
            return Some(after(topic));
        };
        self.levels.entry(level.to_owned()).or_default().1 = true;
        // '0' follows '/'.
        Some(format!("{}{level}0", self.prefix))
    }

    fn page(self, next: Option<String>) -> Levels {
        let prefix = self.prefix;
        let level = |(level, (has_message, has_levels))| Level {
            topic: format!("{prefix}{level}"),
            level,
            has_message,
            has_levels,
        };
        Levels { levels: self.levels.into_iter().map(level).collect(), next }
    }
}

/// Levels of retained topics
#[utoipa::path(get, path = "/topics", params(PageQuery, TopicQuery), responses((status = 200, body = Levels)))]
pub(crate) async fn list(
    Viewer(app, _): Viewer,
    Paged { page, wanted }: Paged<TopicQuery>,
) -> Result<Json<Levels>> {
    let most = page.limit()?;
    let prefix = wanted.under.map(|under| format!("{under}/")).unwrap_or_default();
    let mut from = page.cursor()?.unwrap_or_else(|| prefix.clone());
    if let Some(last) = topic_cursor::last_topic(&app.broker, &from) {
        from = after(&last);
    }
    let mut found = Collected::below(prefix);
    // A level takes two steps at most: its message, and what is below it.
    for step in 0..=2 * most {
        let Some(topic) = app.broker.retained_topic_from(&from) else {
            return Ok(Json(found.page(None)));
        };
        if found.levels.len() >= most || found.bytes >= MAX_PAGE_BYTES {
            return Ok(Json(found.page(Some(topic_cursor::from(&app.broker, from)))));
        }
        let Some(next) = found.add(&topic) else { return Ok(Json(found.page(None))) };
        from = next;
        if step % SLICE == SLICE - 1 {
            tokio::task::yield_now().await;
        }
    }
    Ok(Json(found.page(Some(topic_cursor::from(&app.broker, from)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Levels as text, from topics in order.
    fn levels(prefix: &str, topics: &[&str]) -> Vec<String> {
        let mut found = Collected::below(prefix.to_owned());
        let (mut from, mut looked) = (prefix.to_owned(), 0);
        while let Some(topic) = topics.iter().find(|topic| ***topic >= *from) {
            let Some(next) = found.add(topic) else { break };
            assert!(next > from, "{next:?} is behind {from:?}");
            from = next;
            looked += 1;
        }
        assert!(looked <= 2 * found.levels.len(), "{looked} topics for {:?}", found.levels);
        let shown = found.page(None).levels.into_iter();
        shown.map(|one| format!("{} {} {}", one.level, one.has_message, one.has_levels)).collect()
    }

    #[test]
    fn a_level_has_a_message_or_levels_below_or_both() {
        let mut topics = ["a", "a-b", "a/b", "a/b/c", "a/b/d", "a0", "b//c", "/x", "€/y"];
        topics.sort_unstable();
        let first = [
            " false true",
            "a true true",
            "a-b true false",
            "a0 true false",
            "b false true",
            "€ false true",
        ];
        assert_eq!(levels("", &topics), first);
        assert_eq!(levels("a/", &topics), ["b true true"]);
        assert_eq!(levels("b/", &topics), [" false true"]);
        assert_eq!(levels("c/", &topics), Vec::<String>::new());
    }
}

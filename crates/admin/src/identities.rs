//! What users, groups and roles of the store of identities have in common.

use std::ops::Bound;
use std::sync::Arc;

use fulmar_identity::{ApplyError, Command, Identities, Ranked, Refused, State};

use crate::page::{self, Slice};
use crate::prelude::*;

impl App {
    /// Makes a change of the store of identities, with its entry in the log.
    pub(crate) async fn change_identities(
        &self,
        change: Change,
        command: Command,
    ) -> Result<StatusCode> {
        self.change(change, apply(&self.identities, command)).await?;
        Ok(StatusCode::NO_CONTENT)
    }

    /// A page of what the store has by name, and the next page's cursor. `part` shows what is behind a name, at most
    /// [`SLICE`](page::SLICE) of them, and `name_of` is the name of what it shows.
    pub(crate) async fn page_by_name<T: Serialize>(
        &self,
        page: &PageQuery,
        part: impl Fn(&State, After<'_>) -> Vec<T>,
        name_of: impl Fn(&T) -> String,
    ) -> Result<(Vec<T>, Option<String>)> {
        let slice = |after: &String| {
            let range = (Bound::Excluded(&**after), Bound::Unbounded);
            Slice::from_items(self.identities.read(|state| part(state, range)), &name_of)
        };
        let from = page.cursor()?.unwrap_or_default();
        Ok(page::fill(page.limit()?, from, slice, &name_of, Some).await)
    }
}

/// Names behind one.
pub(crate) type After<'a> = (Bound<&'a str>, Bound<&'a str>);

/// Applies a command on a thread that may wait.
async fn apply(identities: &Arc<Identities>, command: Command) -> Result<()> {
    let identities = Arc::clone(identities);
    let applied = tokio::task::spawn_blocking(move || identities.apply(vec![command])).await;
    match applied {
        Ok(Ok(())) => Ok(()),
        Ok(Err(ApplyError::Refused(refused))) => Err(problem(&refused)),
        Ok(Err(ApplyError::NotShared(error))) => Err(Problem::unavailable(error.to_string())),
        Ok(Err(ApplyError::Busy)) => Err(Problem::unavailable(ApplyError::Busy.to_string())),
        Ok(Err(error)) => {
            tracing::error!("identities: {error}");
            Err(Problem::unavailable("the change cannot be stored now: see the server's log"))
        }
        Err(_) => Err(Problem::unavailable("the server ends")),
    }
}

/// A refusal with what to do; the store's own words are for tools of mosquitto.
fn problem(refused: &Refused) -> Problem {
    match refused {
        Refused::ClientNotFound => Problem::not_found(
            "there is no such user; GET /users, or fulmar ctl users list, lists them",
        ),
        Refused::GroupNotFound => Problem::not_found(
            "there is no such group; GET /groups, or fulmar ctl groups list, lists them",
        ),
        Refused::RoleNotFound => Problem::not_found(
            "there is no such role; GET /roles, or fulmar ctl roles list, lists them",
        ),
        Refused::TokenNotFound => Problem::not_found(
            "there is no such token; GET /tokens, or fulmar ctl tokens list, lists them",
        ),
        Refused::AclNotFound => Problem::not_found(
            "the role has no rule for this action and topic; GET /roles/NAME shows its rules",
        ),
        Refused::Name { .. } | Refused::ReservedName | Refused::TooLong { .. } => {
            Problem::invalid("name", refused.to_string())
        }
        Refused::AclTopic => Problem::invalid("topic", "expected a topic filter, such as plant/#"),
        Refused::AclExists => Problem::conflict(
            "the role has a rule for this action and topic already: remove that first",
        ),
        Refused::AnonymousGroup => Problem::conflict(
            "this is the group of clients without a user name: first make another group theirs, with \
             `mosquitto_ctrl dynsec setAnonymousGroup`",
        ),
        other => Problem::conflict(other.to_string()),
    }
}

/// Names as the store has them; those that are in `before` keep their priorities.
pub(crate) fn ranked(names: &[String], before: &[Ranked]) -> Vec<Ranked> {
    let own = |name: &String| before.iter().find(|own| *own.name == **name).cloned();
    names.iter().map(|name| own(name).unwrap_or_else(|| Ranked::new(name, -1))).collect()
}

pub(crate) fn names(list: &[Ranked]) -> Vec<String> {
    list.iter().map(|own| own.name.to_string()).collect()
}

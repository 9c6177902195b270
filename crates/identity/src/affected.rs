//! Whose rights or credentials a change may have changed.

use std::collections::BTreeSet;

use crate::acl::Ranked;
use crate::rows::Row;
use crate::state::{Change, State};

/// Clients whose connections have to look again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affected {
    /// Everybody, whatever `users` has.
    pub everybody: bool,
    /// These users.
    pub users: BTreeSet<Box<str>>,
}

impl Affected {
    /// By a change that has led to `state`.
    pub fn by(change: &Change, state: &State) -> Affected {
        let mut affected = Affected::default();
        let (mut groups, mut roles) = (BTreeSet::new(), BTreeSet::new());
        for (row, before) in
            change.rows.iter().zip(&change.before).filter(|(row, before)| row != before)
        {
            match (row, before) {
                (Row::Client(name, _) | Row::Removed(name, _), _) => {
                    affected.users.insert(name.clone());
                }
                (Row::Group(name, Some(now)), Row::Group(_, Some(before)))
                    if now.roles != before.roles =>
                {
                    groups.insert(&**name);
                }
                (Row::Role(name, Some(now)), Row::Role(_, Some(before)))
                    if now.acls != before.acls =>
                {
                    roles.insert(&**name);
                }
                (Row::Settings(_), _) => affected.everybody = true,
                // Nobody has one that is new, and those that had one that is gone are rows of their own.
                (Row::Group(..) | Row::Role(..) | Row::Token(..), _) => {}
                // They have no rights of the broker's own: the platform follows them.
                (Row::Account(..), _) => {}
            }
        }
        if groups.is_empty() && roles.is_empty() {
            return affected;
        }
        let any = |list: &[Ranked], names: &BTreeSet<&str>| {
            list.iter().any(|own| names.contains(&*own.name))
        };
        for group in state.groups().values().filter(|group| any(&group.roles, &roles)) {
            groups.insert(&group.name);
        }
        affected.everybody |= state.anonymous_group().is_some_and(|group| groups.contains(group));
        for client in state.clients().values() {
            if any(&client.roles, &roles) || any(&client.groups, &groups) {
                affected.users.insert(client.username.clone());
            }
        }
        affected
    }

    /// Whether there is nobody.
    pub fn is_nobody(&self) -> bool {
        !self.everybody && self.users.is_empty()
    }
}

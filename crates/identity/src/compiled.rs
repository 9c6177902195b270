//! The state as the broker uses it: each client with its roles' rules in the order in which they are asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulmar_broker::auth::{
    DefaultAccess, Identity, IdentityChanges, IdentityTable, RoleRules, TopicRule,
};

use fulmar_scram::Verifier;
use ring::digest::{Context, SHA256};

use crate::acl::{AccessKind, AclKind};
use crate::affected::Affected;
use crate::entities::{Client, PasswordHash, Role};
use crate::rows::Row;
use crate::state::{Change, State};

/// Keeps a broker's table equal to the state.
#[derive(Debug)]
pub struct Compiler {
    table: Arc<IdentityTable>,
    /// Rules of every role, shared by all clients that have it.
    roles: BTreeMap<Box<str>, Arc<RoleRules>>,
}

impl Compiler {
    /// Fills the table.
    pub fn new(table: Arc<IdentityTable>, state: &State) -> Compiler {
        let mut compiler = Compiler { table, roles: BTreeMap::new() };
        for role in state.roles().values() {
            compiler.roles.insert(role.name.clone(), Arc::new(rules(role)));
        }
        compiler.compile(state, state.clients().keys().chain(state.removed().keys()));
        compiler
    }

    /// Follows a change that has led to `state`.
    pub fn follow(&mut self, change: &Change, affected: &Affected, state: &State) {
        // Each login to the platform is one, and all clients would be looked at.
        if change.rows.iter().all(|row| matches!(row, Row::Account(..))) {
            return;
        }
        for row in &change.rows {
            match row {
                Row::Role(name, Some(role)) => {
                    drop(self.roles.insert(name.clone(), Arc::new(rules(role))));
                }
                Row::Role(name, None) => drop(self.roles.remove(name)),
                _ => {}
            }
        }
        self.compile(state, affected.users.iter());
    }

    fn compile<'n>(&self, state: &State, names: impl Iterator<Item = &'n Box<str>>) {
        let mut removed = Vec::new();
        let users = names.map(|name| {
            removed.push((name.clone(), state.removed().contains_key(name)));
            let client = state.clients().get(name);
            (name.clone(), client.and_then(|client| self.identity(state, client)))
        });
        let users: Vec<_> = users.collect();
        let anonymous = state.anonymous_group().and_then(|name| state.groups().get(name));
        let own = |name: &str| self.roles.get(name).map(Arc::clone);
        let anonymous = anonymous
            .map(|group| group.roles.iter().filter_map(|ranked| own(&ranked.name)).collect());
        let acls = state.roles().values().flat_map(|role| &role.acls);
        let denials = acls.filter(|acl| !acl.allow && acl.kind == AclKind::PublishClientReceive);
        let denials = denials.map(|acl| acl.topic.clone()).collect();
        let defaults = state.default_access();
        let defaults = DefaultAccess {
            publish: defaults.get(AccessKind::PublishClientSend),
            receive: defaults.get(AccessKind::PublishClientReceive),
            subscribe: defaults.get(AccessKind::Subscribe),
            unsubscribe: defaults.get(AccessKind::Unsubscribe),
        };
        let admits_unknown_names = state.admits_unknown_names();
        self.table.change(IdentityChanges {
            users,
            removed,
            anonymous,
            defaults,
            denials,
            admits_unknown_names,
        });
    }

    fn identity(&self, state: &State, client: &Client) -> Option<Identity> {
        let revision = revision(client);
        let roles = state.roles_of(client).filter_map(|role| self.roles.get(&role.name));
        let roles = roles.map(Arc::clone).collect();
        let hash = client.password.as_ref().map(PasswordHash::as_str);
        let identity =
            Identity::new(client.client_id.as_deref(), hash, client.disabled, revision, roles);
        let verifier = client.scram.as_ref().map(|scram| Verifier::parse(&scram.0)).transpose();
        let verifier = verifier.unwrap_or_else(|error| {
            tracing::error!(user = &*client.username, "password's verifier for SCRAM: {error}");
            None
        });
        identity
            .map(|identity| identity.with_verifier(verifier))
            .inspect_err(|error| {
                tracing::error!(user = &*client.username, "password's hash: {error}")
            })
            .ok()
    }
}

/// A number of what a client connects with, the same after a restart and at another node: wills are stored with it.
fn revision(client: &Client) -> u64 {
    // Of the hash that was stored when the password was set.
    let password = client.replaced.clone().or_else(|| Some(client.password.as_ref()?.digest()));
    let mut context = Context::new(&SHA256);
    context.update(&[u8::from(client.disabled)]);
    for text in [&client.client_id, &password] {
        // A length that no text has stands for none.
        let length = text.as_ref().map_or(u64::MAX, |text| text.len() as u64);
        context.update(&length.to_be_bytes());
        context.update(text.as_deref().unwrap_or_default().as_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&context.finish().as_ref()[..8]);
    u64::from_be_bytes(first)
}

fn rules(role: &Role) -> RoleRules {
    let of = |kind| {
        let own = role.acls.iter().filter(move |acl| acl.kind == kind);
        own.map(|acl| TopicRule { filter: acl.topic.clone(), allow: acl.allow }).collect()
    };
    RoleRules {
        publish: of(AclKind::PublishClientSend),
        receive: of(AclKind::PublishClientReceive),
        subscribe_literal: of(AclKind::SubscribeLiteral),
        subscribe: of(AclKind::SubscribePattern),
        unsubscribe_literal: of(AclKind::UnsubscribeLiteral),
        unsubscribe: of(AclKind::UnsubscribePattern),
    }
}

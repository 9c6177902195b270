//! The state as the broker uses it: each client with its roles' rules in the order in which they are asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulmar_broker::auth::{
    DefaultAccess, Identity, IdentityChanges, IdentityTable, RoleRules, TopicRule,
};

use fulmar_scram::Verifier;

use crate::acl::{AccessKind, AclKind};
use crate::affected::Affected;
use crate::entities::{Client, PasswordHash, Role};
use crate::rows::Row;
use crate::state::{Change, State};

/// Keeps a broker's table equal to the state.
#[derive(Debug)]
pub struct Compiler {
    table: Arc<IdentityTable>,
    /// What every role allows, shared by all that have it.
    roles: BTreeMap<Box<str>, Arc<RoleRules>>,
    /// What each client connects with, and the revision of it.
    credentials: BTreeMap<Box<str>, (Credentials, u64)>,
    last_revision: u64,
}

/// What a client connects with.
#[derive(Debug, PartialEq)]
struct Credentials {
    client_id: Option<Box<str>>,
    /// Digest of the hash that was stored when the password was set.
    password: Option<Box<str>>,
    disabled: bool,
}

impl Compiler {
    /// Fills the table.
    #[must_use]
    pub fn new(table: Arc<IdentityTable>, state: &State) -> Compiler {
        let (roles, credentials) = (BTreeMap::new(), BTreeMap::new());
        let mut compiler = Compiler { table, roles, credentials, last_revision: 0 };
        for role in state.roles().values() {
            compiler.roles.insert(role.name.clone(), Arc::new(rules(role)));
        }
        compiler.compile(state, state.clients().keys().chain(state.removed().keys()));
        compiler
    }

    /// Follows a change that has led to `state`.
    pub fn follow(&mut self, change: &Change, affected: &Affected, state: &State) {
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

    fn compile<'n>(&mut self, state: &State, names: impl Iterator<Item = &'n Box<str>>) {
        let mut removed = Vec::new();
        let users = names.map(|name| {
            removed.push((name.clone(), state.removed().contains_key(name)));
            let client = state.clients().get(name);
            let identity = client.and_then(|client| self.identity(state, client));
            if client.is_none() {
                self.credentials.remove(name);
            }
            (name.clone(), identity)
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
        self.table.change(IdentityChanges { users, removed, anonymous, defaults, denials });
    }

    fn identity(&mut self, state: &State, client: &Client) -> Option<Identity> {
        let credentials = Credentials {
            client_id: client.client_id.clone(),
            password: client.replaced.clone().or_else(|| Some(client.password.as_ref()?.digest())),
            disabled: client.disabled,
        };
        let revision = match self.credentials.get(&client.username) {
            Some((known, revision)) if *known == credentials => *revision,
            _ => {
                self.last_revision += 1;
                let entry = (credentials, self.last_revision);
                self.credentials.insert(client.username.clone(), entry);
                self.last_revision
            }
        };
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

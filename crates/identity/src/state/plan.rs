//! Rows that each command changes, if it is not refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{State, Table};
use crate::acl::{AccessKind, Ranked};
use crate::checks;
use crate::command::{ClientChanges, Command, GroupChanges, Refused, RoleChanges};
use crate::entities::{ApiToken, Client, Group, Role};
use crate::limits::{MAX_CLIENTS, MAX_GROUPS, MAX_REMOVED, MAX_ROLES, MAX_TOKENS};
use crate::rows::{Removal, Row, Settings};

impl State {
    /// Returns the rows that a command changes, if it is not refused.
    pub(super) fn plan(&self, command: Command) -> Result<Vec<Row>, Refused> {
        match command {
            Command::SetDefaultAccess(defaults) => Ok(self.set_default_access(defaults)),
            Command::CreateClient(client) => self.create_client(client),
            Command::DeleteClient(name) => {
                self.client(&name)?;
                Ok(self.remove_client(name))
            }
            Command::ForgetClient(name) => self.forget_client(name),
            Command::ModifyClient(name, changes) => self.modify_client(&name, changes),
            Command::ReplaceHash { username, outdated, hash } => {
                if self.client(&username)?.password.as_ref() != Some(&outdated) {
                    return Ok(Vec::new());
                }
                self.with_client(&username, |client| {
                    client.replaced.get_or_insert_with(|| outdated.digest());
                    client.password = Some(hash);
                    Ok(())
                })
            }
            Command::AddClientRole(name, role) => {
                self.role(&role.name)?;
                self.with_client(&name, |client| {
                    add(&mut client.roles, role, "roles of this client")
                })
            }
            Command::RemoveClientRole(name, role) => {
                self.client(&name)?;
                self.role(&role)?;
                self.with_client(&name, |client| remove(&mut client.roles, &role))
            }
            Command::CreateGroup(group) => self.create_group(group),
            Command::DeleteGroup(name) => self.delete_group(&name),
            Command::ModifyGroup(name, changes) => self.modify_group(&name, changes),
            Command::AddGroupClient { group, username, priority } => {
                self.add_group_client(&username, Ranked { name: group, priority })
            }
            Command::RemoveGroupClient { group, username } => {
                self.client(&username)?;
                self.group(&group)?;
                self.with_client(&username, |client| remove(&mut client.groups, &group))
            }
            Command::AddGroupRole(name, role) => self.add_group_role(&name, role),
            Command::RemoveGroupRole(name, role) => {
                self.group(&name)?;
                self.role(&role)?;
                self.with_group(&name, |group| remove(&mut group.roles, &role))
            }
            Command::SetAnonymousGroup(name) => self.set_anonymous_group(name),
            Command::CreateRole(role) => self.create_role(role),
            Command::DeleteRole(name) => self.delete_role(&name),
            Command::ModifyRole(name, changes) => self.modify_role(&name, changes),
            Command::AddRoleAcl(name, acl) => self.with_role(&name, |role| {
                checks::acl(&acl)?;
                if checks::acl_at(&role.acls, acl.kind, &acl.topic).is_some() {
                    return Err(Refused::AclExists);
                }
                role.acls.push(acl);
                checks::acls(&mut role.acls)
            }),
            Command::RemoveRoleAcl(name, kind, topic) => self.with_role(&name, |role| {
                let at = checks::acl_at(&role.acls, kind, &topic).ok_or(Refused::AclNotFound)?;
                role.acls.remove(at);
                Ok(())
            }),
            Command::CreateToken(token) => self.create_token(token),
            Command::DeleteToken(name) => {
                let known = self.tokens.contains_key(&name);
                if known { Ok(vec![Row::Token(name, None)]) } else { Err(Refused::TokenNotFound) }
            }
            Command::CreateAccount(account) => self.create_account(account),
            Command::ModifyAccount(name, change) => self.modify_account(name, change),
            Command::DeleteAccount(name) => self.delete_account(name),
            Command::SetIdentifier(new) => self.set_identifier(new),
            Command::ImportAccounts(accounts) => Ok(self.import_accounts(accounts)),
        }
    }

    fn set_default_access(&self, defaults: Vec<(AccessKind, bool)>) -> Vec<Row> {
        let mut settings = Settings::clone(&self.settings);
        for (kind, allow) in defaults {
            settings.default_access.set(kind, allow);
        }
        vec![Row::Settings(Arc::new(settings))]
    }

    fn set_identifier(&self, new: Box<str>) -> Result<Vec<Row>, Refused> {
        if self.settings.identifier.is_some() {
            return Ok(Vec::new());
        }
        checks::name("the identifier", &new)?;
        let settings = Settings::clone(&self.settings);
        Ok(vec![Row::Settings(Arc::new(Settings { identifier: Some(new), ..settings }))])
    }

    fn create_token(&self, token: ApiToken) -> Result<Vec<Row>, Refused> {
        checks::name("the API token's name", &token.name)?;
        free(&self.tokens, &token.name, Refused::TokenExists, "API tokens", MAX_TOKENS)?;
        Ok(vec![Row::Token(token.name.clone(), Some(Arc::new(token)))])
    }

    fn add_group_client(&self, username: &str, group: Ranked) -> Result<Vec<Row>, Refused> {
        let client = self.client(username)?;
        self.group(&group.name)?;
        if client.groups.iter().any(|own| own.name == group.name) {
            return Err(Refused::AlreadyInGroup);
        }
        self.with_client(username, |client| add(&mut client.groups, group, "groups of this client"))
    }

    fn add_group_role(&self, name: &str, role: Ranked) -> Result<Vec<Row>, Refused> {
        let group = self.group(name)?;
        self.role(&role.name)?;
        if group.roles.iter().any(|own| own.name == role.name) {
            return Err(Refused::AlreadyHasRole);
        }
        self.with_group(name, |group| add(&mut group.roles, role, "roles of this group"))
    }

    fn set_anonymous_group(&self, name: Option<Box<str>>) -> Result<Vec<Row>, Refused> {
        if let Some(name) = &name {
            self.group(name)?;
        }
        let settings = Settings { anonymous_group: name, ..Settings::clone(&self.settings) };
        Ok(vec![Row::Settings(Arc::new(settings))])
    }

    fn client(&self, name: &str) -> Result<&Arc<Client>, Refused> {
        self.clients.get(name).ok_or(Refused::ClientNotFound)
    }

    fn group(&self, name: &str) -> Result<&Arc<Group>, Refused> {
        self.groups.get(name).ok_or(Refused::GroupNotFound)
    }

    fn role(&self, name: &str) -> Result<&Arc<Role>, Refused> {
        self.roles.get(name).ok_or(Refused::RoleNotFound)
    }

    fn with_client(
        &self,
        name: &str,
        change: impl FnOnce(&mut Client) -> Result<(), Refused>,
    ) -> Result<Vec<Row>, Refused> {
        let mut client = Client::clone(self.client(name)?);
        change(&mut client)?;
        Ok(vec![Row::Client(name.into(), Some(Arc::new(client)))])
    }

    fn with_group(
        &self,
        name: &str,
        change: impl FnOnce(&mut Group) -> Result<(), Refused>,
    ) -> Result<Vec<Row>, Refused> {
        let mut group = Group::clone(self.group(name)?);
        change(&mut group)?;
        Ok(vec![Row::Group(name.into(), Some(Arc::new(group)))])
    }

    fn with_role(
        &self,
        name: &str,
        change: impl FnOnce(&mut Role) -> Result<(), Refused>,
    ) -> Result<Vec<Row>, Refused> {
        let mut role = Role::clone(self.role(name)?);
        change(&mut role)?;
        Ok(vec![Row::Role(name.into(), Some(Arc::new(role)))])
    }

    /// Roles that exist, by rank.
    fn known_roles(&self, what: &'static str, list: &mut Vec<Ranked>) -> Result<(), Refused> {
        list.iter().try_for_each(|own| self.role(&own.name).map(drop))?;
        checks::ranked(what, list)
    }

    /// Groups that exist, by rank.
    fn known_groups(&self, list: &mut Vec<Ranked>) -> Result<(), Refused> {
        list.iter().try_for_each(|own| self.group(&own.name).map(drop))?;
        checks::ranked("groups of this client", list)
    }

    /// Whether a new client may have this name, which is valid.
    pub(crate) fn check_new_client(&self, name: &str) -> Result<(), Refused> {
        if self.accounts.contains_key(name) {
            return Err(Refused::NameOfAccount);
        }
        free(&self.clients, name, Refused::ClientExists, "clients", MAX_CLIENTS)
    }

    fn create_client(&self, mut client: Client) -> Result<Vec<Row>, Refused> {
        checks::username(&client.username)?;
        client.client_id = checks::client_id(client.client_id)?;
        checks::texts(&client.texts)?;
        self.check_new_client(&client.username)?;
        self.known_roles("roles of this client", &mut client.roles)?;
        self.known_groups(&mut client.groups)?;
        let name = client.username.clone();
        let back = self.removed.contains_key(&name).then(|| Row::Removed(name.clone(), None));
        Ok([Row::Client(name, Some(Arc::new(client)))].into_iter().chain(back).collect())
    }

    /// Removes a client. The name stays, so that it has no more rights than before with a token or a certificate.
    fn remove_client(&self, name: Box<str>) -> Vec<Row> {
        let last = self.removals.last().map_or(0, |(number, _)| *number);
        let only_administered =
            self.clients.get(&name).is_some_and(|client| client.only_administers());
        let removal = Arc::new(Removal { number: last.saturating_add(1), only_administered });
        let oldest = self.removals.first().filter(|_| self.removals.len() >= MAX_REMOVED);
        let forgotten = oldest.map(|(_, name)| Row::Removed(name.clone(), None));
        let rows = [Row::Client(name.clone(), None), Row::Removed(name, Some(removal))];
        rows.into_iter().chain(forgotten).collect()
    }

    fn forget_client(&self, name: Box<str>) -> Result<Vec<Row>, Refused> {
        if !self.removed.contains_key(&name) {
            self.client(&name)?;
        }
        Ok(vec![Row::Client(name.clone(), None), Row::Removed(name, None)])
    }

    fn modify_client(&self, name: &str, changes: ClientChanges) -> Result<Vec<Row>, Refused> {
        self.with_client(name, |client| {
            if let Some(id) = changes.client_id {
                client.client_id = checks::client_id(id)?;
            }
            if changes.password.is_some() {
                *client = std::mem::take(client).with_password(changes.password);
            }
            client.texts.name = changes.text_name.or(client.texts.name.take());
            client.texts.description = changes.text_description.or(client.texts.description.take());
            checks::texts(&client.texts)?;
            client.disabled = changes.disabled.unwrap_or(client.disabled);
            client.administration = changes.administration.unwrap_or(client.administration);
            if let Some(mut roles) = changes.roles {
                self.known_roles("roles of this client", &mut roles)?;
                client.roles = roles;
            }
            if let Some(mut groups) = changes.groups {
                self.known_groups(&mut groups)?;
                client.groups = groups;
            }
            Ok(())
        })
    }

    fn create_group(&self, mut group: Group) -> Result<Vec<Row>, Refused> {
        checks::name("Group name", &group.name)?;
        checks::texts(&group.texts)?;
        free(&self.groups, &group.name, Refused::GroupExists, "groups", MAX_GROUPS)?;
        self.known_roles("roles of this group", &mut group.roles)?;
        Ok(vec![Row::Group(group.name.clone(), Some(Arc::new(group)))])
    }

    fn delete_group(&self, name: &str) -> Result<Vec<Row>, Refused> {
        self.group(name)?;
        if self.anonymous_group() == Some(name) {
            return Err(Refused::AnonymousGroup);
        }
        let mut rows = self.members(name).iter().try_fold(Vec::new(), |mut rows, member| {
            rows.extend(self.with_client(&member.name, |client| remove(&mut client.groups, name))?);
            Ok(rows)
        })?;
        rows.push(Row::Group(name.into(), None));
        Ok(rows)
    }

    fn modify_group(&self, name: &str, changes: GroupChanges) -> Result<Vec<Row>, Refused> {
        let mut rows = self.with_group(name, |group| {
            group.texts.name = changes.text_name.or(group.texts.name.take());
            group.texts.description = changes.text_description.or(group.texts.description.take());
            checks::texts(&group.texts)?;
            if let Some(mut roles) = changes.roles {
                self.known_roles("roles of this group", &mut roles)?;
                group.roles = roles;
            }
            Ok(())
        })?;
        let Some(clients) = changes.clients else { return Ok(rows) };
        let new: BTreeMap<&str, i32> =
            clients.iter().rev().map(|own| (&*own.name, own.priority)).collect();
        new.keys().try_for_each(|client| self.client(client).map(drop))?;
        for member in self.members(name) {
            if !new.contains_key(&*member.name) {
                rows.extend(
                    self.with_client(&member.name, |client| remove(&mut client.groups, name))?,
                );
            }
        }
        for (username, priority) in new {
            rows.extend(self.with_client(username, |client| {
                remove(&mut client.groups, name)?;
                add(&mut client.groups, Ranked::new(name, priority), "groups of this client")
            })?);
        }
        Ok(rows)
    }

    fn create_role(&self, mut role: Role) -> Result<Vec<Row>, Refused> {
        checks::name("Role name", &role.name)?;
        checks::texts(&role.texts)?;
        free(&self.roles, &role.name, Refused::RoleExists, "roles", MAX_ROLES)?;
        checks::acls(&mut role.acls)?;
        Ok(vec![Row::Role(role.name.clone(), Some(Arc::new(role)))])
    }

    fn modify_role(&self, name: &str, changes: RoleChanges) -> Result<Vec<Row>, Refused> {
        self.with_role(name, |role| {
            role.texts.name = changes.text_name.or(role.texts.name.take());
            role.texts.description = changes.text_description.or(role.texts.description.take());
            checks::texts(&role.texts)?;
            if let Some(acls) = changes.acls {
                role.acls = acls;
                checks::acls(&mut role.acls)?;
            }
            Ok(())
        })
    }

    fn delete_role(&self, name: &str) -> Result<Vec<Row>, Refused> {
        self.role(name)?;
        let has = |list: &[Ranked]| list.iter().any(|own| &*own.name == name);
        let mut rows = Vec::new();
        for client in self.clients.values().filter(|client| has(&client.roles)) {
            rows.extend(
                self.with_client(&client.username, |client| remove(&mut client.roles, name))?,
            );
        }
        for group in self.groups.values().filter(|group| has(&group.roles)) {
            rows.extend(self.with_group(&group.name, |group| remove(&mut group.roles, name))?);
        }
        rows.push(Row::Role(name.into(), None));
        Ok(rows)
    }
}

/// Checks that a name is free, and that there is room.
fn free<T>(
    table: &Table<T>,
    name: &str,
    exists: Refused,
    what: &'static str,
    max: usize,
) -> Result<(), Refused> {
    if table.contains_key(name) {
        return Err(exists);
    }
    if table.len() >= max { Err(Refused::TooMany { what, max }) } else { Ok(()) }
}

/// Adds to a ranked list what is not there yet.
fn add(list: &mut Vec<Ranked>, new: Ranked, what: &'static str) -> Result<(), Refused> {
    if !list.iter().any(|own| own.name == new.name) {
        list.push(new);
    }
    checks::ranked(what, list)
}

fn remove(list: &mut Vec<Ranked>, name: &str) -> Result<(), Refused> {
    list.retain(|own| &*own.name != name);
    Ok(())
}

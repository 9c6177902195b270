//! The state, and what commands do with it. No I/O, no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fulmar_mqtt::topic::matches;

use crate::acl::{Acl, AclKind, DefaultAccess, Ranked};
use crate::checks;
use crate::command::{ClientChanges, Command, GroupChanges, Refused, RoleChanges};
use crate::entities::{AdministrationRole, ApiToken, Client, Group, Role};
use crate::limits::{MAX_CLIENTS, MAX_GROUPS, MAX_REMOVED, MAX_ROLES, MAX_TOKENS};
use crate::rows::{Removal, Row, Settings};
use crate::tokens::digest_if_token;

/// Where a client changes this state over MQTT.
const CONTROL_TOPIC: &str = "$CONTROL/dynamic-security/v1";

type Table<T> = BTreeMap<Box<str>, Arc<T>>;

/// All identities.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    clients: Table<Client>,
    groups: Table<Group>,
    roles: Table<Role>,
    tokens: Table<ApiToken>,
    removed: Table<Removal>,
    /// Their numbers, each with its name.
    removals: BTreeSet<(u64, Box<str>)>,
    settings: Arc<Settings>,
}

/// What a command has changed: the rows as they are now, and as they were.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// As they are.
    pub rows: Vec<Row>,
    /// As they were, in the same order.
    pub before: Vec<Row>,
}

/// Somebody who may use the administration API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The client's user name, or the token's name.
    pub name: Box<str>,
    /// What they may do.
    pub role: AdministrationRole,
    /// Whether it is a token.
    pub is_token: bool,
}

/// The ways in which a state can be administered, of which none may be lost.
struct Administered {
    by_role: bool,
    by_control: bool,
}

impl State {
    /// Clients by user name.
    pub fn clients(&self) -> &BTreeMap<Box<str>, Arc<Client>> {
        &self.clients
    }

    /// Clients that were removed and not created again, by user name.
    pub fn removed(&self) -> &BTreeMap<Box<str>, Arc<Removal>> {
        &self.removed
    }

    /// Groups by name.
    pub fn groups(&self) -> &BTreeMap<Box<str>, Arc<Group>> {
        &self.groups
    }

    /// Roles by name.
    pub fn roles(&self) -> &BTreeMap<Box<str>, Arc<Role>> {
        &self.roles
    }

    /// API tokens by name.
    pub fn tokens(&self) -> &BTreeMap<Box<str>, Arc<ApiToken>> {
        &self.tokens
    }

    /// What holds where no rule matches.
    pub fn default_access(&self) -> DefaultAccess {
        self.settings.default_access
    }

    /// The group whose roles clients without a user name have.
    pub fn anonymous_group(&self) -> Option<&str> {
        self.settings.anonymous_group.as_deref()
    }

    /// Whether names that the store does not know are labels where anonymous clients may connect: until there is, or was, a
    /// client with a purpose other than administration.
    pub fn admits_unknown_names(&self) -> bool {
        self.settings.anonymous_group.is_none()
            && self.clients.values().all(|client| client.only_administers())
            && self.removed.values().all(|removal| removal.only_administered)
    }

    /// A group's clients with its rank among their groups, by rank.
    pub fn members(&self, group: &str) -> Vec<Ranked> {
        let member = |client: &Arc<Client>| {
            let own = client.groups.iter().find(|own| &*own.name == group)?;
            Some(Ranked::new(&client.username, own.priority))
        };
        let mut members: Vec<Ranked> = self.clients.values().filter_map(member).collect();
        crate::acl::rank(&mut members);
        members
    }

    /// The roles that apply to a client, in the order in which their rules are asked: its own, then its groups'.
    pub fn roles_of<'a>(&'a self, client: &'a Client) -> impl Iterator<Item = &'a Arc<Role>> {
        let groups = client.groups.iter().filter_map(|own| self.groups.get(&own.name));
        let of_groups = groups.flat_map(|group| &group.roles);
        let all = client.roles.iter().chain(of_groups);
        all.filter_map(|own| self.roles.get(&own.name))
    }

    /// The principal of an API token that has not expired.
    pub fn verify_token(&self, token: &str, now_ms: u64) -> Option<Principal> {
        let digest = digest_if_token(token)?;
        let token = self.tokens.values().find(|known| *known.digest == *digest)?;
        let valid = token.expires_ms.is_none_or(|end| now_ms < end);
        valid.then(|| Principal { name: token.name.clone(), role: token.role, is_token: true })
    }

    /// Applies a command.
    ///
    /// # Errors
    /// The command is refused, and nothing has changed.
    pub fn apply(&mut self, command: Command) -> Result<Change, Refused> {
        let may_lock_out = may_lock_out(&command);
        let rows = self.plan(command)?;
        let before = may_lock_out.then(|| self.administered());
        let change = self.put_all(rows);
        if let Some(before) = before
            && let Err(refused) = before.still(&self.administered())
        {
            self.undo(change);
            return Err(refused);
        }
        Ok(change)
    }

    /// Puts rows into their places.
    pub(crate) fn put_all(&mut self, rows: Vec<Row>) -> Change {
        let before = rows.iter().map(|row| self.put(row.clone())).collect();
        Change { rows, before }
    }

    /// Takes a change back.
    pub(crate) fn undo(&mut self, change: Change) {
        for row in change.before.into_iter().rev() {
            self.put(row);
        }
    }

    /// Puts a row into its place, and returns what was there.
    fn put(&mut self, row: Row) -> Row {
        fn swap<T>(table: &mut Table<T>, name: &str, new: Option<Arc<T>>) -> Option<Arc<T>> {
            match new {
                Some(new) => table.insert(name.into(), new),
                None => table.remove(name),
            }
        }
        match row {
            Row::Client(name, new) => {
                let old = swap(&mut self.clients, &name, new);
                Row::Client(name, old)
            }
            Row::Group(name, new) => {
                let old = swap(&mut self.groups, &name, new);
                Row::Group(name, old)
            }
            Row::Role(name, new) => {
                let old = swap(&mut self.roles, &name, new);
                Row::Role(name, old)
            }
            Row::Token(name, new) => {
                let old = swap(&mut self.tokens, &name, new);
                Row::Token(name, old)
            }
            Row::Removed(name, new) => {
                let numbered = |removal: &Arc<Removal>| (removal.number, name.clone());
                let number = new.as_ref().map(numbered);
                let old = swap(&mut self.removed, &name, new);
                if let Some(old) = &old {
                    self.removals.remove(&numbered(old));
                }
                self.removals.extend(number);
                Row::Removed(name, old)
            }
            Row::Settings(new) => Row::Settings(std::mem::replace(&mut self.settings, new)),
        }
    }

    /// The rows that lead from this state to `new`.
    pub(crate) fn difference(&self, new: &State) -> Vec<Row> {
        let mut rows = Vec::new();
        if self.settings != new.settings {
            rows.push(Row::Settings(Arc::clone(&new.settings)));
        }
        compare(&self.roles, &new.roles, Row::Role, &mut rows);
        compare(&self.groups, &new.groups, Row::Group, &mut rows);
        compare(&self.clients, &new.clients, Row::Client, &mut rows);
        compare(&self.tokens, &new.tokens, Row::Token, &mut rows);
        compare(&self.removed, &new.removed, Row::Removed, &mut rows);
        rows
    }

    /// What a command changes, if it is not refused.
    fn plan(&self, command: Command) -> Result<Vec<Row>, Refused> {
        match command {
            Command::SetDefaultAccess(defaults) => {
                let mut settings = Settings::clone(&self.settings);
                for (kind, allow) in defaults {
                    settings.default_access.set(kind, allow);
                }
                Ok(vec![Row::Settings(Arc::new(settings))])
            }
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
                let client = self.client(&username)?;
                self.group(&group)?;
                if client.groups.iter().any(|own| own.name == group) {
                    return Err(Refused::AlreadyInGroup);
                }
                let own = Ranked { name: group, priority };
                self.with_client(&username, |client| {
                    add(&mut client.groups, own, "groups of this client")
                })
            }
            Command::RemoveGroupClient { group, username } => {
                self.client(&username)?;
                self.group(&group)?;
                self.with_client(&username, |client| remove(&mut client.groups, &group))
            }
            Command::AddGroupRole(name, role) => {
                let group = self.group(&name)?;
                self.role(&role.name)?;
                if group.roles.iter().any(|own| own.name == role.name) {
                    return Err(Refused::AlreadyHasRole);
                }
                self.with_group(&name, |group| add(&mut group.roles, role, "roles of this group"))
            }
            Command::RemoveGroupRole(name, role) => {
                self.group(&name)?;
                self.role(&role)?;
                self.with_group(&name, |group| remove(&mut group.roles, &role))
            }
            Command::SetAnonymousGroup(name) => {
                if let Some(name) = &name {
                    self.group(name)?;
                }
                let settings =
                    Settings { anonymous_group: name, ..Settings::clone(&self.settings) };
                Ok(vec![Row::Settings(Arc::new(settings))])
            }
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
            Command::CreateToken(token) => {
                checks::name("the API token's name", &token.name)?;
                free(&self.tokens, &token.name, Refused::TokenExists, "API tokens", MAX_TOKENS)?;
                Ok(vec![Row::Token(token.name.clone(), Some(Arc::new(token)))])
            }
            Command::DeleteToken(name) => {
                let known = self.tokens.contains_key(&name);
                if known { Ok(vec![Row::Token(name, None)]) } else { Err(Refused::TokenNotFound) }
            }
        }
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

    fn create_client(&self, mut client: Client) -> Result<Vec<Row>, Refused> {
        checks::username(&client.username)?;
        client.client_id = checks::client_id(client.client_id)?;
        checks::texts(&client.texts)?;
        free(&self.clients, &client.username, Refused::ClientExists, "clients", MAX_CLIENTS)?;
        self.known_roles("roles of this client", &mut client.roles)?;
        self.known_groups(&mut client.groups)?;
        let name = client.username.clone();
        let back = self.removed.contains_key(&name).then(|| Row::Removed(name.clone(), None));
        Ok([Row::Client(name, Some(Arc::new(client)))].into_iter().chain(back).collect())
    }

    /// Its name stays, so that it has no more rights than before with a token or a certificate.
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

    fn administered(&self) -> Administered {
        let can_log_in = |client: &&Arc<Client>| !client.disabled && client.password.is_some();
        let mut people = self.clients.values().filter(can_log_in);
        let by_role = people.any(|it| it.administration == Some(AdministrationRole::Administrator));
        let mut people = self.clients.values().filter(can_log_in);
        Administered { by_role, by_control: people.any(|client| self.controls(client)) }
    }

    /// Whether the client may send commands over MQTT.
    fn controls(&self, client: &Client) -> bool {
        let about = |acl: &&Acl| {
            acl.kind == AclKind::PublishClientSend && matches(&acl.topic, CONTROL_TOPIC)
        };
        let mut rules = self.roles_of(client).flat_map(|role| &role.acls).filter(about);
        rules.next().is_some_and(|acl| acl.allow)
    }
}

impl Administered {
    fn still(&self, now: &Administered) -> Result<(), Refused> {
        if self.by_role && !now.by_role {
            return Err(Refused::LastAdministrator);
        }
        if self.by_control && !now.by_control {
            return Err(Refused::LastController);
        }
        Ok(())
    }
}

/// Whether a command can take somebody's rights.
fn may_lock_out(command: &Command) -> bool {
    !matches!(
        command,
        Command::SetDefaultAccess(_)
            | Command::CreateClient(_)
            | Command::CreateGroup(_)
            | Command::CreateRole(_)
            | Command::SetAnonymousGroup(_)
            | Command::CreateToken(_)
            | Command::DeleteToken(_)
    )
}

/// Adds the rows that lead from one table to the other.
fn compare<T: PartialEq>(
    old: &Table<T>,
    new: &Table<T>,
    row: fn(Box<str>, Option<Arc<T>>) -> Row,
    rows: &mut Vec<Row>,
) {
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    rows.extend(gone.map(|name| row(name.clone(), None)));
    let changed = new.iter().filter(|(name, it)| old.get(*name) != Some(it));
    rows.extend(changed.map(|(name, it)| row(name.clone(), Some(Arc::clone(it)))));
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

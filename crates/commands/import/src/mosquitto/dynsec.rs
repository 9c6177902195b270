//! The file of mosquitto's dynamic security plugin: clients, groups and roles, as JSON.
//!
//! Order is that of the plugin (2.0.11, observed): the roles of a client come before those of its groups; among roles
//! and groups, a higher priority comes first, then the name; among the entries of a role, a higher priority comes
//! first, then the order in the file. A group's members are those that the group lists; the list of a client's groups
//! is ignored.

use std::path::Path;

use fulmar_identity::AclKind;
use fulmar_mqtt::topic::check_filter;
use serde::Deserialize;

use super::report::{Error, SourceLine};

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct Dynsec {
    /// Clients, which are the users.
    pub clients: Vec<Client>,
    /// Groups of clients.
    pub groups: Vec<Group>,
    /// Roles, which have the rules.
    pub roles: Vec<Role>,
    /// Access where no entry matches.
    #[serde(rename = "defaultACLAccess")]
    pub default_access: DefaultAccess,
    /// The group of clients without a user name.
    pub anonymous_group: Option<String>,
}

/// A user.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Client {
    /// The name.
    pub username: String,
    /// For people.
    pub textname: Option<Box<str>>,
    /// For people.
    pub textdescription: Option<Box<str>>,
    /// The only client identifier that it may use.
    pub clientid: Option<String>,
    /// PBKDF2's result, in base64.
    pub password: Option<String>,
    /// In base64.
    pub salt: Option<String>,
    /// Iterations of PBKDF2.
    pub iterations: Option<u32>,
    /// Whether it may not log in.
    pub disabled: bool,
    /// Roles that the client has itself.
    pub roles: Vec<RoleOf>,
}

impl Client {
    /// The password's hash in the form of a password file.
    pub fn hash(&self) -> Option<String> {
        let (password, salt) = (self.password.as_deref()?, self.salt.as_deref()?);
        Some(format!("$7${}${salt}${password}", self.iterations?))
    }
}

/// A group of users.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Group {
    /// Name of the group.
    pub groupname: String,
    /// For people.
    pub textname: Option<Box<str>>,
    /// For people.
    pub textdescription: Option<Box<str>>,
    /// Roles that all members have.
    pub roles: Vec<RoleOf>,
    /// Members of the group.
    pub clients: Vec<Member>,
}

/// A role of a client or group.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct RoleOf {
    /// Name of the role.
    pub rolename: String,
    /// Higher ones first.
    #[serde(default = "least")]
    pub priority: i64,
}

/// A member of a group.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Member {
    /// Name of the client.
    pub username: String,
    /// Higher ones first.
    #[serde(default = "least")]
    pub priority: i64,
}

fn least() -> i64 {
    -1
}

/// A list of entries.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Role {
    /// Name of the role.
    pub rolename: String,
    /// For people.
    pub textname: Option<Box<str>>,
    /// For people.
    pub textdescription: Option<Box<str>>,
    /// Access entries of the role.
    pub acls: Vec<Entry>,
}

/// An entry of a role.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Entry {
    /// Kind of action that it is about.
    pub acltype: AclKind,
    /// Topic filter.
    pub topic: String,
    /// Whether it allows.
    pub allow: bool,
    /// Higher ones first.
    #[serde(default)]
    pub priority: i64,
}

/// Access where no entry matches.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct DefaultAccess {
    /// Whether publishing is allowed.
    pub publish_client_send: bool,
    /// Whether receiving is allowed.
    pub publish_client_receive: bool,
    /// Whether subscribing is allowed.
    pub subscribe: bool,
    /// Whether unsubscribing is allowed.
    pub unsubscribe: bool,
}

/// Reads a file.
///
/// # Errors
/// It is not such a file; the error has the line.
pub fn parse(file: &Path, text: &str) -> Result<Dynsec, Error> {
    let place = |line| SourceLine { file: file.into(), line };
    let dynsec: Dynsec = serde_json::from_str(text)
        .map_err(|error| Error::malformed(&place(error.line()), error.to_string()))?;
    for entry in dynsec.roles.iter().flat_map(|role| &role.acls) {
        check_filter(&entry.topic).map_err(|error| {
            Error::malformed(&place(0), format!("topic {:?} in a role: {error}", entry.topic))
        })?;
    }
    Ok(dynsec)
}

/// Where a client, group or role begins, for the report: its name's first appearance after the key.
pub fn line_of(text: &str, key: &str, name: &str) -> usize {
    let quoted = serde_json::Value::from(name).to_string();
    let here = |line: &str| {
        let value = line.split_once(&format!("\"{key}\"")).map(|(_, rest)| rest.trim_start());
        let value = value.and_then(|rest| rest.strip_prefix(':')).map(str::trim_start);
        value.is_some_and(|rest| rest.starts_with(&quoted))
    };
    text.lines().position(here).map_or(0, |at| at + 1)
}

impl Dynsec {
    fn role(&self, name: &str) -> Option<&Role> {
        self.roles.iter().find(|role| role.rolename == name)
    }

    /// The roles in a list, in the order in which they decide.
    fn in_order(&self, list: &[RoleOf]) -> Vec<&Role> {
        let mut list: Vec<&RoleOf> = list.iter().collect();
        list.sort_by_key(|role| (std::cmp::Reverse(role.priority), role.rolename.as_str()));
        list.into_iter().filter_map(|of| self.role(&of.rolename)).collect()
    }

    /// All roles of a client, in the order in which they decide.
    pub fn roles_of(&self, client: &Client) -> Vec<&Role> {
        let member = |group: &Group| {
            let member = group.clients.iter().find(|member| member.username == client.username);
            member.map(|member| member.priority)
        };
        let mut groups: Vec<(i64, &Group)> =
            self.groups.iter().filter_map(|group| Some((member(group)?, group))).collect();
        groups.sort_by_key(|(priority, group)| {
            (std::cmp::Reverse(*priority), group.groupname.as_str())
        });
        let of_groups = groups.into_iter().flat_map(|(_, group)| self.in_order(&group.roles));
        self.in_order(&client.roles).into_iter().chain(of_groups).collect()
    }

    /// The roles of clients without a user name.
    pub fn roles_of_anonymous(&self) -> Vec<&Role> {
        let name = self.anonymous_group.as_deref();
        let group = self.groups.iter().find(|group| Some(group.groupname.as_str()) == name);
        group.map(|group| self.in_order(&group.roles)).unwrap_or_default()
    }
}

impl Role {
    /// Returns the entries of a kind, in the order in which they decide.
    pub fn entries(&self, kind: AclKind) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> =
            self.acls.iter().filter(|entry| entry.acltype == kind).collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.priority));
        entries
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FILE: &str = r#"{
  "clients": [
    {"username": "ann", "password": "cGFzcw==", "salt": "c2FsdA==", "iterations": 101, "textname": "Ann",
     "roles": [{"rolename": "zz"}, {"rolename": "first", "priority": 0}, {"rolename": "aa"}, {"rolename": "none"}],
     "groups": [{"groupname": "ignored"}]},
    {"username": "bob", "disabled": true}
  ],
  "groups": [
    {"groupname": "g2", "roles": [{"rolename": "r2"}], "clients": [{"username": "ann"}]},
    {"groupname": "g1", "roles": [{"rolename": "r1"}], "clients": [{"username": "ann"}]},
    {"groupname": "ignored", "roles": [{"rolename": "r0"}]}
  ],
  "roles": [
    {"rolename": "zz"}, {"rolename": "aa"}, {"rolename": "r0"}, {"rolename": "r1"}, {"rolename": "r2"},
    {"rolename": "first", "acls": [
      {"acltype": "publishClientSend", "topic": "a", "allow": true},
      {"acltype": "publishClientSend", "topic": "b", "allow": false},
      {"acltype": "subscribePattern", "topic": "s/#", "allow": true},
      {"acltype": "publishClientSend", "topic": "c", "allow": false, "priority": 3}]}
  ],
  "anonymousGroup": "g1",
  "defaultACLAccess": {"publishClientSend": false, "publishClientReceive": true, "subscribe": false, "unsubscribe": true}
}"#;

    #[test]
    fn roles_and_entries_come_in_the_plugins_order() {
        let dynsec = parse(Path::new("d"), FILE).unwrap();
        let names = |roles: Vec<&Role>| {
            roles.into_iter().map(|role| role.rolename.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(dynsec.roles_of(&dynsec.clients[0])), ["first", "aa", "zz", "r1", "r2"]);
        assert_eq!(names(dynsec.roles_of_anonymous()), ["r1"]);
        let entries = dynsec.role("first").unwrap().entries(AclKind::PublishClientSend);
        let topics: Vec<_> = entries.iter().map(|entry| entry.topic.as_str()).collect();
        assert_eq!(topics, ["c", "a", "b"]);
        assert_eq!(dynsec.clients[0].hash().as_deref(), Some("$7$101$c2FsdA==$cGFzcw=="));
        assert!(dynsec.clients[1].hash().is_none() && dynsec.clients[1].disabled);
        assert!(dynsec.default_access.publish_client_receive);
        assert_eq!(line_of(FILE, "username", "bob"), 6);
        assert_eq!(line_of(FILE, "username", "eve"), 0);
    }

    #[test]
    fn malformed_files_are_named_with_their_line() {
        let broken = |text: &str| parse(Path::new("d"), text).unwrap_err().to_string();
        assert!(
            broken("{\n\"clients\": [\n}").starts_with("d:3: "),
            "{}",
            broken("{\n\"clients\": [\n}")
        );
        let topic = FILE.replace("s/#", "s/#/x");
        assert!(broken(&topic).contains("topic \"s/#/x\" in a role"));
        assert!(broken(&FILE.replace("subscribePattern", "other")).contains("other"));
    }
}

//! The file of mosquitto's dynamic security plugin as commands for the broker's store of users, which has the same
//! clients, groups and roles.

use fulmar_identity::{AccessKind, Acl, Client, Command, Group, PasswordHash, Ranked, Role, Texts};

use super::dynsec::{self, Dynsec};

/// Commands that fill a store, in the order in which it is possible.
#[derive(Clone, Debug, Default)]
pub struct Filling {
    /// For [`fulmar_identity::Store::apply`].
    pub commands: Vec<Command>,
    /// User names without a password that can be verified: they cannot log in with one until it is set.
    pub without_password: Vec<String>,
}

/// The commands that fill a store with what the file has.
pub fn filling(dynsec: &Dynsec) -> Filling {
    let mut filling = Filling::default();
    let commands = &mut filling.commands;
    commands.extend(dynsec.roles.iter().map(|one| Command::CreateRole(role(one))));
    commands.extend(dynsec.groups.iter().map(|one| Command::CreateGroup(group(one))));
    for own in &dynsec.clients {
        let made = client(own, &dynsec.groups);
        if made.password.is_none() {
            filling.without_password.push(own.username.clone());
        }
        commands.push(Command::CreateClient(made));
    }
    if let Some(group) = &dynsec.anonymous_group {
        commands.push(Command::SetAnonymousGroup(Some(group.as_str().into())));
    }
    let access = &dynsec.default_access;
    commands.push(Command::SetDefaultAccess(vec![
        (AccessKind::PublishClientSend, access.publish_client_send),
        (AccessKind::PublishClientReceive, access.publish_client_receive),
        (AccessKind::Subscribe, access.subscribe),
        (AccessKind::Unsubscribe, access.unsubscribe),
    ]));
    filling
}

fn role(role: &dynsec::Role) -> Role {
    let acls = role.acls.iter().map(|entry| Acl {
        kind: entry.acltype,
        topic: entry.topic.as_str().into(),
        priority: priority(entry.priority),
        allow: entry.allow,
    });
    let texts = texts(&role.textname, &role.textdescription);
    Role { name: role.rolename.as_str().into(), texts, acls: acls.collect() }
}

fn group(group: &dynsec::Group) -> Group {
    let texts = texts(&group.textname, &group.textdescription);
    Group { name: group.groupname.as_str().into(), texts, roles: ranked(&group.roles) }
}

fn client(client: &dynsec::Client, groups: &[dynsec::Group]) -> Client {
    let member = |group: &dynsec::Group| {
        let own = group.clients.iter().find(|member| member.username == client.username)?;
        Some(Ranked::new(&group.groupname, priority(own.priority)))
    };
    Client {
        username: client.username.as_str().into(),
        client_id: client.clientid.as_deref().map(Into::into),
        password: client.hash().and_then(|hash| PasswordHash::parse(&hash).ok()),
        texts: texts(&client.textname, &client.textdescription),
        disabled: client.disabled,
        roles: ranked(&client.roles),
        groups: groups.iter().filter_map(member).collect(),
        ..Client::default()
    }
}

fn texts(name: &Option<Box<str>>, description: &Option<Box<str>>) -> Texts {
    Texts { name: name.clone(), description: description.clone() }
}

fn ranked(list: &[dynsec::RoleOf]) -> Vec<Ranked> {
    list.iter().map(|role| Ranked::new(&role.rolename, priority(role.priority))).collect()
}

fn priority(number: i64) -> i32 {
    number.clamp(i32::MIN.into(), i32::MAX.into()).try_into().unwrap_or(-1)
}

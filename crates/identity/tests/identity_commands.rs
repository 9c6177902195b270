//! Commands: what they change, what they refuse, and whom they affect.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use fulmar_broker::auth::IdentityTable;
use fulmar_identity::{
    Acl, AclKind, AdministrationRole, Affected, ApiToken, Client, ClientChanges, Command, Compiler,
    Group, GroupChanges, PasswordHash, PasswordHasher, Ranked, Refused, Role, RoleChanges, State,
};

const HASH: &str = "$6$j6qFWTVTKQFhgFSs$yg4ZYIlMrOHjTAWN2pYg0S9Ly7WLvQE815fRCdFppn9RsvVPxdootlys6edoDi8l4+MNFuz28UeKAUhtH+6Dvg==";

fn client(name: &str) -> Client {
    let password = Some(PasswordHash::parse(HASH).unwrap());
    Client { username: name.into(), password, ..Client::default() }
}

fn role(name: &str, topic: &str) -> Role {
    Role { name: name.into(), acls: vec![acl(topic, 0, true)], ..Role::default() }
}

fn acl(topic: &str, priority: i32, allow: bool) -> Acl {
    Acl { kind: AclKind::PublishClientSend, topic: topic.into(), priority, allow }
}

fn group(name: &str) -> Group {
    Group { name: name.into(), ..Group::default() }
}

fn applied(commands: Vec<Command>) -> State {
    let mut state = State::default();
    for command in commands {
        state.apply(command).unwrap();
    }
    state
}

fn names(list: &[Ranked]) -> Vec<&str> {
    list.iter().map(|own| &*own.name).collect()
}

#[test]
fn roles_and_groups_are_in_the_order_of_priority_and_then_of_names() {
    let mut state = applied(vec![
        Command::CreateRole(role("a", "a")),
        Command::CreateRole(role("b", "b")),
        Command::CreateRole(role("c", "c")),
        Command::CreateGroup(Group { roles: vec![Ranked::new("c", -1)], ..group("g") }),
        Command::CreateClient(client("ann")),
        Command::AddClientRole("ann".into(), Ranked::new("b", -1)),
        Command::AddClientRole("ann".into(), Ranked::new("a", -1)),
        Command::AddGroupClient { group: "g".into(), username: "ann".into(), priority: 3 },
    ]);
    let order = |state: &State| {
        let roles = state.roles_of(&state.clients()["ann"]);
        roles.map(|role| role.name.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(order(&state), "a b c");
    state.apply(Command::RemoveClientRole("ann".into(), "b".into())).unwrap();
    state.apply(Command::AddClientRole("ann".into(), Ranked::new("b", 5))).unwrap();
    assert_eq!(order(&state), "b a c");
    assert_eq!(state.members("g"), [Ranked::new("ann", 3)]);
    let clients = Some(Vec::new());
    let changes = GroupChanges { clients, ..GroupChanges::default() };
    state.apply(Command::ModifyGroup("g".into(), changes)).unwrap();
    assert_eq!(order(&state), "b a");
}

#[test]
fn what_refers_to_something_deleted_goes_with_it() {
    let mut state = applied(vec![
        Command::CreateRole(role("r", "t")),
        Command::CreateGroup(Group { roles: vec![Ranked::new("r", 1)], ..group("g") }),
        Command::CreateClient(Client {
            roles: vec![Ranked::new("r", 1)],
            groups: vec![Ranked::new("g", 1)],
            ..client("ann")
        }),
        Command::SetAnonymousGroup(Some("g".into())),
    ]);
    assert_eq!(state.apply(Command::DeleteGroup("g".into())), Err(Refused::AnonymousGroup));
    let change = state.apply(Command::DeleteRole("r".into())).unwrap();
    let affected = Affected::by(&change, &state);
    assert!(affected.everybody && affected.users.contains("ann"), "{affected:?}");
    assert!(state.clients()["ann"].roles.is_empty() && state.groups()["g"].roles.is_empty());
    state.apply(Command::SetAnonymousGroup(None)).unwrap();
    state.apply(Command::DeleteGroup("g".into())).unwrap();
    assert!(state.clients()["ann"].groups.is_empty());
}

#[test]
fn a_role_affects_those_that_have_it() {
    let mut state = applied(vec![
        Command::CreateRole(role("r", "t")),
        Command::CreateGroup(Group { roles: vec![Ranked::new("r", 1)], ..group("g") }),
        Command::CreateClient(Client { roles: vec![Ranked::new("r", 1)], ..client("ann") }),
        Command::CreateClient(Client { groups: vec![Ranked::new("g", 1)], ..client("bob") }),
        Command::CreateClient(client("eve")),
    ]);
    let change = state.apply(Command::AddRoleAcl("r".into(), acl("x/#", 2, false))).unwrap();
    let affected = Affected::by(&change, &state);
    assert_eq!(affected.users.iter().map(|name| &**name).collect::<Vec<_>>(), ["ann", "bob"]);
    assert!(!affected.everybody);
    let topics: Vec<_> = state.roles()["r"].acls.iter().map(|acl| &*acl.topic).collect();
    assert_eq!(topics, ["x/#", "t"], "by falling priority");
    let again = Command::AddRoleAcl("r".into(), acl("x/#", 2, true));
    assert_eq!(state.apply(again), Err(Refused::AclExists));
    let wrong = Command::AddRoleAcl("r".into(), acl("x/#/y", 2, true));
    assert_eq!(state.apply(wrong), Err(Refused::AclTopic));
}

#[test]
fn nobody_can_lock_the_last_administrator_out() {
    let controls = "$CONTROL/dynamic-security/#";
    let admin = Client {
        administration: Some(AdministrationRole::Administrator),
        roles: vec![Ranked::new("admin", -1)],
        ..client("admin")
    };
    let mut state = applied(vec![
        Command::CreateRole(role("admin", controls)),
        Command::CreateClient(admin.clone()),
        Command::CreateClient(client("ann")),
    ]);
    let disable = ClientChanges { disabled: Some(true), ..ClientChanges::default() };
    let demote = ClientChanges {
        administration: Some(Some(AdministrationRole::Operator)),
        ..ClientChanges::default()
    };
    let remove =
        Command::RemoveRoleAcl("admin".into(), AclKind::PublishClientSend, controls.into());
    let deny = RoleChanges {
        acls: Some(vec![acl("#", 9, true), acl("$CONTROL/#", 9, false)]),
        ..RoleChanges::default()
    };
    let before = state.clone();
    for (command, refused) in [
        (Command::DeleteClient("admin".into()), Refused::LastAdministrator),
        (Command::ModifyClient("admin".into(), disable.clone()), Refused::LastAdministrator),
        (Command::ModifyClient("admin".into(), demote), Refused::LastAdministrator),
        (Command::DeleteRole("admin".into()), Refused::LastController),
        (Command::RemoveClientRole("admin".into(), "admin".into()), Refused::LastController),
        (remove, Refused::LastController),
        (Command::ModifyRole("admin".into(), deny), Refused::LastController),
    ] {
        assert_eq!(state.apply(command.clone()), Err(refused), "{command:?}");
        assert_eq!(state, before, "{command:?}");
    }
    let second = Client { username: "second".into(), ..admin };
    state.apply(Command::CreateClient(second)).unwrap();
    state.apply(Command::ModifyClient("admin".into(), disable)).unwrap();
    assert_eq!(
        state.apply(Command::DeleteClient("second".into())),
        Err(Refused::LastAdministrator)
    );
}

#[test]
fn names_and_sizes_are_checked() {
    let mut state = State::default();
    for name in ["", "a\nb", "a\0", &"n".repeat(513)] {
        let refused = state.apply(Command::CreateClient(client(name)));
        assert!(matches!(refused, Err(Refused::Name { .. })), "{name:?}");
    }
    let reserved = state.apply(Command::CreateClient(client("platform:ann")));
    assert_eq!(reserved, Err(Refused::ReservedName));
    let many = (0..1001).map(|at| acl(&format!("t/{at}"), 0, true)).collect();
    let role = Role { name: "r".into(), acls: many, ..Role::default() };
    assert!(matches!(state.apply(Command::CreateRole(role)), Err(Refused::TooMany { .. })));
    assert_eq!(state, State::default());
    let text = format!("{:?}", client("ann"));
    assert!(!text.contains("yg4ZYIlMrO"), "a hash is in no log: {text}");
}

#[test]
fn a_token_is_known_by_its_digest_until_it_expires() {
    let made = ApiToken::generate("ci", AdministrationRole::Viewer, 1_000, Some(2_000)).unwrap();
    assert!(!format!("{:?}", made.row).contains(&made.secret));
    let mut state = applied(vec![Command::CreateToken(made.row)]);
    let principal = state.verify_token(&made.secret, 1_999).unwrap();
    assert_eq!((&*principal.name, principal.role), ("ci", AdministrationRole::Viewer));
    assert_eq!(state.verify_token(&made.secret, 2_000), None);
    assert_eq!(state.verify_token(&made.secret[..made.secret.len() - 1], 1_999), None);
    state.apply(Command::DeleteToken("ci".into())).unwrap();
    assert_eq!(state.verify_token(&made.secret, 1_999), None);
}

#[test]
fn names_of_ranked_lists_are_unique() {
    let twice = vec![Ranked::new("r", 1), Ranked::new("r", 2)];
    let state = applied(vec![
        Command::CreateRole(role("r", "t")),
        Command::CreateClient(Client { roles: twice, ..client("ann") }),
    ]);
    assert_eq!(names(&state.clients()["ann"].roles), ["r"]);
}

#[test]
fn a_replaced_hash_is_another_one_of_the_same_password() {
    let parse = |text: &str| PasswordHash::parse(text).unwrap();
    let argon2 = PasswordHasher::default().hash(b"secret").unwrap().hash;
    let replace = |outdated: &PasswordHash| {
        let (username, outdated, hash) = ("ann".into(), outdated.clone(), argon2.clone());
        Command::ReplaceHash { username, outdated, hash }
    };
    let mut state = applied(vec![Command::CreateClient(client("ann"))]);
    let table = Arc::new(IdentityTable::default());
    let mut compiler = Compiler::new(Arc::clone(&table), &state);
    let mut apply = |state: &mut State, command| {
        let change = state.apply(command).unwrap();
        compiler.follow(&change, &Affected::by(&change, state), state);
        change.rows.len()
    };
    let revision = || {
        format!("{:?}", table)
            .split("revision: ")
            .nth(1)
            .unwrap()
            .split(',')
            .next()
            .unwrap()
            .to_owned()
    };
    let before = revision();
    assert_eq!(apply(&mut state, replace(&argon2)), 0, "it has another hash");
    assert_eq!(apply(&mut state, replace(&parse(HASH))), 1);
    let ann = &state.clients()["ann"];
    assert!(ann.password.as_ref() == Some(&argon2) && ann.replaced.is_some());
    assert_eq!(revision(), before, "its connections stay");
    let password = Some(PasswordHasher::default().hash(b"secret").unwrap());
    let changes = ClientChanges { password, ..ClientChanges::default() };
    apply(&mut state, Command::ModifyClient("ann".into(), changes));
    assert!(state.clients()["ann"].replaced.is_none());
    assert_ne!(revision(), before, "a password that is set ends them");
}

#[test]
fn a_removed_name_is_kept_until_it_is_forgotten() {
    let mut state = applied(vec![
        Command::CreateClient(client("ann")),
        Command::CreateClient(client("bob")),
        Command::DeleteClient("ann".into()),
    ]);
    let twice = state.apply(Command::DeleteClient("ann".into()));
    assert_eq!(twice, Err(Refused::ClientNotFound), "a script that removes it again ends nothing");
    assert!(state.removed().contains_key("ann"));
    for name in ["ann", "bob"] {
        let change = state.apply(Command::ForgetClient(name.into())).unwrap();
        assert!(Affected::by(&change, &state).users.contains(name));
    }
    assert!(state.clients().is_empty() && state.removed().is_empty());
    let unknown = state.apply(Command::ForgetClient("ann".into()));
    assert_eq!(unknown, Err(Refused::ClientNotFound));
}

#[test]
fn of_many_removed_names_the_oldest_are_forgotten() {
    let mut state = State::default();
    for number in 0..200_002 {
        let name: Box<str> = number.to_string().into();
        state.apply(Command::CreateClient(client(&name))).unwrap();
        state.apply(Command::DeleteClient(name)).unwrap();
    }
    assert_eq!(state.removed().len(), 200_000);
    let left = ["0", "1", "2", "200001"].map(|name| state.removed().contains_key(name));
    assert_eq!(left, [false, false, true, true]);
}

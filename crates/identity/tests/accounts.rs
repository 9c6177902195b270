//! Accounts of the platform in the store: what is refused, what ends with what, and files of earlier versions.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt as _;

use fulmar_identity::{
    Account, AccountChange, Client, Command, DeviceToken, Membership, PasswordHash, Refused,
    Session, State, Store,
};

fn account(name: &str, roles: &[(&str, &str)]) -> Account {
    let role =
        |(twin, role): &(&str, &str)| Membership { twin: (*twin).into(), role: (*role).into() };
    let memberships = roles.iter().map(role).collect();
    Account { name: name.into(), memberships, created_ms: 1, ..Account::default() }
}

fn create(state: &mut State, account: Account) -> Result<(), Refused> {
    state.apply(Command::CreateAccount(account)).map(drop)
}

fn change(state: &mut State, name: &str, change: AccountChange) -> Result<(), Refused> {
    state.apply(Command::ModifyAccount(name.into(), change)).map(drop)
}

fn session(id: &str, issued_ms: i64) -> AccountChange {
    AccountChange::BeginSession(Session { id: id.into(), issued_ms, expires_ms: issued_ms + 1000 })
}

fn token(id: &str) -> DeviceToken {
    DeviceToken { id: id.into(), digest: "d".into(), created_ms: 5, expires_ms: None }
}

#[test]
fn names_differ_in_more_than_case_and_from_nothing_else() {
    let mut state = State::default();
    create(&mut state, account("Ann", &[])).unwrap();
    assert_eq!(create(&mut state, account("ANN", &[])), Err(Refused::AccountExists));
    assert_eq!(state.namesake("ann").map(|found| &*found.name), Some("Ann"));
    state.apply(Command::DeleteAccount("Ann".into())).unwrap();
    assert!(state.namesake("ann").is_none());
    create(&mut state, account("ann", &[])).unwrap();
    assert_eq!(create(&mut state, account("Ann", &[])), Err(Refused::AccountExists));
}

#[test]
fn a_new_client_has_the_name_of_no_account_nor_an_account_that_of_a_client() {
    let mut state = State::default();
    let client =
        |name: &str| Command::CreateClient(Client { username: name.into(), ..Client::default() });
    create(&mut state, account("ann", &[])).unwrap();
    assert_eq!(state.apply(client("ann")), Err(Refused::NameOfAccount));
    state.apply(client("bob")).unwrap();
    assert_eq!(create(&mut state, account("bob", &[])), Err(Refused::NameOfClient));
    // Of an earlier version's.
    state.apply(Command::ImportAccounts(vec![account("bob", &[])])).unwrap();
    assert_eq!(state.shared_names().collect::<Vec<_>>(), ["bob"]);
    change(&mut state, "bob", AccountChange::RevokeTokens).unwrap();
    state.apply(Command::DeleteClient("bob".into())).unwrap();
    assert_eq!(state.shared_names().next(), None);
    state.apply(Command::DeleteAccount("ann".into())).unwrap();
    state.apply(client("ann")).unwrap();
}

#[test]
fn of_earlier_names_that_differ_only_in_case_the_rest_stay_taken() {
    for removed in ["Ann", "ANN"] {
        let mut state = State::default();
        let earlier = vec![account("Ann", &[]), account("ANN", &[])];
        state.apply(Command::ImportAccounts(earlier)).unwrap();
        state.apply(Command::DeleteAccount(removed.into())).unwrap();
        assert!(state.namesake("ann").is_some_and(|left| *left.name != *removed), "{removed}");
        assert_eq!(create(&mut state, account("ann", &[])), Err(Refused::AccountExists));
    }
}

#[test]
fn nobody_is_left_without_somebody_who_could_undo_it() {
    let mut state = State::default();
    let root = |name: &str| Account { server_admin: true, ..account(name, &[]) };
    create(&mut state, root("root")).unwrap();
    let removed = state.apply(Command::DeleteAccount("root".into()));
    assert_eq!(removed, Err(Refused::LastServerAdmin("root".into())));
    create(&mut state, root("root2")).unwrap();
    state.apply(Command::DeleteAccount("root".into())).unwrap();

    create(&mut state, account("ann", &[("north", "admin"), ("south", "reader")])).unwrap();
    let to = |twin: &str, role: Option<&str>, keep: Option<&str>| AccountChange::Membership {
        twin: twin.into(),
        role: role.map(Into::into),
        keep: keep.map(Into::into),
    };
    for role in [None, Some("office")] {
        let refused = change(&mut state, "ann", to("north", role, Some("admin")));
        assert_eq!(refused, Err(Refused::LastMember), "{role:?}");
    }
    create(&mut state, account("bob", &[("south", "admin"), ("north", "admin")])).unwrap();
    change(&mut state, "ann", to("north", Some("office"), Some("admin"))).unwrap();
    change(&mut state, "bob", to("north", None, None)).unwrap();
    assert_eq!(change(&mut state, "bob", to("north", None, None)), Err(Refused::AccountNotFound));
    let roles = |name: &str| ["north", "south"].map(|twin| state.accounts()[name].role_in(twin));
    assert_eq!(roles("ann"), [Some("office"), Some("reader")]);
    assert_eq!(roles("bob"), [None, Some("admin")]);
}

#[test]
fn a_password_ends_sessions_and_leaves_tokens_and_a_removed_account_leaves_nothing() {
    let mut state = State::default();
    create(&mut state, account("ann", &[])).unwrap();
    for number in 0..40 {
        change(&mut state, "ann", session(&format!("s{number}"), number)).unwrap();
    }
    assert_eq!(state.accounts()["ann"].sessions.len(), 32);
    assert!(state.account_with("s7").is_none() && state.account_with("s8").is_some());
    let add = |id: &str, others_end_ms| AccountChange::AddToken { token: token(id), others_end_ms };
    change(&mut state, "ann", add("t1", None)).unwrap();
    create(&mut state, account("bob", &[])).unwrap();
    let taken = change(&mut state, "bob", add("t1", None));
    assert_eq!(taken, Err(Refused::TokenExists), "it would be ann's");
    change(&mut state, "ann", add("t2", Some(9))).unwrap();
    let good = |state: &State, id: &str, now: i64| {
        state.account_with(id).is_some_and(|account| account.has_good(id, now))
    };
    assert!(good(&state, "t1", 8) && !good(&state, "t1", 9) && good(&state, "t2", i64::MAX));
    assert!(good(&state, "s9", 1008) && !good(&state, "s9", 1009));
    let hash = PasswordHash::from_password("secret").unwrap();
    change(&mut state, "ann", AccountChange::Password(hash)).unwrap();
    assert!(state.account_with("s9").is_none() && good(&state, "t2", 0));
    change(&mut state, "ann", AccountChange::ForgetExpired(9)).unwrap();
    assert!(state.account_with("t1").is_none());
    for number in 3..18 {
        change(&mut state, "ann", add(&format!("t{number}"), None)).unwrap();
    }
    let many = change(&mut state, "ann", add("t18", None));
    assert_eq!(many, Err(Refused::TooManyDeviceTokens(16)));
    change(&mut state, "ann", add("t18", Some(5))).unwrap();
    assert_eq!(state.accounts()["ann"].tokens.len(), 1, "the others have ended");
    let unknown = change(&mut state, "ann", AccountChange::RevokeToken("t1".into()));
    assert_eq!(unknown, Err(Refused::DeviceTokenNotFound));
    state.apply(Command::DeleteAccount("ann".into())).unwrap();
    assert!(state.account_with("t18").is_none());
}

/// A file of the version before, with a client.
fn earlier_file(path: &std::path::Path) {
    let client = Client { username: "ann".into(), ..Client::default() };
    Store::open(path).unwrap().apply(vec![Command::CreateClient(client)]).unwrap();
    let by_hand = rusqlite::Connection::open(path).unwrap();
    by_hand.execute_batch("DROP TABLE account; PRAGMA user_version = 2").unwrap();
}

/// The version of the copy, and its clients.
fn copied(folder: &std::path::Path) -> (i64, i64) {
    let copy = rusqlite::Connection::open(folder.join("identities.db.version-2")).unwrap();
    let version = copy.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    let clients = "SELECT count(*) FROM entity WHERE kind = 3";
    (version, copy.query_row(clients, [], |row| row.get(0)).unwrap())
}

#[test]
fn processes_that_open_a_file_of_the_version_before_at_once_copy_it_once() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identities.db");
        earlier_file(&path);
        let begin = std::sync::Barrier::new(4);
        let open = || {
            begin.wait();
            Store::open(&path).map(drop)
        };
        std::thread::scope(|scope| {
            let all = [(); 4].map(|()| scope.spawn(open));
            all.into_iter().for_each(|one| one.join().unwrap().unwrap());
        });
        assert_eq!(copied(folder.path()), (2, 1));
        assert!(!folder.path().join("identities.db.new-copy").exists());
    }
}

#[test]
fn a_file_of_the_version_before_gets_accounts_and_stays_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("identities.db");
    earlier_file(&path);
    let mut store = Store::open(&path).unwrap();
    store.apply(vec![Command::CreateAccount(account("bob", &[("north", "admin")]))]).unwrap();
    drop(store);
    let store = Store::open(&path).unwrap();
    assert!(store.state().clients().contains_key("ann"));
    assert_eq!(store.state().accounts()["bob"].role_in("north"), Some("admin"));
    let copy = folder.path().join("identities.db.version-2");
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(copied(folder.path()), (2, 1));
}

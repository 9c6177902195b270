//! The store on a disk that loses its power after each possible change: the state is then the one before the command that
//! was being applied or the one after it, and nothing that was reported as applied is lost.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use fastrand::Rng;
use fulmar_identity::{
    Acl, AclKind, Client, ClientChanges, Command, Group, Ranked, Role, State, Store,
};
use fulmar_simulator::bad_disk::{Disk, Mount, Survival, mount};

struct Folder {
    path: PathBuf,
    mount: Mount,
    _folder: tempfile::TempDir,
}

impl Folder {
    fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let mount = mount(folder.path(), Arc::default());
        Folder { path: folder.path().join("identities.db"), mount, _folder: folder }
    }

    /// Applies batches until the power fails. Returns how many were reported as applied.
    fn apply(&self, disk: &Arc<Disk>, batches: &[Vec<Command>]) -> usize {
        self.mount.replace(Arc::clone(disk));
        let Ok(mut store) = Store::open_exclusively(&self.path) else { return 0 };
        batches.iter().take_while(|batch| store.apply((*batch).clone()).is_ok()).count()
    }

    fn restored(&self, disk: Disk) -> State {
        self.mount.replace(Arc::new(disk));
        Store::open_exclusively(&self.path).unwrap().state().clone()
    }
}

/// Commands of one row and of several, and batches of several commands.
fn batches() -> Vec<Vec<Command>> {
    let acl = |topic: &str| Acl {
        kind: AclKind::SubscribePattern,
        topic: topic.into(),
        priority: 0,
        allow: true,
    };
    let client = |name: &str| Client {
        username: name.into(),
        // Several pages, so that a torn write is possible.
        texts: fulmar_identity::Texts { name: None, description: Some("x".repeat(2000).into()) },
        roles: vec![Ranked::new("r", 1)],
        groups: vec![Ranked::new("g", 1)],
        ..Client::default()
    };
    let disabled = ClientChanges { disabled: Some(true), ..ClientChanges::default() };
    vec![
        vec![Command::CreateRole(Role { name: "r".into(), ..Role::default() })],
        vec![Command::CreateGroup(Group { name: "g".into(), ..Group::default() })],
        ["a", "b", "c", "d"].map(|name| Command::CreateClient(client(name))).into(),
        vec![Command::AddRoleAcl("r".into(), acl("a/#"))],
        vec![Command::ModifyClient("b".into(), disabled)],
        vec![Command::AddGroupRole("g".into(), Ranked::new("r", 2))],
        vec![Command::SetAnonymousGroup(Some("g".into()))],
        vec![Command::DeleteClient("c".into()), Command::AddRoleAcl("r".into(), acl("b"))],
        vec![Command::DeleteRole("r".into())],
    ]
}

#[test]
fn whenever_the_power_fails_the_state_is_the_old_one_or_the_new_one() {
    let batches = batches();
    let mut states = vec![State::default()];
    for batch in &batches {
        let mut state = states.last().unwrap().clone();
        for command in batch {
            state.apply(command.clone()).unwrap();
        }
        states.push(state);
    }
    let folder = Folder::new();
    let whole = Arc::new(Disk::default());
    assert_eq!(folder.apply(&whole, &batches), batches.len());
    let (mut rng, mut crashes, mut old, mut new) = (Rng::with_seed(1), 0, 0, 0);
    for changes in 0..whole.changes() {
        for survival in [Survival::Nothing, Survival::Everything, Survival::Any, Survival::Any] {
            let disk = Arc::new(Disk::default());
            disk.fail_power_after(Some(changes));
            let applied = folder.apply(&disk, &batches);
            let left = disk.power_failure(survival, &mut rng);
            let restored = folder.restored(left);
            let is_old = restored == states[applied];
            let is_new = states.get(applied + 1) == Some(&restored);
            assert!(
                is_old || is_new,
                "change {changes}, {survival:?}, {applied} applied: {restored:?}"
            );
            (crashes, old, new) = (crashes + 1, old + u32::from(is_old), new + u32::from(is_new));
        }
    }
    println!("{crashes} crashes: {old} with the old state, {new} with the new one");
    assert!(old > 0 && new > 0);
}

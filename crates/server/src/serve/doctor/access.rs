//! Whether the service's user, which owns the data folder, may read the files that the configuration names. Only root
//! asks: other users have just tried it themselves.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::serve::check::finding::Finding;
use fulmar_config::Config;

const READ: u32 = 0o4;
/// For a folder: to pass through it.
const SEARCH: u32 = 0o1;

/// A user of the system.
#[derive(Clone, Debug)]
struct User {
    name: String,
    id: u32,
    groups: Vec<u32>,
}

/// Owner, group and permissions of a file.
#[derive(Clone, Copy, Debug)]
struct Rights {
    owner: u32,
    group: u32,
    mode: u32,
}

pub(super) fn check(config: &Config, file: Option<&Path>, data: &Path) -> Vec<Finding> {
    const CHECK: &str = "service's user";
    let Some(user) = rustix::process::geteuid().is_root().then(|| owner(data)).flatten() else {
        return Vec::new();
    };
    let files = config.files().map(|(_, path)| path).chain(file);
    let refused: Vec<PathBuf> = files.filter_map(|path| first_refusal(&user, path)).collect();
    let name = &user.name;
    if refused.is_empty() {
        return vec![Finding::ok(CHECK, format!("{name} may read what the configuration names"))];
    }
    let problem = |path: PathBuf| {
        let shown = path.display();
        let right = if path.is_dir() { "x" } else { "r" };
        let text = format!("{name}, who owns {}, may not use {shown}", data.display());
        // A secret must be its user's alone, or root's.
        let next = match is_private(&path) {
            true => format!("chown {name} {shown}"),
            false => format!("chgrp {name} {shown} && chmod g+{right} {shown}"),
        };
        Finding::problem(CHECK, text, next)
    };
    refused.into_iter().map(problem).collect()
}

/// Whether nobody but the owner may read a file.
fn is_private(path: &Path) -> bool {
    path.is_file() && rights(path).is_some_and(|rights| rights.mode & 0o077 == 0)
}

/// The owner of the data folder; `None` if it is root, or not known.
fn owner(data: &Path) -> Option<User> {
    let id = fs::metadata(data).ok()?.uid();
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    (id != 0).then(|| user(id, &users, &groups)).flatten()
}

/// A user by number, from the texts of /etc/passwd and /etc/group.
fn user(id: u32, users: &str, groups: &str) -> Option<User> {
    let (name, group) = users.lines().find_map(|line| {
        let mut words = line.split(':');
        let name = words.next()?;
        let its_id: u32 = words.nth(1)?.parse().ok()?;
        (its_id == id).then_some((name, words.next()?.parse::<u32>().ok()?))
    })?;
    let further = groups.lines().filter_map(|line| {
        let mut words = line.split(':').skip(2);
        let (id, members) = (words.next()?.parse().ok()?, words.next()?);
        members.split(',').any(|member| member == name).then_some(id)
    });
    Some(User { name: name.to_owned(), id, groups: [group].into_iter().chain(further).collect() })
}

/// The first folder on the way to a file, or the file itself, that the user may not use.
fn first_refusal(user: &User, path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let mut way: Vec<&Path> = path.ancestors().collect();
    way.reverse();
    let refused = way.into_iter().find(|part| {
        let wanted = if *part == path { READ } else { SEARCH };
        // Further rights may be in an access control list, which is not read.
        rights(part).is_some_and(|rights| !has_list(part) && !may(user, rights, wanted))
    });
    refused.map(Path::to_owned)
}

fn rights(path: &Path) -> Option<Rights> {
    let about = fs::metadata(path).ok()?;
    Some(Rights { owner: about.uid(), group: about.gid(), mode: about.mode() })
}

fn has_list(path: &Path) -> bool {
    rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0; 4096]).is_ok()
}

/// The first class that applies decides (inode(7)).
fn may(user: &User, rights: Rights, wanted: u32) -> bool {
    let shift = match rights {
        Rights { owner, .. } if owner == user.id => 6,
        Rights { group, .. } if user.groups.contains(&group) => 3,
        _ => 0,
    };
    rights.mode >> shift & wanted == wanted
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_users_groups_come_from_the_systems_files() {
        let users =
            "root:x:0:0::/root:/bin/sh\nfulmar:x:990:991::/var/lib/fulmar:/usr/sbin/nologin\n";
        let groups = "root:x:0:\ncertificates:x:44:ann,fulmar\nfulmars:x:45:fulmars\n";
        let user = user(990, users, groups).unwrap();
        assert_eq!((user.name.as_str(), user.groups.as_slice()), ("fulmar", [991, 44].as_slice()));
        assert!(super::user(5, users, groups).is_none());
    }

    #[test]
    fn the_first_class_that_applies_decides() {
        let user = User { name: "fulmar".to_owned(), id: 990, groups: vec![991] };
        let rights = |owner, group, mode| Rights { owner, group, mode };
        assert!(may(&user, rights(0, 991, 0o640), READ));
        assert!(!may(&user, rights(0, 0, 0o640), READ));
        assert!(may(&user, rights(0, 0, 0o644), READ));
        assert!(may(&user, rights(990, 0, 0o600), READ));
        // The owner's rights hold for the owner, also where others have more.
        assert!(!may(&user, rights(990, 0, 0o044), READ));
        assert!(may(&user, rights(0, 0, 0o711), SEARCH) && !may(&user, rights(0, 0, 0o711), READ));
    }

    #[test]
    fn the_folder_on_the_way_is_named() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let closed = folder.path().canonicalize().unwrap().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::write(closed.join("key"), "x").unwrap();
        // Of no user and no group that there is here.
        let user = User { name: "fulmar".to_owned(), id: 4_000_000_000, groups: Vec::new() };
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        set(folder.path(), 0o755);
        set(&closed.join("key"), 0o644);
        set(&closed, 0o755);
        assert_eq!(first_refusal(&user, &closed.join("key")), None);
        set(&closed.join("key"), 0o600);
        assert_eq!(first_refusal(&user, &closed.join("key")), Some(closed.join("key")));
        set(&closed, 0o700);
        assert_eq!(first_refusal(&user, &closed.join("key")), Some(closed));
    }
}

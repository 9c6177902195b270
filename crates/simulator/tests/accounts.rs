//! Accounts of an earlier version move from the platform's database to the store of identities: whenever the power fails
//! meanwhile, they are all in one of the two, and the next start has all of them.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastrand::Rng;
use fulmar_broker::auth::ExternalUsers as _;
use fulmar_broker::{Timestamp, User};
use fulmar_identity::DeviceToken;
use fulmar_platform::{Admin, Database, Platform, Settings};
use fulmar_simulator::bad_disk::{Disk, Mount, Survival, mount};
use rusqlite::Connection;

const COPY: &str = "platform-accounts.sql";
/// Devices with a token, so that the move is larger than a page.
const DEVICES: usize = 40;
const ACCOUNTS: usize = DEVICES + 2;

struct Folder {
    path: PathBuf,
    mount: Mount,
    /// Tokens of the devices.
    tokens: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Folder {
    fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let mount = mount(folder.path(), Arc::default());
        Folder { path: folder.path().to_owned(), mount, tokens: Vec::new(), _folder: folder }
    }

    /// A disk as the version before has left it.
    fn earlier(&mut self, rng: &mut Rng) -> Disk {
        let disk = Arc::new(Disk::default());
        self.mount.replace(Arc::clone(&disk));
        let admin = Admin::open(&self.path, &Database::File).unwrap();
        admin.add_twin("north", None, false).unwrap();
        drop(admin);
        let hash = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0$\
                    3q2+796tvu/erb7v3q2+796tvu/erb7v3q2+796tvu8";
        let platform = self.sql("platform.db");
        let account = |name: &str, server_admin: bool| {
            let sql = "INSERT INTO account VALUES (?1, 'it''s ' || ?1, ?2, ?3, 1)";
            platform.execute(sql, rusqlite::params![name, hash, server_admin]).unwrap();
        };
        account("root", true);
        account("ann", false);
        platform
            .execute_batch(
                "INSERT INTO member VALUES ('north', 'ann', 'office');
                 INSERT INTO session VALUES ('of-ann', 'ann', 1, 99999999999999);
                 INSERT INTO instance (twin, device, kind, account, seen_at)
                     VALUES ('north', 'phone', 'phone', 'ann', 1)",
            )
            .unwrap();
        for number in 0..DEVICES {
            let (name, new) = (format!("gw-{number}"), DeviceToken::generate(1).unwrap());
            account(&name, false);
            platform.execute("INSERT INTO member VALUES ('north', ?1, 'device')", [&name]).unwrap();
            let sql = "INSERT INTO credential VALUES (?1, ?2, ?3, 1, NULL)";
            platform.execute(sql, [&*new.row.id, &name, &new.row.digest]).unwrap();
            self.tokens.push(new.secret);
        }
        drop(platform);
        disk.image(Survival::Nothing, rng)
    }

    fn sql(&self, database: &str) -> Connection {
        let connection = Connection::open(self.path.join(database)).unwrap();
        connection.pragma_update(None, "foreign_keys", true).unwrap();
        connection
    }

    fn start(&self, disk: &Arc<Disk>) -> Result<Platform, String> {
        self.mount.replace(Arc::clone(disk));
        let opened = Platform::open(&self.path, Settings::default()).map(|(platform, _)| platform);
        opened.map_err(|error| error.to_string())
    }

    /// Accounts in the platform's database, and in the store of identities.
    fn counts(&self) -> (usize, usize) {
        let count = |database: &str| {
            let sql = "SELECT count(*) FROM account";
            self.sql(database).query_row(sql, [], |row| row.get(0)).unwrap_or(0)
        };
        (count("platform.db"), count("identities.db"))
    }

    fn has_all(&self, platform: &Platform) {
        assert!(platform.is_server_admin("root") && !platform.is_server_admin("ann"));
        assert!(platform.is_good("of-ann") && platform.knows("ann"));
        assert!(platform.may("ann", true, "fulmar/north/command/gw-1/x"));
        for (number, token) in self.tokens.iter().enumerate() {
            let name = format!("gw-{number}");
            let admitted = platform.admit(token, None, Timestamp(0)).unwrap();
            assert_eq!(admitted.user, User::external(&name));
            assert!(platform.may(&name, true, &format!("fulmar/north/batch/{name}")));
            assert!(!platform.may(&name, true, "fulmar/north/batch/phone"), "no rights are gained");
        }
    }
}

fn exists(path: &Path) -> bool {
    path.join(COPY).is_file()
}

#[test]
fn whenever_the_power_fails_all_accounts_are_in_one_of_the_two_databases() {
    let (mut folder, mut rng) = (Folder::new(), Rng::with_seed(1));
    let earlier = folder.earlier(&mut rng);
    let (mut before, mut after) = (0, 0);
    for changes in 0.. {
        let _ = std::fs::remove_file(folder.path.join(COPY));
        let disk = Arc::new(earlier.image(Survival::Nothing, &mut rng));
        disk.fail_power_after(Some(changes));
        let started = folder.start(&disk);
        if !disk.is_dead() {
            folder.has_all(&started.unwrap());
            break;
        }
        drop(started);
        for survival in [Survival::Nothing, Survival::Everything, Survival::Any] {
            let left = Arc::new(disk.image(survival, &mut rng));
            folder.mount.replace(Arc::clone(&left));
            let (in_platform, in_store) = folder.counts();
            assert!([0, ACCOUNTS].contains(&in_platform), "{changes}: {in_platform}");
            assert!([0, ACCOUNTS].contains(&in_store), "{changes}: {in_store}");
            assert!(in_platform + in_store > 0, "after {changes} changes, nobody is left");
            assert!(in_platform > 0 || exists(&folder.path), "no copy");
            *(if in_store > 0 { &mut after } else { &mut before }) += 1;
            folder.has_all(&folder.start(&left).unwrap());
            assert_eq!(folder.counts(), (0, ACCOUNTS), "after {changes} changes");
        }
    }
    println!("{before} crashes before the accounts had moved, {after} after");
    assert!(before >= 10 && after >= 10, "{before} {after}");
}

#[test]
fn who_is_removed_does_not_come_back_and_the_copy_restores_the_version_before() {
    let (mut folder, mut rng) = (Folder::new(), Rng::with_seed(2));
    let disk = Arc::new(folder.earlier(&mut rng));
    drop(folder.start(&disk).unwrap());
    let admin = Admin::open(&folder.path, &Database::File).unwrap();
    admin.remove_user("ann").unwrap();
    drop(admin);
    let platform = folder.start(&disk).unwrap();
    assert!(!platform.knows("ann") && !platform.is_good("of-ann"));
    drop(platform);
    assert_eq!(folder.counts(), (0, ACCOUNTS - 1));
    let copy = std::fs::read_to_string(folder.path.join(COPY)).unwrap();
    let database = folder.sql("platform.db");
    database.execute_batch(&copy).unwrap();
    let name: String = database
        .query_row("SELECT display_name FROM account WHERE name = 'ann'", [], |row| row.get(0))
        .unwrap();
    assert_eq!((name.as_str(), folder.counts().0), ("it's ann", ACCOUNTS));
}

//! The first administrator of a broker that other machines can reach, created by the first start if nobody could log in.
//!
//! With the platform, it is an account, otherwise a client that may do everything, change the store of identities included. The password is generated, and only its hash is stored with the user. It is also in a file that only the server's
//! user can read, from before the user exists, so that no crash loses it: the program shows the file's contents on a
//! terminal and removes it, or logs its path. It is in no log.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use fulmar_certs::authority::local_names;
use fulmar_certs::{files, random};
#[cfg(feature = "admin")]
use fulmar_identity::NewEntry;
use fulmar_identity::{
    AdministrationRole, Client, Command, Identities, PasswordHasher, Ranked, administrator_role,
};

use fulmar_config::Config;
use fulmar_part::Offers;

/// Names of the user: the first one that neither a client nor an account has.
const NAMES: [&str; 3] = ["admin", "administrator", "first-administrator"];
/// The file in the data folder.
pub(super) const FILE: &str = "first-administrator";
/// 32 letters and digits, without those that look alike.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// 100 random bits, in groups that a person can copy.
const GROUPS: usize = 4;
const GROUP: usize = 5;
const PASSWORD: &str = "password: ";

/// Creates it, if nobody could log in at a listener that other machines reach. Returns the file with its password.
#[cfg_attr(not(feature = "admin"), allow(unused_variables, reason = "there is no log"))]
pub(super) fn create(
    config: &Config,
    data: &Path,
    identities: &Arc<Identities>,
    offers: &Offers,
) -> anyhow::Result<Option<PathBuf>> {
    let Some(users) = Users::without_any(config, data, identities)? else { return Ok(None) };
    let file = data.join(FILE);
    // Of a start that was interrupted.
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    let earlier = written.lines().find_map(|line| line.strip_prefix(PASSWORD));
    let password = match earlier {
        Some(password) => password.to_owned(),
        None => generate()?,
    };
    let name = free_name(identities);
    files::write(&file, text(name, &password, &users, data).as_bytes(), true)?;
    let add = || users.add(name, &password);
    #[cfg(feature = "admin")]
    let add = || match &offers.administration_log {
        Some(log) => log.logged(NewEntry::local("server", "user.add", name, String::new()), add),
        None => add(),
    };
    add().context("the first administrator")?;
    Ok(Some(file))
}

/// Where users are stored. There is none yet.
enum Users {
    Identities(PasswordHasher, Arc<Identities>),
    #[cfg(feature = "platform")]
    Platform(fulmar_platform::Admin),
}

impl Users {
    /// `None` if there are users, or if none is needed.
    fn without_any(
        config: &Config,
        data: &Path,
        identities: &Arc<Identities>,
    ) -> anyhow::Result<Option<Users>> {
        #[cfg(feature = "platform")]
        if config.has_platform() {
            if !config.needs_user() && !config.has_reachable_pages() {
                return Ok(None);
            }
            let (database, identities) = (config.platform.database()?, Arc::clone(identities));
            let admin = fulmar_platform::Admin::without_users(data, &database, identities);
            return Ok(admin.context("platform")?.map(Users::Platform));
        }
        let _ = data;
        let hasher = PasswordHasher::new(config.auth.verifier_iterations());
        let identities = || Users::Identities(hasher, Arc::clone(identities));
        Ok(config.needs_user().then(identities))
    }

    fn add(&self, name: &str, password: &str) -> anyhow::Result<()> {
        match self {
            Users::Identities(hasher, identities) => {
                Ok(identities.apply(administrator(name, password, hasher)?)?)
            }
            #[cfg(feature = "platform")]
            Users::Platform(admin) => {
                let (display_name, role) = (None, None);
                let user =
                    fulmar_platform::UserToAdd { name, display_name, server_admin: true, role };
                Ok(admin.add_user(&user, password)?)
            }
        }
    }

    /// Where it can log in, and the command that changes its password. A user of the platform has no rights to topics
    /// beyond the platform's.
    fn advice(&self, name: &str, data: &Path) -> String {
        let data = data.display();
        match self {
            Users::Identities(..) => {
                let host = local_names().into_iter().next().unwrap_or("localhost".to_owned());
                format!(
                    "Try it: fulmar sub quic://{host} -u {name} -P - -t '#' -v\n\
                     Create users for devices: mosquitto_ctrl -h {host} -u {name} dynsec help\n\
                     Change the password: fulmar user passwd {name} --data {data}\n"
                )
            }
            #[cfg(feature = "platform")]
            Users::Platform(_) => format!(
                "Log in with a browser, at the address of the https listener.\n\
                 It may use the platform's topics only. Users for others: fulmar passwd NAME --file FILE, with [auth] \
                 password_file = \"FILE\" in the configuration.\n\
                 Create users for devices: fulmar user token --help\n\
                 Change the password: fulmar user passwd {name} --data {data}\n"
            ),
        }
    }
}

fn free_name(identities: &Identities) -> &'static str {
    let is_free = |name: &&str| {
        identities
            .read(|state| !state.clients().contains_key(*name) && state.namesake(name).is_none())
    };
    NAMES.into_iter().find(is_free).unwrap_or(NAMES[0])
}

/// A role that allows everything, and a client with it.
fn administrator(
    name: &str,
    password: &str,
    hasher: &PasswordHasher,
) -> anyhow::Result<Vec<Command>> {
    let role = administrator_role();
    let client = Client {
        username: name.into(),
        roles: vec![Ranked::new(&role.name, -1)],
        administration: Some(AdministrationRole::Administrator),
        ..Client::default()
    };
    let client = client.with_password(Some(hasher.hash(password.as_bytes())?));
    Ok(vec![Command::CreateRole(role), Command::CreateClient(client)])
}

fn generate() -> anyhow::Result<String> {
    let random: [u8; GROUPS * GROUP] = random()?;
    // Of 256 values, each letter has eight.
    let letter = |byte: &u8| char::from(LETTERS[usize::from(byte % 32)]);
    let groups = random.chunks(GROUP).map(|group| group.iter().map(letter).collect::<String>());
    Ok(groups.collect::<Vec<_>>().join("-"))
}

/// Text with which a person can log in for the first time.
fn text(name: &str, password: &str, users: &Users, data: &Path) -> String {
    let advice = users.advice(name, data);
    format!("The first administrator:\nname: {name}\n{PASSWORD}{password}\n{advice}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn passwords_differ_and_have_no_letters_that_look_alike() {
        let passwords: HashSet<String> = (0..100).map(|_| generate().unwrap()).collect();
        assert_eq!(passwords.len(), 100);
        for password in passwords {
            assert_eq!(password.len(), GROUPS * GROUP + GROUPS - 1, "{password}");
            let known = |letter: char| letter == '-' || LETTERS.contains(&(letter as u8));
            assert!(password.chars().all(known), "{password}");
            assert!(!password.contains(['0', 'o', '1', 'l']), "{password}");
        }
    }

    #[test]
    fn the_password_of_an_interrupted_start_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let toml = "[listeners]\nmqtt = [\"0.0.0.0:0\"]\nhttps = []\n";
        let config = Config::from_toml(toml).unwrap().with_data_dir(folder.path());
        let password = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap();
            text.lines().find_map(|line| line.strip_prefix(PASSWORD)).unwrap().to_owned()
        };
        let store = folder.path().join(fulmar_identity::FILE);
        let create = || {
            let identities = Identities::open(&store, Box::new(|_, _, _| ())).unwrap();
            create(&config, folder.path(), &Arc::new(identities), &Offers::default()).unwrap()
        };
        let file = create().unwrap();
        let first = password(&file);
        // The crash came before the user was stored.
        std::fs::remove_file(&store).unwrap();
        let file = create().unwrap();
        assert_eq!(password(&file), first);
        assert_eq!(create(), None);
    }
}

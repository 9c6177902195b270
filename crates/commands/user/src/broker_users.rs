//! `fulmar user` for a broker without the platform: the clients of its identity store, with the server running or not.

use std::path::{Path, PathBuf};

use fulmar_command::password::FIRST_USER;
use fulmar_identity::{
    AdministrationRole, Client, ClientChanges, Command, FILE, PasswordHasher, Ranked, Store, Texts,
    administrator_role,
};

use serde_json::{Value, json};

#[cfg(feature = "admin")]
use crate::node_users::NodeUsers;
use fulmar_command::exit::Usage;
use fulmar_config::Config;

/// Database that every broker with storage has in its data folder.
const BROKER_DATABASE: &str = "broker.db";

/// The identity store of a data folder.
pub(crate) struct BrokerUsers {
    file: PathBuf,
    /// The cluster's, if the folder is one of a node.
    #[cfg(feature = "admin")]
    node: Option<NodeUsers>,
    hasher: PasswordHasher,
    /// Whether clients may have any user name until there is one here.
    names_are_labels: bool,
}

impl BrokerUsers {
    /// `None` if the users of this data folder are the platform's.
    pub(crate) fn in_folder(
        config: &Config,
        data: &Path,
        platform_database: &Path,
    ) -> Option<BrokerUsers> {
        let file = data.join(FILE);
        // The configuration may not be the server's: what it has created shows what it runs. With PostgreSQL, nothing of
        // the platform is in the folder.
        let has_run = file.is_file() || data.join(BROKER_DATABASE).is_file();
        let in_folder = config.platform.database.0.is_empty();
        let only_store = has_run && in_folder && !platform_database.is_file();
        let hasher = PasswordHasher::new(config.auth.verifier_iterations());
        #[cfg(feature = "admin")]
        let (node, is_node) = {
            let node = NodeUsers::in_folder(data);
            let is_node = node.is_some() && !config.cluster.is_on();
            (node, is_node)
        };
        #[cfg(not(feature = "admin"))]
        let is_node = false;
        (only_store || is_node || !config.has_platform()).then_some(BrokerUsers {
            file,
            #[cfg(feature = "admin")]
            node,
            hasher,
            names_are_labels: config.names_are_labels(),
        })
    }

    fn open(&self) -> anyhow::Result<Store> {
        if self.file.is_file() {
            return Ok(Store::open(&self.file)?);
        }
        let text = format!(
            "{} does not exist: name the folder of `fulmar serve` with --data or --config, or create the first user \
             there with `fulmar user add NAME --admin`",
            self.file.display()
        );
        Err(Usage(text).into())
    }

    /// Adds a client; as an administrator, it may do everything, change the store included. The password is asked for when
    /// the person knows what else changes.
    pub(crate) fn add(
        &self,
        name: &str,
        text_name: Option<&str>,
        admin: bool,
        password: impl FnOnce() -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        #[cfg(feature = "admin")]
        if let Some(node) = &self.node {
            if text_name.is_some() {
                return Err(Usage("--display-name: users of a cluster have none".to_owned()).into());
            }
            return node.add(name, admin, password);
        }
        let is_first =
            || anyhow::Ok(!self.file.is_file() || self.open()?.state().admits_unknown_names());
        if self.names_are_labels && is_first()? {
            eprintln!("{FIRST_USER}");
        }
        let password = password()?;
        if let Some(folder) = self.file.parent() {
            fulmar_certs::files::make_private_dir(folder)?;
        }
        let mut store = Store::open(&self.file)?;
        let role = administrator_role();
        let client = Client {
            username: name.into(),
            texts: Texts { name: text_name.map(Into::into), description: None },
            ..Client::default()
        };
        let mut client = client.with_password(Some(self.hasher.hash(password.as_bytes())?));
        let mut commands = Vec::new();
        if admin {
            client.administration = Some(AdministrationRole::Administrator);
            client.roles = vec![Ranked::new(&role.name, -1)];
            if !store.state().roles().contains_key(&role.name) {
                commands.push(Command::CreateRole(role));
            }
        }
        commands.push(Command::CreateClient(client));
        let detail = json!({ "administration": admin });
        self.logged("user.add", name, detail, || Ok(store.apply(commands)?))?;
        eprintln!("added {name} to the broker's users in {}", self.file.display());
        Ok(())
    }

    /// Changes a password; the client's connections end.
    pub(crate) fn set_password(&self, name: &str, password: &str) -> anyhow::Result<()> {
        #[cfg(feature = "admin")]
        if let Some(node) = &self.node {
            return node.set_password(name, password);
        }
        let password = Some(self.hasher.hash(password.as_bytes())?);
        let changes = ClientChanges { password, ..ClientChanges::default() };
        let (mut store, commands) =
            (self.open()?, vec![Command::ModifyClient(name.into(), changes)]);
        let detail = json!({ "password": true });
        self.logged("user.change", name, detail, || Ok(store.apply(commands)?))
    }

    /// Removes a client; its connections end.
    pub(crate) fn remove(&self, name: &str) -> anyhow::Result<()> {
        #[cfg(feature = "admin")]
        if let Some(node) = &self.node {
            return node.remove(name);
        }
        let (mut store, commands) = (self.open()?, vec![Command::DeleteClient(name.into())]);
        self.logged("user.remove", name, Value::Null, || Ok(store.apply(commands)?))
    }

    /// Makes a change that the server's log of changes has.
    fn logged<T>(
        &self,
        action: &'static str,
        object: &str,
        detail: Value,
        make: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<()> {
        let data = self.file.parent().unwrap_or(Path::new("."));
        logged(data, action, object, detail, make).map(drop)
    }

    /// A line per client: name, text name, administration role, and its roles and groups.
    pub(crate) fn list(&self) -> anyhow::Result<Vec<String>> {
        #[cfg(feature = "admin")]
        if let Some(node) = &self.node {
            return node.list();
        }
        let store = self.open()?;
        Ok(store.state().clients().values().map(|client| line(client)).collect())
    }
}

/// Makes a change that the log of changes of a data folder has.
pub(crate) fn logged<T>(
    data: &Path,
    action: &'static str,
    object: &str,
    detail: Value,
    make: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    #[cfg(feature = "admin")]
    return fulmar_admin::logged_locally(data, action, object, &detail, make);
    #[cfg(not(feature = "admin"))]
    {
        let _ = (data, action, object, detail);
        make()
    }
}

fn line(client: &Client) -> String {
    let text_name = client.texts.name.as_deref().unwrap_or(&client.username);
    let administration = client.administration.map(|role| role.name().to_owned());
    let disabled = client.disabled.then(|| "disabled".to_owned());
    let roles = client.roles.iter().map(|own| format!("role={}", own.name));
    let groups = client.groups.iter().map(|own| format!("group={}", own.name));
    let rest: Vec<String> =
        administration.into_iter().chain(disabled).chain(roles).chain(groups).collect();
    format!("{}\t{text_name}\t{}", client.username, rest.join(" "))
}

pub(crate) fn only_platform(action: &str) -> anyhow::Error {
    let text = format!(
        "`fulmar user {action}` is for users of the platform, and this broker has none: give clients roles with \
         `mosquitto_ctrl dynsec`"
    );
    Usage(text).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_a_broker_without_the_platform_has_used_has_the_brokers_users() {
        let folder = tempfile::tempdir().unwrap();
        let platform = folder.path().join("platform.db");
        let are_the_brokers =
            || BrokerUsers::in_folder(&Config::default(), folder.path(), &platform).is_some();
        // Before the first start, the configuration decides; by default, there is a platform.
        assert!(!are_the_brokers());
        std::fs::write(folder.path().join(BROKER_DATABASE), "").unwrap();
        assert!(are_the_brokers());
        std::fs::write(&platform, "").unwrap();
        assert!(!are_the_brokers());
    }
}

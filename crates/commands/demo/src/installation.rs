//! Fills a data folder before the server runs on it: a twin with its users, and what the platform's own API stores.

use std::path::Path;

use anyhow::{Context, bail};
use fulmar_certs::files;
use fulmar_platform::{Admin, DATABASE_FILE, Database, Platform, Role, Settings, UserToAdd};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::api::{Api, password};

/// A demonstration's data folder.
pub(super) struct Installation<'a> {
    pub(super) data: &'a Path,
    /// The file below it with what the demonstration was made with.
    pub(super) file: &'a str,
    /// The twin's identifier and name, and whether it has homes.
    pub(super) twin: (&'a str, &'a str, bool),
    /// The user that is a device, and how it is shown.
    pub(super) device: (&'a str, Option<&'a str>),
}

/// Result of an installation.
pub(super) struct Installed {
    pub(super) users: Vec<User>,
    /// API token of the device.
    pub(super) token: String,
}

/// Somebody who can log in.
pub(super) struct User {
    pub(super) name: &'static str,
    /// `None` when the folder had the user already.
    pub(super) password: Option<String>,
    pub(super) about: &'static str,
    pub(super) role: Role,
}

/// Reads the parameters with which the demonstration in a folder was made; `None` for a new folder. Fails if the folder
/// holds something else than a demonstration `of` this kind.
pub(super) fn made_with<T: DeserializeOwned>(
    data: &Path,
    file: &str,
    of: &str,
) -> anyhow::Result<Option<T>> {
    let path = data.join(file);
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| path.display().to_string()),
        Err(_) if data.join(DATABASE_FILE).exists() => {
            bail!("{} contains no demonstration{of}; choose another folder", data.display())
        }
        Err(_) => Ok(None),
    }
}

impl Installation<'_> {
    /// Makes what is missing; `fill` stores it with the administrator's rights.
    pub(super) fn create(
        &self,
        mut users: Vec<User>,
        made_with: &impl Serialize,
        fill: impl AsyncFnOnce(&Api) -> anyhow::Result<()>,
    ) -> anyhow::Result<Installed> {
        let is_new = !self.data.join(self.file).exists();
        let (twin, name, has_homes) = self.twin;
        let (device, device_name) = self.device;
        let admin = Admin::open(self.data, &Database::File)?;
        let device_password = password()?;
        if is_new {
            admin.add_twin(twin, Some(name), has_homes)?;
            let add = |name, display_name, role, password: &str| {
                let (server_admin, role) = (role == Role::Admin, Some((twin, role)));
                admin.add_user(&UserToAdd { name, display_name, server_admin, role }, password)
            };
            for user in &mut users {
                let password = password()?;
                add(user.name, None, user.role, &password)?;
                user.password = Some(password);
            }
            add(device, device_name, Role::Device, &device_password)?;
        } else {
            admin.set_password(device, &device_password)?;
        }
        drop(admin);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let settings = Settings { max_requests_per_s: u32::MAX, ..Settings::default() };
        let (platform, _) = Platform::open(self.data, settings)?;
        let mut api = Api::new(platform.router());
        let token = runtime.block_on(async {
            let admin = users.iter().find(|user| user.role == Role::Admin);
            if let Some(password) = admin.and_then(|user| user.password.as_deref()) {
                api.log_in("admin", password).await?;
                fill(&api).await?;
            }
            api.log_in(device, &device_password).await?;
            Ok::<_, anyhow::Error>(api.token.clone())
        })?;
        drop(api);
        platform.close();
        if is_new {
            files::write(&self.data.join(self.file), &serde_json::to_vec(made_with)?, false)?;
        }
        Ok(Installed { users, token })
    }
}

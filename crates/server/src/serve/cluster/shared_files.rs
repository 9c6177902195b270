//! What a broker alone has in files beside its database, and a cluster shares: it becomes the cluster's with
//! `fulmar cluster init`, and this machine's again with `fulmar cluster leave`.

use std::path::Path;

use anyhow::Context as _;
use fulmar_gateway::outbox::Outbox;
use fulmar_identity::{FILE as IDENTITIES, Store};
use fulmar_store::Follower;

use super::platform_copy;
use fulmar_config::Config;
use fulmar_part::shared_rows::{Database, outbox_prefix, without_prefix};

/// Makes what the files in a data folder have the cluster's.
pub(super) fn bring(config: &Config, data: &Path, follower: &mut Follower) -> anyhow::Result<()> {
    let identities = data.join(IDENTITIES);
    if identities.exists() {
        let rows = Store::open(&identities).and_then(|store| store.rows()).context("identities")?;
        follower.replace_rows(Database::Identities as u8, &rows)?;
    }
    #[cfg(feature = "admin")]
    {
        let rows = fulmar_admin::shared_rows(data)?;
        follower.replace_rows(Database::Administration as u8, &rows)?;
    }
    let mut outboxes = Vec::new();
    for upstream in config.upstreams().filter(|upstream| upstream.is_on()) {
        let (name, prefix) = (upstream.outbox_file(), outbox_prefix(&upstream.outbox_file()));
        if data.join(&name).exists() {
            let rows = Outbox::open(&data.join(&name), upstream.bounds())?.rows()?;
            outboxes
                .extend(rows.into_iter().map(|(key, value)| ([&*prefix, &key].concat(), value)));
        }
    }
    follower.replace_rows(Database::Outbox as u8, &outboxes)?;
    platform_copy::bring(config, data, follower)
}

/// Writes what the cluster has into the files of a data folder.
pub(super) fn take_back(
    config: &Config,
    data: &Path,
    follower: &mut Follower,
) -> anyhow::Result<()> {
    let rows = follower.rows(Database::Identities as u8)?;
    let identities = data.join(IDENTITIES);
    if !rows.is_empty() || identities.exists() {
        Store::open(&identities)
            .and_then(|mut store| store.replace(&rows))
            .context("identities")?;
    }
    #[cfg(feature = "admin")]
    fulmar_admin::replace_rows(data, &follower.rows(Database::Administration as u8)?)?;
    let outboxes = follower.rows(Database::Outbox as u8)?;
    for upstream in config.upstreams().filter(|upstream| upstream.is_on()) {
        let name = upstream.outbox_file();
        Outbox::replace(&data.join(&name), &without_prefix(&outboxes, &outbox_prefix(&name)))?;
    }
    platform_copy::take_back(config, data, follower)
}

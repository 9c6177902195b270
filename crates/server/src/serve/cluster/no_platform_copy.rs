//! Replaces `platform_copy` in builds without the platform: there is none.

use std::path::Path;

use fulmar_store::Follower;

use fulmar_config::Config;

pub(super) struct PlatformCopy;

impl PlatformCopy {
    pub(super) fn open(_: &Config, _: &Path) -> anyhow::Result<PlatformCopy> {
        Ok(PlatformCopy)
    }

    pub(super) fn follow(&mut self, _: &mut Follower) -> anyhow::Result<()> {
        Ok(())
    }
}

pub(super) fn may_have_users(_: &Config, _: &mut Follower) -> anyhow::Result<bool> {
    Ok(false)
}

pub(super) fn bring(_: &Config, _: &Path, _: &mut Follower) -> anyhow::Result<()> {
    Ok(())
}

pub(super) fn begin(_: &Config, _: &Path, _: u64) -> anyhow::Result<()> {
    Ok(())
}

pub(super) fn start_over(_: &Path) -> anyhow::Result<()> {
    Ok(())
}

pub(super) fn take_back(_: &Config, _: &Path, _: &mut Follower) -> anyhow::Result<()> {
    Ok(())
}

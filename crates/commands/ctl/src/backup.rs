//! `fulmar ctl backup` and `restore`.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use fulmar_command::exit::Usage;
use http::Method;
use http_body_util::BodyExt as _;

use crate::api::Api;
use crate::table;

/// Writes a backup. A file that is not complete does not stay.
pub(crate) async fn run(api: &Api, path: &Path) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let file = file.with_context(|| path.display().to_string())?;
    let outcome = fill(api, file).await.with_context(|| path.display().to_string());
    match outcome {
        Ok(bytes) => api.done(&format!("{}: {bytes} bytes", path.display())),
        Err(_) => std::fs::remove_file(path).with_context(|| path.display().to_string())?,
    }
    outcome.map(drop)
}

async fn fill(api: &Api, mut file: File) -> anyhow::Result<u64> {
    let mut body = api.begin_long(Method::GET, "/backup").await?.into_body();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the backup broke off; see the server's log")?;
        if let Some(data) = frame.data_ref() {
            file.write_all(data)?;
            bytes += data.len() as u64;
        }
    }
    file.sync_all()?;
    Ok(bytes)
}

/// Restores a backup.
pub(crate) fn restore(file: &Path, data: Option<&Path>) -> anyhow::Result<()> {
    let data = data.ok_or_else(|| {
        Usage("name the folder into which to restore with --data; it must be empty".to_owned())
    })?;
    let manifest = fulmar_admin::restore(file, data)?;
    let created = u64::try_from(manifest.created_ms).unwrap_or(0);
    println!(
        "restored the backup of {} by Fulmar {} into {}",
        table::time(created),
        manifest.version,
        data.display()
    );
    for left_out in &manifest.left_out {
        println!("not in it: {left_out}");
    }
    println!(
        "The configuration of that time is {0}/configuration/fulmar.toml: compare it with yours.\n\
         Start the broker: fulmar serve --data {0}",
        data.display()
    );
    Ok(())
}

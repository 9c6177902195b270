//! Checks the data folder and the databases in it, without changing them.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use rustix::fs::{Access, access};

use super::finding::Finding;
use super::processes::Process;
use crate::serve::secrets;
use fulmar_config::Config;

const CHECK: &str = "data folder";

/// Bytes of SQLite's smallest page.
const SMALLEST_PAGE: u64 = 512;

/// Where the state is.
pub(super) const BROKER: &str = "broker.db";

/// The server that uses the data folder now.
pub(crate) fn server_of(data: &Path) -> Option<Process> {
    let files = [BROKER, "outbox.db", "tickets.db.lock"];
    files.into_iter().find_map(|name| Process::with_lock_on(&data.join(name)))
}

pub(super) fn check(config: &Config, data: &Path, server: Option<&Process>) -> Vec<Finding> {
    if let Err(finding) = folder(data) {
        return vec![finding];
    }
    let mut findings = vec![match server {
        Some(process) => Finding::ok(
            CHECK,
            format!(
                "{} is in use by {process}, whose place this configuration takes after a restart",
                data.display()
            ),
        ),
        None if data.is_dir() => Finding::ok(CHECK, format!("{} is writable", data.display())),
        None => Finding::ok(CHECK, format!("{} will be created", data.display())),
    }];
    let secrets = secrets::FILES.iter().filter_map(|name| secrets::read(&data.join(name)).err());
    findings.extend(secrets.map(|error| Finding::error(CHECK, &error)));
    let mut add = |wanted: bool, name: &str, inspect: &dyn Fn(&Path) -> anyhow::Result<()>| {
        let path = data.join(name);
        if wanted && path.exists() {
            findings.push(match database(&path, inspect) {
                Ok(()) => Finding::ok("database", format!("{} can be used", path.display())),
                Err(error) => Finding::error("database", &error),
            });
        }
    };
    add(config.storage.enabled, BROKER, &|path| Ok(fulmar_store::inspect(path)?));
    for upstream in config.upstreams() {
        add(upstream.is_on(), &upstream.outbox_file(), &|path| {
            let Some((version, owner)) = sqlite_header(path)? else { return Ok(()) };
            Ok(fulmar_gateway::outbox::check_owner(path, version.into(), owner.into())?)
        });
    }
    #[cfg(feature = "platform")]
    add(config.has_platform(), fulmar_platform::DATABASE_FILE, &|path| {
        let Some((version, _)) = sqlite_header(path)? else { return Ok(()) };
        let version = usize::try_from(version).unwrap_or(usize::MAX);
        Ok(fulmar_platform::Platform::check_file(path, version)?)
    });
    findings
}

/// Whether the folder can be used, or created.
fn folder(data: &Path) -> Result<(), Finding> {
    let shown = data.display();
    if data.exists() && !data.is_dir() {
        let next = "choose another one with [server] data_dir or --data";
        return Err(Finding::problem(CHECK, format!("{shown} is not a folder"), next));
    }
    let there = data.ancestors().find(|folder| folder.as_os_str().is_empty() || folder.exists());
    let there = there.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wanted = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    access(there, wanted).map_err(|error| {
        let error = std::io::Error::from(error);
        let text = format!("{}: {error}", there.display());
        let next = format!(
            "run this as the user of the service, or make the folder that user's: chown -R USER {shown}; or choose \
             another one with [server] data_dir or --data"
        );
        Finding::problem(CHECK, text, next)
    })
}

fn database(path: &Path, inspect: &dyn Fn(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    access(path, Access::READ_OK | Access::WRITE_OK)
        .map_err(std::io::Error::from)
        .with_context(|| path.display().to_string())?;
    inspect(path)
}

/// SQLite's user version and application id, from the file's header (<https://www.sqlite.org/fileformat.html>, section
/// 1.3); `None` for an empty file, such as one whose first transaction is still in the log.
fn sqlite_header(path: &Path) -> anyhow::Result<Option<(i32, i32)>> {
    let shown = || path.display().to_string();
    let mut header = [0; 100];
    let mut file = File::open(path).with_context(shown)?;
    match file.metadata().with_context(shown)?.len() {
        0 => return Ok(None),
        length @ 1..SMALLEST_PAGE => anyhow::bail!(
            "{} is damaged (only {length} bytes of it are written): restore a backup, or move the file away to start \
             empty",
            path.display()
        ),
        _ => file.read_exact(&mut header).with_context(shown)?,
    }
    if !header.starts_with(b"SQLite format 3\0") {
        anyhow::bail!(
            "{} is not a database: restore a backup, or move the file away to start empty",
            path.display()
        );
    }
    let number = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&header[at..at + 4]);
        i32::from_be_bytes(bytes)
    };
    Ok(Some((number(60), number(68))))
}

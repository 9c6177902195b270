//! `fulmar serve --check`: reads and checks what a start reads and checks, as far as that changes nothing, and goes on
//! after what it finds. It shares the functions of the start, so that both agree.
//!
//! The findings are `fulmar doctor`'s, too, which also looks at the machine. Nothing is contacted: not the upstream
//! broker, not the CA of `[acme]`, not a database server.

mod certificate;
pub(crate) mod data;
pub(crate) mod exposed;
pub(crate) mod finding;
pub(crate) mod listeners;
pub(crate) mod processes;

use std::path::Path;
use std::time::SystemTime;

use anyhow::Context as _;

use self::finding::{Finding, Report};
use fulmar_config::{Config, Upstream, set};
use fulmar_telemetry::Telemetry;

const FIRST_ADMINISTRATOR: &str =
    "nobody can log in from other machines yet: the next start creates a first administrator";

/// Everything about this configuration, read from `file` if there is one.
pub(crate) fn check(config: &Config, file: Option<&Path>) -> Report {
    let folder = config.data_dir();
    let server = data::server_of(&folder);
    let mut findings = vec![configuration(file)];
    findings.extend(secrets(file));
    findings.extend(exposed::check(config, &folder));
    findings.extend(files(config));
    findings.push(certificate::check(config, &folder, SystemTime::now()));
    findings.extend(data::check(config, &folder, server.as_ref()));
    findings.extend(platform(config, &folder));
    findings.extend(users(config));
    findings.extend(listeners::check(config, server.as_ref()));
    Report(findings)
}

fn configuration(file: Option<&Path>) -> Finding {
    let text = match file {
        Some(file) => format!("{} is valid", file.display()),
        None => "no file: defaults, and the environment".to_owned(),
    };
    Finding::ok("configuration", text)
}

/// Secrets of the configuration file that every user can read.
fn secrets(file: Option<&Path>) -> Option<Finding> {
    let file = file?;
    let keys = Config::world_readable_secrets(file);
    (!keys.is_empty()).then(|| {
        let text = format!("every user of this machine can read {}", keys.join(", "));
        Finding::warning("configuration", text, format!("chmod 640 {}", file.display()))
    })
}

/// The files that the configuration names. Certificates are checked elsewhere.
fn files(config: &Config) -> Vec<Finding> {
    const CHECK: &str = "files";
    let unreadable: Vec<Finding> =
        config.unreadable_files().map(|error| Finding::error(CHECK, &error.into())).collect();
    if !unreadable.is_empty() {
        return unreadable;
    }
    let errors = [
        config.access_control().map(drop),
        Telemetry::open(&config.otlp).map(drop),
        upstreams(config, upstream),
        upstreams(config, dead_letters),
        #[cfg(feature = "platform")]
        config.platform.settings().map(drop),
    ];
    let errors = errors.into_iter().filter_map(Result::err);
    let mut findings: Vec<Finding> = errors.map(|error| Finding::error(CHECK, &error)).collect();
    if findings.is_empty() && config.files().next().is_some() {
        let keys: Vec<String> = config.files().map(|(key, _)| key).collect();
        findings.push(Finding::ok(CHECK, format!("{} can be used", keys.join(", "))));
    }
    findings
}

/// Checks every upstream broker, up to the first error.
fn upstreams(
    config: &Config,
    check: impl Fn(&Upstream) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    config.upstreams().filter(|upstream| upstream.is_on()).try_for_each(check)
}

fn upstream(upstream: &Upstream) -> anyhow::Result<()> {
    let options = upstream.options("check")?;
    options.tls_config().with_context(|| format!("[{}]", upstream.section()))?;
    Ok(())
}

/// The folder of the dead-letter file.
fn dead_letters(upstream: &Upstream) -> anyhow::Result<()> {
    let Some((path, _)) = upstream.dead_letters() else { return Ok(()) };
    let folder = path.parent().and_then(set).unwrap_or(Path::new("."));
    let place = if path.exists() { path } else { folder };
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK)
        .map_err(std::io::Error::from)
        .with_context(|| {
            format!("[{}.outbox] dead_letter_file {}", upstream.section(), place.display())
        })
}

/// The platform's web app, and users.
#[cfg(feature = "platform")]
fn platform(config: &Config, data: &Path) -> Vec<Finding> {
    if !config.has_platform() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if !super::has_web_app() {
        let text = "this program was built without the web app; the API works";
        findings.push(Finding::warning("web app", text, "build it again after `make web`"));
    }
    let database = config.platform.database_with(None);
    let file = matches!(database, Ok(fulmar_platform::Database::File));
    if file && !data.join(fulmar_platform::DATABASE_FILE).exists() {
        findings.push(match config.check_ways_in() {
            Err(error) => Finding::error("platform", &error.into()),
            Ok(()) if config.needs_user() || config.has_reachable_pages() => {
                Finding::ok("platform", FIRST_ADMINISTRATOR)
            }
            Ok(()) => Finding::ok("platform", "has no users yet: fulmar user add NAME --admin"),
        });
    }
    findings
}

#[cfg(not(feature = "platform"))]
fn platform(_: &Config, _: &Path) -> Vec<Finding> {
    Vec::new()
}

/// The user that the first start creates where there is no platform.
fn users(config: &Config) -> Option<Finding> {
    #[cfg(feature = "platform")]
    if config.has_platform() {
        return None;
    }
    config.needs_user().then(|| Finding::ok("users", FIRST_ADMINISTRATOR))
}

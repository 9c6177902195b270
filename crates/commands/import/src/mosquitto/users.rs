//! The users of the password file and of the dynamic security file, as one password file.

use std::collections::{BTreeMap, BTreeSet};

use fulmar_broker::User;
use fulmar_broker::auth::check_hash;

use super::conf::{Conf, Options};
use super::dynsec::{self, Dynsec};
use super::files::{self, Files};
use super::passwords;
use super::report::{Error, Report, SourceLine};

/// The plugin's file name, on every system.
const DYNSEC: &str = "mosquitto_dynamic_security";

/// All users.
#[derive(Clone, Debug, Default)]
pub(super) struct Users {
    /// Names and hashes, in order of the names.
    pub(super) hashes: BTreeMap<String, String>,
    /// Names that only the password file has.
    pub(super) only_in_password_file: BTreeSet<String>,
    /// The dynamic security file.
    pub(super) dynsec: Option<Dynsec>,
}

/// Reads the files that the options for access name.
pub(super) fn read(
    files: &dyn Files,
    conf: &Conf,
    security: &Options,
    report: &mut Report,
) -> Result<Users, Error> {
    let mut users = Users::default();
    let mut barred = BTreeSet::new();
    if let Some((file, text, dynsec)) = dynsec_file(files, conf, security, report)? {
        for client in &dynsec.clients {
            let name = client.username.as_str();
            let line = dynsec::line_of(&text, "username", name);
            let place = SourceLine { file: file.file.clone(), line };
            // mosquitto does not look in the password file for a user of this one.
            barred.insert(name.to_owned());
            if let Some(hash) = usable(client, &place, report) {
                users.hashes.insert(name.to_owned(), hash);
            }
        }
        users.dynsec = Some(dynsec);
    }
    if let Some((line, path)) = security.path("password_file") {
        let text = files::read(files, path, Some(&line.place))?;
        for user in passwords::parse(path, &text, report) {
            if let Err(error) = User::check_name(&user.name) {
                report.not_translated(&user.place, "user", error.to_string());
            } else if user.name.starts_with('#') {
                report.not_translated(
                    &user.place,
                    "user",
                    "a name that begins with # is a comment",
                );
            } else if barred.contains(&user.name) {
                let text =
                    format!("{}: the dynamic security file has this user, and counts", user.name);
                report.not_translated(&user.place, "user", text);
            } else {
                users.only_in_password_file.insert(user.name.clone());
                users.hashes.insert(user.name, user.hash);
            }
        }
    }
    Ok(users)
}

/// The hash of a client that may log in.
fn usable(client: &dynsec::Client, place: &SourceLine, report: &mut Report) -> Option<String> {
    let name = client.username.as_str();
    if User::check_name(name).is_err()
        || name.starts_with('#')
        || name.trim() != name
        || name.contains(':')
    {
        let text =
            format!("{name:?}: a user name is not empty, does not begin with # and has no colon");
        report.not_translated(place, "client", text);
        return None;
    }
    if client.disabled {
        report.not_translated(place, "client", format!("{name} is disabled, and left out"));
        return None;
    }
    if let Some(id) = client.clientid.as_deref() {
        let text = format!("{name} may use any client identifier, not only {id:?}");
        report.differs(place, "client", text);
    }
    let Some(hash) = client.hash() else {
        let text = format!("{name} has no password; set one: `fulmar passwd {name}`");
        report.not_translated(place, "client", text);
        return None;
    };
    if let Err(error) = check_hash(&hash) {
        let text = format!("{name} has no usable hash ({error}): `fulmar passwd {name}`");
        report.not_translated(place, "client", text);
        return None;
    }
    Some(hash)
}

/// The dynamic security plugin's file, with its text; reports other plugins.
fn dynsec_file(
    files: &dyn Files,
    conf: &Conf,
    security: &Options,
    report: &mut Report,
) -> Result<Option<(SourceLine, String, Dynsec)>, Error> {
    let mut found = None;
    for line in security.lines_named("plugin").chain(security.lines_named("auth_plugin")) {
        if line.value.contains(DYNSEC) {
            let names = ["plugin_opt_config_file", "auth_opt_config_file"];
            let Some(file) = security.first(&names).or_else(|| conf.security.first(&names)) else {
                return Err(Error::malformed(&line.place, "plugin_opt_config_file is missing"));
            };
            let path = std::path::Path::new(file.value.as_str());
            let text = files::read(files, path, Some(&file.place))?;
            let dynsec = dynsec::parse(path, &text)?;
            let advice = format!(
                "its users and roles become a password file and rules, which mosquitto_ctrl does not change; \
                 for users that it does, run `fulmar import dynamic-security {}`",
                path.display()
            );
            report.differs(&file.place, &file.name, advice);
            found = Some((SourceLine { file: path.into(), line: 0 }, text, dynsec));
        } else {
            let text = "plugins of mosquitto cannot be loaded; Fulmar has passwords, tokens and certificates \
                        (docs/access.md), and refuses users whom only the plugin knows";
            report.not_translated(&line.place, &line.name, text);
        }
    }
    Ok(found)
}

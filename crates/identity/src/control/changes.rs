//! Which commands of a request change something, for the log of changes.

use serde_json::{Map, Value};

use super::json::Fields;
use super::{Asker, refusal};
use crate::change_log::{ChangeLog, NewEntry};

/// Commands that change something, and what the administration API's log calls such a change.
const CHANGES: &[(&str, &str)] = &[
    ("setDefaultACLAccess", "access.change"),
    ("createClient", "user.add"),
    ("deleteClient", "user.remove"),
    ("modifyClient", "user.change"),
    ("setClientPassword", "user.change"),
    ("setClientId", "user.change"),
    ("addClientRole", "user.change"),
    ("removeClientRole", "user.change"),
    ("enableClient", "user.change"),
    ("disableClient", "user.change"),
    ("createGroup", "group.add"),
    ("deleteGroup", "group.remove"),
    ("modifyGroup", "group.change"),
    ("addGroupClient", "group.change"),
    ("removeGroupClient", "group.change"),
    ("addGroupRole", "group.change"),
    ("removeGroupRole", "group.change"),
    ("setAnonymousGroup", "group.change"),
    ("createRole", "role.add"),
    ("deleteRole", "role.remove"),
    ("modifyRole", "role.change"),
    ("addRoleACL", "role.rule.add"),
    ("removeRoleACL", "role.rule.remove"),
];

/// Fields that the log shows. Whatever else a command has may be a secret.
const SHOWN: &[&str] = &[
    "username",
    "clientid",
    "groupname",
    "rolename",
    "textname",
    "textdescription",
    "groups",
    "roles",
    "clients",
    "acls",
    "acltype",
    "topic",
    "priority",
    "allow",
    "forget",
];

/// Carries out commands, of which those that change something are logged before and after.
pub(super) fn logged(
    log: &dyn ChangeLog,
    asker: &Asker,
    commands: Vec<Value>,
    carry_out: impl FnOnce(Vec<Value>) -> Vec<Value>,
) -> Vec<Value> {
    let known = commands.iter().enumerate();
    let (places, changes): (Vec<usize>, Vec<NewEntry>) =
        known.filter_map(|(place, command)| Some((place, change(asker, command)?))).unzip();
    if changes.is_empty() {
        return carry_out(commands);
    }
    let ids = match log.begin(&changes) {
        Ok(ids) => ids,
        Err(error) => {
            let refused = |command: &Value| {
                refusal(command["command"].as_str().unwrap_or("Unknown command"), &error)
            };
            return commands.iter().map(refused).collect();
        }
    };
    let answers = carry_out(commands);
    let result = |place: usize| answers.get(place)?.get("error")?.as_str();
    let results = ids.into_iter().zip(places);
    let results: Vec<(i64, &str)> =
        results.map(|(id, place)| (id, result(place).unwrap_or("ok"))).collect();
    log.end(&results);
    answers
}

fn change(asker: &Asker, command: &Value) -> Option<NewEntry> {
    let command = command.as_object()?;
    let fields = Fields(command);
    let name = fields.text("command")?;
    let (name, action) = CHANGES.iter().find(|(change, _)| change.eq_ignore_ascii_case(name))?;
    let shown = command.iter().filter(|(field, _)| SHOWN.contains(&field.as_str()));
    let mut detail: Map<String, Value> =
        shown.map(|(field, value)| (field.clone(), value.clone())).collect();
    detail.insert("command".to_owned(), (*name).into());
    let object = fields.subject().unwrap_or_default().to_owned();
    let (who, from) = (asker.username.as_ref().unwrap_or(&asker.client_id), asker.from);
    let detail = Value::Object(detail).to_string();
    Some(NewEntry { who: who.to_string(), from: from.to_string(), action, object, detail })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Desk;
    use parking_lot::Mutex;
    use serde_json::json;

    /// Log of changes: its entries, and results; refuses everything if it is `full`.
    #[derive(Default)]
    struct Log {
        entries: Mutex<Vec<(NewEntry, String)>>,
        full: bool,
    }

    impl ChangeLog for Log {
        fn begin(&self, changes: &[NewEntry]) -> Result<Vec<i64>, String> {
            if self.full {
                return Err("no room".to_owned());
            }
            let mut entries = self.entries.lock();
            let first = entries.len();
            entries.extend(changes.iter().map(|change| (change.clone(), String::new())));
            Ok((first..entries.len()).map(|id| i64::try_from(id).unwrap()).collect())
        }

        fn end(&self, results: &[(i64, &str)]) {
            let mut entries = self.entries.lock();
            for (id, result) in results {
                entries[usize::try_from(*id).unwrap()].1 = (*result).to_owned();
            }
        }
    }

    fn send(desk: &mut Desk, log: &Log, commands: &Value) -> String {
        let asker = Asker { client_id: "c".into(), username: None, from: [127, 0, 0, 1].into() };
        super::super::respond(
            desk,
            &asker,
            log,
            json!({ "commands": commands }).to_string().as_bytes(),
        )
    }

    #[test]
    fn every_change_is_logged_with_its_result_and_no_secret() {
        let (mut desk, log) = (Desk::in_memory().unwrap(), Log::default());
        let create = json!({ "command": "CREATECLIENT", "username": "ann", "password": "s3cret", "hash": "s3cret" });
        let list = json!({ "command": "listClients" });
        send(&mut desk, &log, &json!([create, list, create, { "command": "nonsense" }]));
        let entries = log.entries.lock();
        let results: Vec<_> = entries
            .iter()
            .map(|(change, result)| (change.action, &*change.object, &**result))
            .collect();
        assert_eq!(
            results,
            [("user.add", "ann", "ok"), ("user.add", "ann", "Client already exists")]
        );
        assert!(!format!("{entries:?}").contains("s3cret"), "{entries:?}");
    }

    #[test]
    fn a_change_that_cannot_be_logged_is_not_made() {
        let (mut desk, log) = (Desk::in_memory().unwrap(), Log { full: true, ..Log::default() });
        let create = json!({ "command": "createClient", "username": "ann", "password": "x" });
        let answer = send(&mut desk, &log, &json!([create]));
        assert!(answer.contains("no room"), "{answer}");
        assert!(desk.state().clients().is_empty());
    }

    /// A command added to `carry_out` must be added here, too.
    #[test]
    fn no_command_that_changes_something_is_missing() {
        let source = include_str!("mod.rs");
        let names = source.split("fn carry_out").nth(1).unwrap().lines();
        let names = names.filter_map(|line| line.trim().strip_prefix('"')?.split_once("\" =>"));
        let mut count = 0;
        for (name, _) in
            names.filter(|(name, _)| !name.starts_with("get") && !name.starts_with("list"))
        {
            count += 1;
            assert!(CHANGES.iter().any(|(change, _)| change.eq_ignore_ascii_case(name)), "{name}");
        }
        assert_eq!(count, CHANGES.len());
    }
}

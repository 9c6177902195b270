//! `$CONTROL/dynamic-security/v1`: commands as JSON, with the names, answers and words of mosquitto's dynamic security
//! plugin (2.0), so that `mosquitto_ctrl dynsec` and other tools work unchanged.
//!
//! A request is `{"commands": [{"command": NAME, ...}, ...]}`; each command has an answer in `responses`, with its
//! `correlationData`. Every command is a transaction of its own: an error does not end the request. Passwords are hashed
//! here, on the thread with the store, and are in no log and no answer.

mod changes;
mod clients;
mod groups;
mod json;
mod roles;

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::acl::AccessKind;
use crate::change_log::ChangeLog;
use crate::command::Command;
use crate::service::{ApplyError, Desk};
use json::{Fields, Outcome, apply};

/// Commands of one request.
const MAX_COMMANDS: usize = 1_000;

/// Size of an answer, in bytes, beyond which the rest of a request's commands is not carried out. A list may have twice as
/// much.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// Who asks, for the log.
#[derive(Clone, Debug)]
pub struct Asker {
    /// Client identifier.
    pub client_id: Box<str>,
    /// User name.
    pub username: Option<Box<str>>,
    /// The address.
    pub from: IpAddr,
}

/// Carries out a request, and returns the answer. Changes are in `log` before they are made.
pub fn respond(desk: &mut Desk, asker: &Asker, log: &dyn ChangeLog, request: &[u8]) -> String {
    let responses = match serde_json::from_slice::<Value>(request) {
        Err(_) => vec![refusal("Unknown command", "Payload not valid JSON")],
        Ok(Value::Object(mut request)) => match request.remove("commands") {
            Some(Value::Array(commands)) if commands.len() > MAX_COMMANDS => {
                let error =
                    format!("more than {MAX_COMMANDS} commands: send them in several requests");
                vec![refusal("Unknown command", &error)]
            }
            Some(Value::Array(commands)) => changes::logged(log, asker, commands, |commands| {
                let mut bytes = 0;
                let mut answer = |command| {
                    if bytes > MAX_ANSWER_BYTES {
                        let error =
                            "the answers so far are too long: send this command in another request";
                        return refusal("Unknown command", error);
                    }
                    let answer = response(desk, asker, command);
                    bytes += answer.to_string().len();
                    answer
                };
                commands.into_iter().map(&mut answer).collect()
            }),
            _ => vec![refusal("Unknown command", "Invalid/missing commands")],
        },
        Ok(_) => vec![refusal("Unknown command", "Invalid/missing commands")],
    };
    json!({ "responses": responses }).to_string()
}

/// The answer to a request that could not be carried out now.
pub fn busy() -> String {
    json!({ "responses": [refusal("Unknown command", &ApplyError::Busy.to_string())] }).to_string()
}

fn refusal(command: &str, error: &str) -> Value {
    json!({ "command": command, "error": error })
}

fn response(desk: &mut Desk, asker: &Asker, command: Value) -> Value {
    let Value::Object(command) = command else {
        return refusal("Unknown command", "Command not an object");
    };
    let fields = Fields(&command);
    let Some(name) = fields.text("command") else {
        return refusal("Unknown command", "Missing command");
    };
    let outcome = carry_out(desk, name, fields);
    let user = asker.username.as_deref();
    match &outcome {
        Ok(_) => tracing::info!(
            client = &*asker.client_id,
            user,
            command = name,
            subject = fields.subject(),
            "identities: command"
        ),
        Err(error) => tracing::info!(
            client = &*asker.client_id,
            user,
            command = name,
            subject = fields.subject(),
            error,
            "identities: command refused"
        ),
    }
    let mut answer = Map::new();
    answer.insert("command".into(), name.into());
    match outcome {
        Ok(Some(data)) => drop(answer.insert("data".into(), data)),
        Ok(None) => {}
        Err(error) => drop(answer.insert("error".into(), error.into())),
    }
    if let Some(correlation) = fields.text("correlationData") {
        answer.insert("correlationData".into(), correlation.into());
    }
    Value::Object(answer)
}

fn carry_out(desk: &mut Desk, name: &str, fields: Fields<'_>) -> Outcome {
    match name.to_ascii_lowercase().as_str() {
        "setdefaultaclaccess" => set_default_access(desk, fields),
        "getdefaultaclaccess" => Ok(Some(desk.read(|state| {
            let defaults = state.default_access();
            let acl = |kind: AccessKind| json!({ "acltype": kind.name(), "allow": defaults.get(kind) });
            json!({ "acls": AccessKind::ALL.map(acl) })
        }))),
        "createclient" => clients::create(desk, fields),
        "deleteclient" => clients::delete(desk, fields),
        "getclient" => clients::get(desk, fields),
        "listclients" => clients::list(desk, fields),
        "modifyclient" => clients::modify(desk, fields),
        "setclientpassword" => clients::set_password(desk, fields),
        "setclientid" => clients::set_id(desk, fields),
        "addclientrole" => clients::add_role(desk, fields),
        "removeclientrole" => clients::remove_role(desk, fields),
        "enableclient" => clients::set_disabled(desk, fields, false),
        "disableclient" => clients::set_disabled(desk, fields, true),
        "creategroup" => groups::create(desk, fields),
        "deletegroup" => groups::delete(desk, fields),
        "getgroup" => groups::get(desk, fields),
        "listgroups" => groups::list(desk, fields),
        "modifygroup" => groups::modify(desk, fields),
        "addgroupclient" => groups::add_client(desk, fields),
        "removegroupclient" => groups::remove_client(desk, fields),
        "addgrouprole" => groups::add_role(desk, fields),
        "removegrouprole" => groups::remove_role(desk, fields),
        "setanonymousgroup" => groups::set_anonymous(desk, fields),
        "getanonymousgroup" => Ok(Some(desk.read(|state| {
            json!({ "group": { "groupname": state.anonymous_group().unwrap_or_default() } })
        }))),
        "createrole" => roles::create(desk, fields),
        "deleterole" => roles::delete(desk, fields),
        "getrole" => roles::get(desk, fields),
        "listroles" => roles::list(desk, fields),
        "modifyrole" => roles::modify(desk, fields),
        "addroleacl" => roles::add_acl(desk, fields),
        "removeroleacl" => roles::remove_acl(desk, fields),
        _ => Err("Unknown command".into()),
    }
}

fn set_default_access(desk: &mut Desk, fields: Fields<'_>) -> Outcome {
    let acls = fields.array("acls").ok_or("Missing/invalid actions array")?;
    let known = acls.iter().filter_map(|acl| {
        let acl = Fields(acl.as_object()?);
        Some((AccessKind::from_name(acl.text("acltype")?)?, acl.bool("allow")?))
    });
    apply(desk, Command::SetDefaultAccess(known.collect()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_bounded_and_says_which_commands_were_left() {
        let mut desk = Desk::in_memory().unwrap();
        let asker = Asker { client_id: "c".into(), username: None, from: [127, 0, 0, 1].into() };
        let description = "d".repeat(2_000);
        let role = |n: u32| json!({ "command": "createRole", "rolename": format!("r{n}"), "textdescription": description });
        let create = json!({ "commands": (0..900).map(role).collect::<Vec<_>>() });
        respond(&mut desk, &asker, &(), create.to_string().as_bytes());
        let list = json!({ "command": "listRoles", "verbose": true });
        let request = json!({ "commands": vec![list; 1_000] });
        let answer = respond(&mut desk, &asker, &(), request.to_string().as_bytes());
        assert!(answer.len() < 2 * MAX_ANSWER_BYTES, "{}", answer.len());
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let responses = answer["responses"].as_array().unwrap();
        assert_eq!(responses.len(), 1_000);
        assert!(responses[1]["data"]["roles"].is_array());
        let error = responses[999]["error"].as_str().unwrap();
        assert!(error.contains("another request"), "{error}");
    }
}

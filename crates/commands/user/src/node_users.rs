//! `fulmar user` at a node of a cluster: users are shared through the cluster's log, so the node that serves makes the
//! changes, through the administration socket in its data folder.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use fulmar_admin::{PREFIX, SocketPath};
use fulmar_command::password::FIRST_USER;
use fulmar_text::percent::encode;
use serde_json::{Value, json};

use fulmar_command::exit::Usage;

/// Longest wait for an answer: NATS may have to elect a leader.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest answer in bytes.
const MAX_ANSWER: u64 = 64 << 20;
/// A role that allows everything.
const ADMINISTRATOR: &str = "admin";

/// The users of a cluster, at one of its nodes.
pub(crate) struct NodeUsers {
    data: PathBuf,
}

impl NodeUsers {
    /// `None` if this data folder is no node's.
    pub(crate) fn in_folder(data: &Path) -> Option<NodeUsers> {
        let member = data.join("cluster.json").is_file();
        member.then(|| NodeUsers { data: data.to_owned() })
    }

    /// Adds a user; as an administrator, it may do everything.
    pub(crate) fn add(
        &self,
        name: &str,
        admin: bool,
        password: impl FnOnce() -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        if self.request("GET", "/users?limit=1", None)?["admits_unknown_names"] == true {
            eprintln!("{FIRST_USER}");
        }
        let mut user = json!({ "name": name, "password": password()? });
        if admin {
            self.add_administrators_role()?;
            user["administration"] = "administrator".into();
            user["roles"] = json!([ADMINISTRATOR]);
        }
        self.request("POST", "/users", Some(&user)).map(drop)
    }

    pub(crate) fn set_password(&self, name: &str, password: &str) -> anyhow::Result<()> {
        let path = format!("/users/{}", encode(name));
        self.request("PATCH", &path, Some(&json!({ "password": password }))).map(drop)
    }

    pub(crate) fn remove(&self, name: &str) -> anyhow::Result<()> {
        self.request("DELETE", &format!("/users/{}", encode(name)), None).map(drop)
    }

    /// A line per user, as `fulmar user list` prints it at a broker alone, without text names.
    pub(crate) fn list(&self) -> anyhow::Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.request("GET", &format!("/users?limit=1000{cursor}"), None)?;
            lines.extend(page["users"].as_array().into_iter().flatten().map(line));
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={}", encode(next)),
                None => return Ok(lines),
            }
        }
    }

    /// Has the node do what `fulmar user` or `fulmar twin` says about its platform.
    #[cfg(feature = "platform")]
    pub(crate) fn administer(
        &self,
        command: &fulmar_platform::AdminCommand,
    ) -> anyhow::Result<fulmar_platform::AdminAnswer> {
        let answer = self.request(
            "POST",
            fulmar_admin::PLATFORM_COMMANDS,
            Some(&serde_json::to_value(command)?),
        )?;
        serde_json::from_value(answer).context("the node's answer is not what was asked for")
    }

    fn add_administrators_role(&self) -> anyhow::Result<()> {
        let roles = self.request("GET", "/roles?limit=1000", None)?;
        let mut names = roles["roles"].as_array().into_iter().flatten().map(|role| &role["name"]);
        if names.any(|name| *name == ADMINISTRATOR) {
            return Ok(());
        }
        let rule = |action, topic: &str| json!({ "action": action, "topic": topic, "allow": true });
        let topics = ["$CONTROL/#", "$SYS/#", "#"];
        let actions = ["publish", "receive", "subscribe", "unsubscribe"];
        let rules = actions.iter().flat_map(|action| topics.map(|topic| rule(action, topic)));
        let role = json!({ "name": ADMINISTRATOR, "rules": rules.collect::<Vec<_>>() });
        self.request("POST", "/roles", Some(&role)).map(drop)
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let data = self.data.display();
        let socket = SocketPath::in_folder(&self.data).with_context(|| data.to_string())?;
        let mut stream = UnixStream::connect(socket.path()).map_err(|_| {
            Usage(format!(
                "{data} is the folder of a cluster's node, which does not run: run this at the node that serves \
                 (`fulmar cluster status` shows it)"
            ))
        })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        write!(
            stream,
            "{method} {PREFIX}{path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).context("no answer from the node")?;
        parsed(&answer)
    }
}

/// The body of an answer of success; null if it has none.
fn parsed(answer: &[u8]) -> anyhow::Result<Value> {
    let end = answer.windows(4).position(|part| part == b"\r\n\r\n").context("no HTTP answer")?;
    let status = answer.get(9..12).and_then(|code| std::str::from_utf8(code).ok());
    let status: u16 = status.and_then(|code| code.parse().ok()).context("no HTTP answer")?;
    let body: Value = serde_json::from_slice(&answer[end + 4..]).unwrap_or_default();
    if (200..300).contains(&status) {
        return Ok(body);
    }
    match body["detail"].as_str() {
        Some(detail) => Err(anyhow!("{detail}")),
        None => bail!("the node answered {status}"),
    }
}

fn line(user: &Value) -> String {
    let name = user["name"].as_str().unwrap_or_default();
    let texts = |field: &str, prefix: &str| {
        let list = user[field].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(|text| format!("{prefix}{text}")).collect::<Vec<_>>()
    };
    let mut rest: Vec<String> =
        user["administration"].as_str().map(str::to_owned).into_iter().collect();
    if user["disabled"] == true {
        rest.push("disabled".to_owned());
    }
    rest.extend(texts("roles", "role="));
    rest.extend(texts("groups", "group="));
    format!("{name}\t{name}\t{}", rest.join(" "))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_the_nodes_own_words() {
        let head = "HTTP/1.1 503 Service Unavailable\r\n\r\n";
        let error = parsed(format!("{head}{{\"detail\":\"n2 serves\"}}").as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "n2 serves");
        assert_eq!(parsed(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap(), Value::Null);
        assert!(parsed(b"hello").is_err());
    }

    #[test]
    fn a_folder_without_a_running_node_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(NodeUsers::in_folder(folder.path()).is_none());
        std::fs::write(folder.path().join("cluster.json"), "{}").unwrap();
        let error = NodeUsers::in_folder(folder.path()).unwrap().list().unwrap_err().to_string();
        assert!(error.contains("node that serves"), "{error}");
    }
}

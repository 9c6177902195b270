//! Access rules: the ACL file and the roles of the dynamic security file as one list, in which the first match decides.
//!
//! mosquitto asks three questions: may the client publish to a topic, subscribe to a filter, receive a message? The
//! dynamic security file answers first. Where it is silent or does not know the user, the ACL file does, which denies
//! no subscription: it decides about each message. Without an entry, everything is denied. So the rules about receiving
//! come first and end with a denial of everything; the rules about subscribing after it no longer affect messages.
//!
//! In mosquitto, a filter that begins with a wildcard does not match topics that begin with `$`, and in Fulmar's rules
//! about receiving it does. Therefore, rules about such topics come before all others, and end with a denial, too.

use fulmar_identity::AclKind;

use super::acl::{self, Access, Whom};
use super::conf::{Conf, Options};
use super::dynsec::{Dynsec, Role};
use super::files::{self, Files};
use super::report::{Error, Report, SourceLine};
use super::users::Users;

/// Topics of the administration of the dynamic security plugin.
const CONTROL: &str = "$CONTROL/";

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Who {
    Anyone,
    Anonymous,
    User(String),
}

/// A rule, as in `[[acl.rules]]`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rule {
    pub(super) allow: bool,
    pub(super) who: Who,
    pub(super) action: &'static str,
    pub(super) topic: String,
    pub(super) exact: bool,
    /// Where it comes from.
    pub(super) from: String,
}

/// All rules.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) list: Vec<Rule>,
    pub(super) default_allow: bool,
}

#[derive(Default)]
struct Lists {
    receive_dollar: Vec<Rule>,
    receive: Vec<Rule>,
    publish: Vec<Rule>,
    subscribe: Vec<Rule>,
}

pub(super) fn translate(
    files: &dyn Files,
    conf: &Conf,
    security: &Options,
    users: &Users,
    report: &mut Report,
) -> Result<Rules, Error> {
    let acl_file = security.path("acl_file");
    let plugin = security.get("plugin").or(security.get("auth_plugin"));
    if acl_file.is_none() && users.dynsec.is_none() {
        // A plugin that is not translated may have denied anything.
        return Ok(Rules { list: Vec::new(), default_allow: plugin.is_none() });
    }
    let mut lists = Lists::default();
    if let Some(dynsec) = &users.dynsec {
        let place = plugin.map_or(&conf.place, |line| &line.place);
        lists.add_dynsec(dynsec, users, acl_file.is_some(), place, report);
    }
    if let Some((line, path)) = acl_file {
        let entries = acl::parse(path, &files::read(files, path, Some(&line.place))?)?;
        let named = entries.iter().any(|entry| matches!(entry.whom, Whom::User(_)));
        if named && users.hashes.is_empty() {
            let text = "without passwords, a client's user name counts as none, and the rules of users apply to \
                        nobody: create users with `fulmar passwd`, or use client certificates";
            report.differs(&line.place, "acl_file", text);
        }
        for entry in &entries {
            warn_of_placeholders(entry, report);
        }
        lists.add_entries(&entries);
        let from = "with an ACL file, mosquitto denies no subscription".to_owned();
        let subscribe = |topic| rule(true, Who::Anyone, "subscribe", topic, from.clone());
        lists.subscribe.extend(["$SYS/#", "#"].map(subscribe));
    }
    Ok(lists.finish())
}

fn rule(allow: bool, who: Who, action: &'static str, topic: &str, from: String) -> Rule {
    Rule { allow, who, action, topic: topic.to_owned(), exact: false, from }
}

fn warn_of_placeholders(entry: &acl::Entry, report: &mut Report) {
    let placeholder = ["%u", "%c"].into_iter().find(|name| entry.filter.contains(name));
    match (&entry.whom, placeholder) {
        (Whom::Everybody, Some(name)) => {
            let text =
                format!("{name} stands for no name that contains a slash; in mosquitto, it does");
            report.differs(&entry.place, "pattern", text);
        }
        (Whom::Anonymous | Whom::User(_), Some(name)) => {
            let text =
                format!("in Fulmar, {name} is a placeholder here, too, and not only in patterns");
            report.differs(&entry.place, "topic", text);
        }
        (_, None) => {}
    }
}

impl Lists {
    /// `receive` and `$` topics have their own order.
    fn add(&mut self, rule: Rule) {
        match rule.action {
            "publish" => self.publish.push(rule),
            "subscribe" => self.subscribe.push(rule),
            _ if rule.topic.starts_with('$') => self.receive_dollar.push(rule),
            _ => self.receive.push(rule),
        }
    }

    /// A user's own entries decide before patterns, and denials before the others.
    fn add_entries(&mut self, entries: &[acl::Entry]) {
        let is_pattern = |entry: &acl::Entry| entry.whom == Whom::Everybody;
        let mut ordered: Vec<&acl::Entry> = entries.iter().collect();
        ordered.sort_by_key(|entry| (is_pattern(entry), entry.access != Access::Deny));
        for entry in ordered {
            let who = match &entry.whom {
                Whom::Anonymous => Who::Anonymous,
                Whom::User(name) => Who::User(name.clone()),
                Whom::Everybody => Who::Anyone,
            };
            let allow = entry.access != Access::Deny;
            let from = format!("line {}", entry.place.line);
            if entry.access != Access::Read {
                self.add(rule(allow, who.clone(), "publish", &entry.filter, from.clone()));
            }
            if entry.access != Access::Write {
                self.add(rule(allow, who, "receive", &entry.filter, from));
            }
        }
    }

    fn add_dynsec(
        &mut self,
        dynsec: &Dynsec,
        users: &Users,
        has_acl_file: bool,
        place: &SourceLine,
        report: &mut Report,
    ) {
        let text = "`mosquitto_ctrl dynsec` and $CONTROL topics have no effect: change users with `fulmar passwd`, \
                    rules in fulmar.toml, then send SIGHUP";
        report.differs(place, "plugin", text);
        let denied = |role: &Role| {
            let kinds = [AclKind::UnsubscribeLiteral, AclKind::UnsubscribePattern];
            kinds.iter().any(|kind| role.entries(*kind).iter().any(|entry| !entry.allow))
        };
        if !dynsec.default_access.unsubscribe || dynsec.roles.iter().any(denied) {
            report.differs(place, "plugin", "clients may always unsubscribe");
        }
        let mut subjects = vec![(Who::Anonymous, dynsec.roles_of_anonymous())];
        let enabled =
            dynsec.clients.iter().filter(|client| users.hashes.contains_key(&client.username));
        subjects.extend(
            enabled.map(|client| (Who::User(client.username.clone()), dynsec.roles_of(client))),
        );
        let mut with_placeholder = false;
        for (who, roles) in &subjects {
            for role in roles {
                with_placeholder |= self.add_role(who, role);
            }
        }
        if with_placeholder {
            let text = "in Fulmar, %u and %c in the topics of roles are placeholders; in mosquitto 2.0, text";
            report.differs(place, "plugin", text);
        }
        // If nobody else can log in, the defaults are everybody's.
        let everybody = !has_acl_file && users.only_in_password_file.is_empty();
        let subjects = subjects.into_iter().map(|(who, _)| who);
        let subjects = if everybody { vec![Who::Anyone] } else { subjects.collect() };
        let access = &dynsec.default_access;
        for who in subjects {
            for (allowed, action, topic) in [
                (access.publish_client_send, "publish", "#"),
                (access.publish_client_receive, "receive", "$SYS/#"),
                (access.publish_client_receive, "receive", "#"),
                (access.subscribe, "subscribe", "$SYS/#"),
                (access.subscribe, "subscribe", "#"),
            ] {
                if allowed {
                    let from = "defaultACLAccess".to_owned();
                    self.add(rule(true, who.clone(), action, topic, from));
                }
            }
        }
    }

    /// Returns whether a topic contains a placeholder.
    fn add_role(&mut self, who: &Who, role: &Role) -> bool {
        let mut with_placeholder = false;
        for (kind, action) in [
            (AclKind::PublishClientSend, "publish"),
            (AclKind::PublishClientReceive, "receive"),
            (AclKind::SubscribeLiteral, "subscribe"),
            (AclKind::SubscribePattern, "subscribe"),
        ] {
            let entries = role.entries(kind).into_iter();
            for entry in entries.filter(|entry| !entry.topic.starts_with(CONTROL)) {
                let from = format!("role {}", role.rolename);
                let exact = kind == AclKind::SubscribeLiteral;
                self.add(Rule {
                    exact,
                    ..rule(entry.allow, who.clone(), action, &entry.topic, from)
                });
                with_placeholder |= entry.topic.contains("%u") || entry.topic.contains("%c");
            }
        }
        with_placeholder
    }

    fn finish(self) -> Rules {
        let Lists { receive_dollar, receive, publish, subscribe } = self;
        let end = |topic| {
            let from = "everything else is denied".to_owned();
            rule(false, Who::Anyone, "receive", topic, from)
        };
        let mut list = publish;
        list.extend(receive_dollar);
        list.push(end("$SYS/#"));
        list.extend(receive);
        list.push(end("#"));
        list.extend(subscribe);
        Rules { list, default_allow: false }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use super::super::files::tests::Memory;
    use super::super::users;
    use super::*;

    fn run(conf: &str, files: &[(&str, &str)]) -> (Vec<String>, String) {
        let mut report = Report::default();
        let files: Vec<_> = files.iter().copied().chain([("m.conf", conf)]).collect();
        let files = Memory::new(&files);
        let conf = Conf::read(&files, Path::new("m.conf"), &mut report).unwrap();
        let users = users::read(&files, &conf, &conf.security, &mut report).unwrap();
        let rules = translate(&files, &conf, &conf.security, &users, &mut report).unwrap();
        let line = |rule: Rule| {
            let allow = if rule.allow { "+" } else { "-" };
            let who = match rule.who {
                Who::Anyone => "*".to_owned(),
                Who::Anonymous => "?".to_owned(),
                Who::User(name) => name,
            };
            format!(
                "{allow}{} {who} {}{}",
                rule.action,
                rule.topic,
                if rule.exact { " =" } else { "" }
            )
        };
        (rules.list.into_iter().map(line).collect(), report.to_string())
    }

    #[test]
    fn an_acl_file_decides_about_messages_and_not_subscriptions() {
        let acl = "topic read news\nuser ann\ntopic a/#\ntopic read $SYS/#\ntopic deny a/x\npattern write u/%u\npattern deny z\n";
        let (rules, report) = run("acl_file acl", &[("acl", acl)]);
        assert_eq!(
            rules,
            [
                "-publish ann a/x",
                "+publish ann a/#",
                "-publish * z",
                "+publish * u/%u",
                "+receive ann $SYS/#",
                "-receive * $SYS/#",
                "-receive ann a/x",
                "+receive ? news",
                "+receive ann a/#",
                "-receive * z",
                "-receive * #",
                "+subscribe * $SYS/#",
                "+subscribe * #",
            ]
        );
        assert!(report.contains("m.conf:1: acl_file: differs: without passwords"), "{report}");
        assert!(report.contains("acl:6: pattern: differs: %u stands for no name"), "{report}");
    }

    const DYNSEC: &str = r##"{"clients": [
        {"username": "ann", "password": "PW", "salt": "c2FsdA==", "iterations": 1, "roles": [{"rolename": "r"}]},
        {"username": "off", "disabled": true, "roles": [{"rolename": "r"}]}],
      "groups": [{"groupname": "g", "roles": [{"rolename": "s"}]}],
      "roles": [{"rolename": "r", "acls": [
          {"acltype": "publishClientSend", "topic": "p/#", "allow": true},
          {"acltype": "publishClientSend", "topic": "$CONTROL/dynamic-security/#", "allow": true},
          {"acltype": "subscribePattern", "topic": "s/#", "allow": true},
          {"acltype": "subscribeLiteral", "topic": "#", "allow": false},
          {"acltype": "publishClientReceive", "topic": "s/no", "allow": false}]},
        {"rolename": "s", "acls": [{"acltype": "publishClientSend", "topic": "open", "allow": true}]}],
      "anonymousGroup": "g",
      "defaultACLAccess": {"publishClientReceive": true, "unsubscribe": true}}"##;

    fn dynsec() -> String {
        DYNSEC.replace("PW", &format!("{}==", "A".repeat(86)))
    }

    const PLUGIN: &str =
        "plugin /usr/lib/mosquitto_dynamic_security.so\nplugin_opt_config_file dyn\n";

    #[test]
    fn roles_become_rules_of_their_users() {
        let (rules, report) = run(PLUGIN, &[("dyn", &dynsec())]);
        assert_eq!(
            rules,
            [
                "+publish ? open",
                "+publish ann p/#",
                "+receive * $SYS/#",
                "-receive * $SYS/#",
                "-receive ann s/no",
                "+receive * #",
                "-receive * #",
                "-subscribe ann # =",
                "+subscribe ann s/#",
            ]
        );
        assert!(report.contains("dyn:3: client: not translated: off is disabled"), "{report}");
        assert!(report.contains("mosquitto_ctrl"), "{report}");
    }

    #[test]
    fn an_acl_file_decides_where_dynamic_security_is_silent() {
        let hash = format!("$6$c2FsdA==${}==", "A".repeat(86));
        let files = [
            ("dyn", dynsec()),
            ("acl", "user bob\ntopic b\n".to_owned()),
            ("pw", format!("bob:{hash}\nann:{hash}\noff:{hash}\n")),
        ];
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let conf = format!("{PLUGIN}acl_file acl\npassword_file pw\n");
        let (rules, report) = run(&conf, &files);
        assert_eq!(
            rules,
            [
                "+publish ? open",
                "+publish ann p/#",
                "+publish bob b",
                "+receive ? $SYS/#",
                "+receive ann $SYS/#",
                "-receive * $SYS/#",
                "-receive ann s/no",
                "+receive ? #",
                "+receive ann #",
                "+receive bob b",
                "-receive * #",
                "-subscribe ann # =",
                "+subscribe ann s/#",
                "+subscribe * $SYS/#",
                "+subscribe * #",
            ]
        );
        for line in 2..=3 {
            assert!(report.contains(&format!("pw:{line}: user: not translated")), "{report}");
        }
    }

    #[test]
    fn a_plugin_that_is_not_known_leaves_nothing_open() {
        let mut report = Report::default();
        let files = Memory::new(&[("m.conf", "plugin /usr/lib/other.so\n")]);
        let conf = Conf::read(&files, Path::new("m.conf"), &mut report).unwrap();
        let users = users::read(&files, &conf, &conf.security, &mut report).unwrap();
        let rules = translate(&files, &conf, &conf.security, &users, &mut report).unwrap();
        assert!(!rules.default_allow && report.to_string().contains("plugin: not translated"));
    }
}

//! The parts of the program that the broker asks about clients, which follow the law of the moment, and the law in the
//! broker's own form.

use std::sync::Arc;

use fulmar_broker::access::{AccessRules, Action, Rule, Who as RuleWho};
use fulmar_broker::auth::{
    AccessControl, Admitted, AuthReply, Decision, DefaultAccess, ExternalUsers, HookLogin,
    Identity, IdentityChanges, IdentityTable, LoginHook, RoleRules, TopicRule,
};
use fulmar_broker::control::{Control, ControlRequest};
use fulmar_broker::{Arrival, Ban, Banned, Broker, PublishHook, Timestamp, User};
use fulmar_mqtt::ReasonCode;
use parking_lot::Mutex;

use super::law::{self, Law};
use super::{ACCOUNTS, About, Rule as LawRule, Stored, Whom};

/// What passwords of the platform's accounts begin with; the name and the end of the credential follow.
const TOKEN: &str = "account/";

/// A publication or a request that the broker has accepted.
#[derive(Clone, Debug)]
pub(crate) struct Accepted {
    /// The number of the message, if it is one.
    pub(crate) message: Option<usize>,
    /// Whether it is from an account or the program, as far as the broker knows.
    pub(crate) is_external: bool,
    /// Whether it is a request to change the identity store.
    pub(crate) is_request: bool,
}

/// All of these parts.
#[derive(Debug, Default)]
pub(crate) struct Fakes {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    law: Law,
    service: Option<Arc<AccessRules>>,
    table: Arc<IdentityTable>,
    accepted: Vec<Accepted>,
}

impl Fakes {
    /// What the broker has accepted since this was called last.
    pub(crate) fn take_accepted(&self) -> Vec<Accepted> {
        std::mem::take(&mut self.state.lock().accepted)
    }

    /// What a broker starts with.
    pub(crate) fn access_control(self: &Arc<Fakes>) -> AccessControl {
        let mut state = self.state.lock();
        state.table = Arc::default();
        state.table.change(state.law.users_changed());
        AccessControl {
            rules: state.law.rules(),
            external_users: Some(Arc::clone(self) as _),
            identities: Some(Arc::clone(&state.table)),
            hook: Some(Arc::clone(self) as _),
            ..AccessControl::default()
        }
    }

    /// Sets up a broker that has started.
    pub(crate) fn introduce(self: &Arc<Fakes>, broker: &Broker, now: Timestamp) {
        broker.set_publish_hook(Arc::clone(self) as _);
        broker.set_control(Arc::clone(self) as _);
        self.set_bans(broker, now);
        self.set_revoked(broker);
    }

    /// Another law holds from now on; the caller reports it to the broker.
    pub(crate) fn set_law(&self, law: &Law) {
        let mut state = self.state.lock();
        let rules = |list| access_rules(list, &RuleWho::Anyone, false).into();
        state.service = law.service.map(rules);
        state.law = law.clone();
    }

    pub(crate) fn set_users(&self, broker: &Broker, name: Option<&str>) {
        let (table, changes) = {
            let state = self.state.lock();
            (Arc::clone(&state.table), state.law.users_changed())
        };
        table.change(changes);
        broker.identities_changed(|user| name.is_none() || user == name);
    }

    pub(crate) fn set_rules(&self, broker: &Broker) {
        let rules = self.state.lock().law.rules();
        broker.set_access_control(AccessControl { rules, ..AccessControl::default() });
    }

    pub(crate) fn set_bans(&self, broker: &Broker, now: Timestamp) {
        let bans = self.state.lock().law.bans();
        broker.set_bans(bans, now);
    }

    pub(crate) fn set_revoked(&self, broker: &Broker) {
        let revoked = self.state.lock().law.revoked;
        let clients = (0..8).filter(|client| revoked & (1 << client) != 0);
        broker.set_revoked_certificates(clients.map(certificate_number).collect());
    }

    fn account_may(&self, account: &str, topic: &str) -> bool {
        let account = ACCOUNTS.iter().position(|own| *own == account);
        account.is_some_and(|account| self.state.lock().law.account_may(account, topic))
    }
}

/// The password with which a client of the service gets a credential that ends then; or of the platform, with the name of
/// an account.
pub(crate) fn password(account: &str, until: Timestamp) -> String {
    let ends = until.0.to_string();
    if account.is_empty() { ends } else { format!("{TOKEN}{account}/{ends}") }
}

/// The number of a client's certificate.
pub(crate) fn certificate_number(client: usize) -> u64 {
    client as u64
}

impl LoginHook for Fakes {
    fn decides_about_certificates(&self) -> bool {
        false
    }

    fn log_in(&self, login: HookLogin<'_>) -> Decision {
        let until = login.password.and_then(|password| std::str::from_utf8(password).ok());
        let until = until.and_then(|until| until.parse().ok()).map(Timestamp);
        let reply: AuthReply = until
            .map(|until| Admitted { user: Some(login.user), until, credential: None })
            .ok_or(ReasonCode::BadUserNameOrPassword);
        Decision::Now(reply)
    }

    fn rules(&self, _user: &User, _client_id: &str) -> Option<Arc<AccessRules>> {
        self.state.lock().service.clone()
    }
}

impl ExternalUsers for Fakes {
    fn admit(&self, token: &str, _username: Option<&str>, _now: Timestamp) -> Option<Admitted> {
        let (name, until) = token.strip_prefix(TOKEN)?.split_once('/')?;
        let account = ACCOUNTS.iter().position(|account| *account == name)?;
        (!self.state.lock().law.suspended[account]).then_some(Admitted {
            user: User::external(name),
            until: Timestamp(until.parse().ok()?),
            credential: Some(name.into()),
        })
    }

    fn is_token(&self, password: &str) -> bool {
        password.starts_with(TOKEN)
    }

    fn is_good(&self, credential: &str) -> bool {
        let account = ACCOUNTS.iter().position(|account| *account == credential);
        account.is_some_and(|account| !self.state.lock().law.suspended[account])
    }

    fn allows(&self, external_user: &str, _action: Action, topic: &str) -> bool {
        self.account_may(external_user, topic)
    }
}

impl Control for Fakes {
    fn request(&self, request: ControlRequest<'_>) {
        let message = number(request.payload);
        let accepted = Accepted { message, is_external: false, is_request: true };
        self.state.lock().accepted.push(accepted);
        request.reply_to.send(b"done".as_slice().into());
    }
}

impl PublishHook for Fakes {
    fn stamp(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        let (message, is_external) = (number(arrival.payload), arrival.external_user.is_some());
        self.state.lock().accepted.push(Accepted { message, is_external, is_request: false });
        None
    }
}

pub(crate) fn number(payload: &[u8]) -> Option<usize> {
    std::str::from_utf8(payload).ok()?.parse().ok()
}

/// The law in the broker's form.
impl Law {
    fn rules(&self) -> AccessRules {
        let who = match self.whom {
            Whom::Anyone | Whom::Address(_) => RuleWho::Anyone,
            Whom::User(name) => RuleWho::User(name.into()),
            Whom::Id(id) => RuleWho::Client(id.into()),
        };
        access_rules(self.rules, &who, self.rules_open)
    }

    fn bans(&self) -> Vec<Ban> {
        let bans = self.bans.iter().map(|(whom, until)| {
            let whom = match *whom {
                Whom::Anyone => Banned::Network([0, 0, 0, 0].into(), 0),
                Whom::User(name) => Banned::User(name.into()),
                Whom::Id(id) => Banned::Client(id.into()),
                Whom::Address(client) => Banned::Network(law::address_of(client), 32),
            };
            Ban { whom, until: *until }
        });
        bans.collect()
    }

    fn users_changed(&self) -> IdentityChanges {
        let roles: Vec<_> = self.roles.map(|rules| Arc::new(role(rules))).into();
        let of = |own: [usize; 2]| own.map(|role| Arc::clone(&roles[role])).to_vec();
        let users = self.users.iter().map(|(name, user)| {
            let Stored { roles, disabled, bound } = user.stored;
            let identity = Identity::new(bound, None, disabled, user.revision, of(roles));
            (Box::from(*name), identity.ok().filter(|_| !user.deleted))
        });
        let removed = self.users.iter().map(|(name, user)| (Box::from(*name), user.deleted));
        let lists = self.roles.iter().copied().flatten();
        let denials = lists.filter(|(about, allow, _)| !allow && *about != About::Publishing);
        let open = self.store_open;
        IdentityChanges {
            users: users.collect(),
            removed: removed.collect(),
            anonymous: self.nameless.map(of),
            defaults: DefaultAccess {
                publish: open,
                receive: open,
                subscribe: open,
                unsubscribe: open,
            },
            denials: denials.map(|(.., filter)| (*filter).into()).collect(),
            admits_unknown_names: false,
        }
    }
}

fn access_rules(list: &[LawRule], who: &RuleWho, open: bool) -> AccessRules {
    let rules = list.iter().map(|(about, allow, filter)| Rule {
        allow: *allow,
        who: who.clone(),
        action: match about {
            About::Both => None,
            About::Publishing => Some(Action::Publish),
            About::Reading => Some(Action::Subscribe),
        },
        filter: (*filter).into(),
        exact: false,
    });
    AccessRules::new(rules.collect(), open).unwrap_or_default()
}

fn role(list: &[LawRule]) -> RoleRules {
    let rules = |wanted: About| {
        let about = list.iter().filter(move |(about, ..)| [wanted, About::Both].contains(about));
        about
            .map(|(_, allow, filter)| TopicRule { filter: (*filter).into(), allow: *allow })
            .collect()
    };
    RoleRules {
        publish: rules(About::Publishing),
        receive: rules(About::Reading),
        subscribe: rules(About::Reading),
        ..RoleRules::default()
    }
}

//! Why a client may or may not publish or subscribe: the decision of the broker's own check, and what else would refuse
//! the client.

use std::net::IpAddr;

use fulmar_broker::access::Action;
use fulmar_broker::{Banned, Because, Explanation, Obstacle, Reader, User, Waiting};
use fulmar_mqtt::topic::{Subscription, TopicError, check_name};

use crate::bans::banned;
use crate::explain_role;
use crate::prelude::*;
use crate::store::now_ms;

/// Whose right to do what.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Question {
    /// Client identifier.
    client: Option<String>,
    /// User; without it, that of the client's session, and otherwise an anonymous client's right.
    user: Option<String>,
    /// Address of the client, for bans of networks and limits per address; without it, that of the connected client.
    #[param(value_type = Option<String>, example = "192.0.2.7")]
    address: Option<IpAddr>,
    /// The action: publish, subscribe or receive.
    action: ClientAction,
    /// The topic; for subscribe, a filter.
    topic: String,
}

/// An action of a client.
#[derive(Clone, Copy, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ClientAction {
    /// Publish to the topic.
    Publish,
    /// Subscribe to the filter.
    Subscribe,
    /// Receive what is published to the topic, with a subscription.
    Receive,
}

impl ClientAction {
    /// The action as the broker names it, and the subscription to a filter.
    fn on(self, topic: &str) -> Result<(Action, Option<Subscription<'_>>)> {
        let invalid = |error: TopicError| Problem::invalid("topic", error.to_string());
        let action = match self {
            ClientAction::Publish => Action::Publish,
            ClientAction::Receive => Action::Receive,
            ClientAction::Subscribe => {
                let subscription = Subscription::parse(topic).map_err(invalid)?;
                return Ok((Action::Subscribe, Some(subscription)));
            }
        };
        check_name(topic).map_err(invalid)?;
        Ok((action, None))
    }
}

/// The decision.
#[derive(Serialize, ToSchema)]
pub(crate) struct Decision {
    /// Whether the client may do this.
    allowed: bool,
    /// The cause of the decision.
    because: String,
    /// Where the rule is that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// The user for whom it was decided; absent for an anonymous client.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// Whether the client is connected.
    connected: bool,
    /// Other causes that refuse or delay the client.
    notes: Vec<String>,
}

/// Why a client may or may not do something
#[utoipa::path(get, path = "/explain", params(Question), responses((status = 200, body = Decision)))]
pub(crate) async fn explain(
    Viewer(app, _): Viewer,
    Query(question): Query<Question>,
) -> Result<Json<Decision>> {
    let Question { client, user, address, action, topic } = question;
    let is_user_named = user.is_some();
    let client = client.unwrap_or_default();
    let session = app.broker.session_details(&client, 0).map(|found| found.summary);
    let owner = session.as_ref().and_then(|session| session.user.as_deref().map(str::to_owned));
    let named = user.filter(|user| !user.is_empty()).map(|user| app.broker.user_named(&user));
    let user = named.map(|user| user.text().to_owned()).or_else(|| owner.clone());
    let (mut notes, mut refusal) = (Vec::new(), None);
    if session.is_none() {
        let who = Unconnected { client: &client, user: user.as_deref(), is_user_named };
        refusal = who.refusal(&app);
        notes.extend(who.note(&app).filter(|_| refusal.is_none()));
    }
    let (action, subscription) = action.on(&topic)?;
    let filter = subscription.as_ref().map_or(&*topic, |subscription| subscription.filter);
    // As the broker shows users.
    let of_text = user.as_deref().map(User::from_text);
    let reader = Reader { user: of_text.as_ref(), client_id: &client };
    let explanation = app.broker.explain(reader, action, filter);
    if session.is_some() && owner != user {
        notes.push(format!(
            "the session of {client:?} belongs to {}: another user's client with this identifier is refused, unless \
             [access] session_owner is \"none\"",
            owner.as_deref().unwrap_or("anonymous clients")
        ));
    }
    let now = app.now_ms();
    let connection = app.broker.connection_of(&client);
    notes.extend(connection.as_ref().and_then(|found| found.waiting).map(note_of_wait));
    let address = address.or_else(|| connection.map(|found| found.address.ip()));
    let obstacles = app.broker.obstacles(reader, address, subscription.as_ref());
    notes.extend(obstacles.into_iter().map(|obstacle| note(obstacle, user.as_deref())));
    for ban in app.stored(move |store| store.bans(now)).await? {
        let covers = |whom: Banned| whom.covers(&client, user.as_deref(), address);
        if banned(&ban).is_some_and(covers) {
            let reason = if ban.reason.is_empty() { "no reason given" } else { &ban.reason };
            refusal = Some(format!(
                "banned by {}: {reason}; `fulmar ctl clients unban {}` lifts it",
                ban.created_by, ban.id
            ));
        }
    }
    if let Some(problem) = app.broker.storage_problem() {
        notes.push(format!("storage: {problem}"));
    }
    if session.as_ref().is_some_and(|session| session.queued_messages > 0) {
        notes.push("messages wait in its queue: it reads slowly, or is not connected".to_owned());
    }
    let (role, kept_out) = app.identities.read(|state| {
        let role = explain_role::rule(state, user.as_deref(), action, explanation.because);
        (role, explain_role::refusal(state, user.as_deref(), &client))
    });
    // What keeps the client out decides, whatever the rules say.
    let refusal = refusal.or(kept_out);
    let rule = match explanation.because {
        Because::Rule(number) => Some(app.server.place_of_rule(number)),
        _ => role,
    };
    Ok(Json(Decision {
        allowed: explanation.allowed && refusal.is_none(),
        rule: rule.filter(|_| refusal.is_none()),
        because: refusal.unwrap_or_else(|| because(&explanation, user.as_deref())),
        user,
        connected: session.is_some_and(|session| session.connected),
        notes,
    }))
}

/// A client without a session.
struct Unconnected<'a> {
    client: &'a str,
    user: Option<&'a str>,
    /// The question says whose right it is about, if only that it is nobody's.
    is_user_named: bool,
}

impl Unconnected<'_> {
    fn refusal(&self, app: &App) -> Option<String> {
        if self.user.is_some() || app.server.admits_anonymous() {
            return None;
        }
        let refused = "anonymous clients are refused, by [auth] allow_anonymous".to_owned();
        Some(self.unknown_owner().map_or(refused.clone(), |owner| format!("{refused}; {owner}")))
    }

    fn note(&self, app: &App) -> Option<String> {
        let Some(user) = self.user else { return self.unknown_owner() };
        (!app.broker.knows_user(user)).then(|| {
            format!(
                "neither the password file nor the store of users has {user:?}: such a client connects by a certificate \
                 or a token, or where any name is accepted"
            )
        })
    }

    /// The client is named, but nothing says whose it is.
    fn unknown_owner(&self) -> Option<String> {
        let Unconnected { client, is_user_named, .. } = self;
        (!is_user_named && !client.is_empty()).then(|| {
            format!(
                "no session of {client:?} is known, and so neither is its user: name it, as in \
                 `fulmar ctl explain … --user NAME`"
            )
        })
    }
}

fn note_of_wait(Waiting { cause, since_ms }: Waiting) -> String {
    let seconds = now_ms().cast_unsigned().saturating_sub(since_ms) / 1000;
    format!("nothing has been read from the client for {seconds} s: {}", cause.description())
}

fn note(obstacle: Obstacle, user: Option<&str>) -> String {
    match obstacle {
        Obstacle::Sessions(most) => format!(
            "it has no session, and there are {most}, which is [limits] max_sessions: a new session is refused with 0x97"
        ),
        Obstacle::Memory => {
            let whose = user.map_or("its address".to_owned(), |user| format!("the user {user}"));
            format!(
                "the sessions of {whose} have their share of [limits] memory: a new session or subscription is refused \
                 with 0x97"
            )
        }
        Obstacle::Subscriptions(most) => format!(
            "its session has {most} subscriptions, which is [limits] max_subscriptions_per_session: this one is refused \
             with 0x97"
        ),
        Obstacle::WildcardSubscriptions(most) => format!(
            "its user has {most} wildcard and shared subscriptions beyond the first of each session, which is [limits] \
             max_wildcard_subscriptions_per_user: this one is refused with 0x97"
        ),
        _ => "a limit that this version of the API does not know refuses it".to_owned(),
    }
}

fn because(explanation: &Explanation, user: Option<&str>) -> String {
    match explanation.because {
        Because::Rule(number) => {
            let decides = if explanation.allowed { "allows" } else { "denies" };
            format!("access rule {} {decides} it; it is the first that matches", number + 1)
        }
        Because::NoRules => "there are no access rules, so everything is allowed".to_owned(),
        Because::Default => {
            let default = if explanation.allowed { "allow" } else { "deny" };
            format!("no access rule matches, and the default is to {default}")
        }
        Because::OwnTopics => {
            "topics that begin with $ are the broker's own: nobody publishes there".to_owned()
        }
        Because::ExternalTopics => {
            "topics under fulmar/ are for users of the platform, unless a rule allows them"
                .to_owned()
        }
        Because::ExternalUser => {
            let user = user.unwrap_or_default();
            format!("{user} is a user of the platform, whose role in the topic's twin decides")
        }
        Because::Role { .. } => {
            let decides = if explanation.allowed { "allows" } else { "denies" };
            format!("a rule of the user's roles {decides} it; it is the first that matches")
        }
        Because::RolesDefault => {
            let default = if explanation.allowed { "allow" } else { "deny" };
            format!("no rule of the user's roles matches, and the default for them is to {default}")
        }
        Because::Login => {
            "the service of [auth.http] has sent the rule with the client's login".to_owned()
        }
        Because::Program => "it is a part of the server itself".to_owned(),
        _ => "a part of the server that this version of the API does not know decides".to_owned(),
    }
}

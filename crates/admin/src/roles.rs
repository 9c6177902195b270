//! Roles: access rules for topics, which users and groups have.

use crate::prelude::*;
use fulmar_identity::{Acl, AclKind, Command, Role as Stored, State as Identities, Texts};

/// Actions that a rule is about.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RuleAction {
    /// Publishing to a topic.
    Publish,
    /// Receiving what is published to a topic.
    Receive,
    /// Subscribing to a filter that the rule's includes.
    Subscribe,
    /// Subscribing to exactly this filter; such rules are asked first.
    SubscribeLiteral,
    /// Unsubscribing from a filter that the rule's includes.
    Unsubscribe,
    /// Unsubscribing from exactly this filter; such rules are asked first.
    UnsubscribeLiteral,
}

impl From<RuleAction> for AclKind {
    fn from(action: RuleAction) -> AclKind {
        match action {
            RuleAction::Publish => AclKind::PublishClientSend,
            RuleAction::Receive => AclKind::PublishClientReceive,
            RuleAction::Subscribe => AclKind::SubscribePattern,
            RuleAction::SubscribeLiteral => AclKind::SubscribeLiteral,
            RuleAction::Unsubscribe => AclKind::UnsubscribePattern,
            RuleAction::UnsubscribeLiteral => AclKind::UnsubscribeLiteral,
        }
    }
}

impl From<AclKind> for RuleAction {
    fn from(kind: AclKind) -> RuleAction {
        match kind {
            AclKind::PublishClientSend => RuleAction::Publish,
            AclKind::PublishClientReceive => RuleAction::Receive,
            AclKind::SubscribePattern => RuleAction::Subscribe,
            AclKind::SubscribeLiteral => RuleAction::SubscribeLiteral,
            AclKind::UnsubscribePattern => RuleAction::Unsubscribe,
            AclKind::UnsubscribeLiteral => RuleAction::UnsubscribeLiteral,
        }
    }
}

/// A rule.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// Actions that it is about.
    action: RuleAction,
    /// Topic filter; `%u` and `%c` stand for the user and the client identifier.
    #[schema(example = "plant/%u/#")]
    topic: String,
    /// Whether it allows or denies.
    allow: bool,
    /// Of a role's rules for one action, the one with the highest priority that matches decides.
    #[serde(default)]
    priority: i32,
}

impl From<&Acl> for Rule {
    fn from(acl: &Acl) -> Rule {
        let Acl { kind, topic, priority, allow } = acl;
        Rule {
            action: (*kind).into(),
            topic: topic.to_string(),
            allow: *allow,
            priority: *priority,
        }
    }
}

impl From<Rule> for Acl {
    fn from(rule: Rule) -> Acl {
        let Rule { action, topic, allow, priority } = rule;
        Acl { kind: action.into(), topic: topic.into(), priority, allow }
    }
}

/// A role: rules for topics.
#[derive(Serialize, ToSchema)]
pub(crate) struct Role {
    /// The name.
    name: String,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Rules, in the order in which they are asked.
    rules: Vec<Rule>,
}

impl From<&Stored> for Role {
    fn from(stored: &Stored) -> Role {
        Role {
            name: stored.name.to_string(),
            description: stored.texts.description.as_deref().map(str::to_owned),
            rules: stored.acls.iter().map(Rule::from).collect(),
        }
    }
}

/// A page of roles, by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct Roles {
    roles: Vec<Role>,
    /// The next page's `cursor`; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A role to be added.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewRole {
    /// The name.
    name: String,
    /// For people.
    description: Option<String>,
    /// Rules.
    #[serde(default)]
    rules: Vec<Rule>,
}

/// A rule of a role.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WhichRule {
    /// Actions that it is about.
    action: RuleAction,
    /// Topic filter.
    topic: String,
}

fn unknown(name: &str) -> Problem {
    Problem::not_found(format!(
        "there is no role {name:?}; GET /roles, or fulmar ctl roles list, lists them"
    ))
}

fn find(app: &App, name: &str) -> Result<Role> {
    let found =
        app.identities.read(|state| state.roles().get(name).map(|role| Role::from(&**role)));
    found.ok_or_else(|| unknown(name))
}

/// Roles: access rules for topics
#[utoipa::path(get, path = "/roles", params(PageQuery), responses((status = 200, body = Roles)))]
pub(crate) async fn list(
    Administrator(app, _): Administrator,
    Paged { page, wanted: Everything {} }: Paged<Everything>,
) -> Result<Json<Roles>> {
    let part = |state: &Identities, after: After<'_>| {
        let stored = state.roles().range::<str, _>(after).take(SLICE);
        stored.map(|(_, stored)| Role::from(&**stored)).collect()
    };
    let (roles, next) = app.page_by_name(&page, part, |role: &Role| role.name.clone()).await?;
    Ok(Json(Roles { roles, next }))
}

/// One role with its rules
#[utoipa::path(get, path = "/roles/{name}", params(("name" = String, Path, description = "Role")), responses((status = 200, body = Role)))]
pub(crate) async fn show(
    Administrator(app, _): Administrator,
    Name(name): Name,
) -> Result<Json<Role>> {
    find(&app, &name).map(Json)
}

/// Add a role
#[utoipa::path(post, path = "/roles", request_body = NewRole, responses((status = 201, description = "It is added")))]
pub(crate) async fn add(
    Administrator(app, caller): Administrator,
    Json(new): Json<NewRole>,
) -> Result<StatusCode> {
    let NewRole { name, description, rules } = new;
    let detail = json!({ "rules": rules });
    let stored = Stored {
        name: name.as_str().into(),
        texts: Texts { name: None, description: description.map(Into::into) },
        acls: rules.into_iter().map(Acl::from).collect(),
    };
    let change = Change { caller, action: "role.add", object: name, detail };
    app.change_identities(change, Command::CreateRole(stored)).await?;
    Ok(StatusCode::CREATED)
}

/// Remove a role
///
/// Users and groups lose it, at once also if they are connected.
#[utoipa::path(delete, path = "/roles/{name}", params(("name" = String, Path, description = "Role")), responses((status = 204, description = "It is removed")))]
pub(crate) async fn remove(
    Administrator(app, caller): Administrator,
    Name(name): Name,
) -> Result<StatusCode> {
    let detail = json!({ "before": { "rules": find(&app, &name)?.rules } });
    let command = Command::DeleteRole(name.as_str().into());
    let change = Change { caller, action: "role.remove", object: name, detail };
    app.change_identities(change, command).await
}

/// Add a rule to a role
///
/// At once also for connected clients.
#[utoipa::path(post, path = "/roles/{name}/rules", request_body = Rule, params(("name" = String, Path, description = "Role")), responses((status = 201, description = "It is added")))]
pub(crate) async fn add_rule(
    Administrator(app, caller): Administrator,
    Name(name): Name,
    Json(rule): Json<Rule>,
) -> Result<StatusCode> {
    let detail = json!({ "after": rule });
    let command = Command::AddRoleAcl(name.as_str().into(), rule.into());
    let change = Change { caller, action: "role.rule.add", object: name, detail };
    app.change_identities(change, command).await?;
    Ok(StatusCode::CREATED)
}

/// Remove a rule from a role
///
/// At once also for connected clients.
#[utoipa::path(delete, path = "/roles/{name}/rules", params(("name" = String, Path, description = "Role"), WhichRule), responses((status = 204, description = "It is removed")))]
pub(crate) async fn remove_rule(
    Administrator(app, caller): Administrator,
    Name(name): Name,
    Query(WhichRule { action, topic }): Query<WhichRule>,
) -> Result<StatusCode> {
    let rules = find(&app, &name)?.rules;
    let before = rules.into_iter().find(|rule| rule.action == action && rule.topic == topic);
    let detail = before.map_or(Value::Null, |before| json!({ "before": before }));
    let command = Command::RemoveRoleAcl(name.as_str().into(), action.into(), topic.into());
    let change = Change { caller, action: "role.rule.remove", object: name, detail };
    app.change_identities(change, command).await
}

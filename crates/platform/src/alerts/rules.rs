//! Requests for alert rules.

use super::handlers::announce;
use super::types::{NewRule, Rule};
use super::{AlertNotification, Severity, evaluate};
use crate::measurements::Quantity;
use crate::prelude::*;
use crate::store::{alerts, homes};

/// The most rules of a twin, because each is evaluated with every measurement.
const MAX_RULES: usize = 200;

/// The twin's rules, by identifier
#[utoipa::path(get, path = "/{twin}/alert_rule", tag = "alerts", params(PageQuery),
    responses((status = 200, body = Page<Rule>)))]
pub(crate) async fn list(Lookup(app, member, query, conditions): Lookup<PageQuery>) -> Answer {
    member.may(Deed::Report)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let after = open_cursor(query.cursor.as_deref())?.unwrap_or_default();
    let items =
        app.store.read(move |db| Ok(alerts::rules(db.within(&member.twin), &after, limit + 1)?));
    conditions.json(&Page::cut(items.await?, limit, |rule: &Rule| rule.id.to_string()))
}

fn find(db: TwinDb<'_>, id: &Name) -> Result<Rule> {
    alerts::rule_of(db, id)?.ok_or_else(|| Problem::missing("rule"))
}

/// One rule
#[utoipa::path(get, path = "/{twin}/alert_rule/{id}", tag = "alerts",
    responses((status = 200, body = Rule)))]
pub(crate) async fn show(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    member.may(Deed::Report)?;
    let rule = member.read(&app, move |db| find(db, &id)).await?;
    conditions.json_tagged(&rule, &rule.etag)
}

fn check(db: TwinDb<'_>, rule: &Rule) -> Result<()> {
    rule.check()?;
    match &rule.home {
        Some(home) if !homes::exists(db, home)? => {
            Err(Problem::invalid("home", "there is no such home"))
        }
        _ => Ok(()),
    }
}

/// Create an alert rule
///
/// Exactly one of `above`, `below` and `silent_s` is set.
#[utoipa::path(post, path = "/{twin}/alert_rule", tag = "alerts", request_body = NewRule,
    responses((status = 201, body = Rule)))]
pub(crate) async fn add(Call(app, member): Call, Body(new): Body<NewRule>) -> Answer {
    member.may(Deed::Manage)?;
    let rule = Rule {
        id: new.id.unwrap_or_else(Name::random),
        name: new.name.to_string(),
        quantity: new.quantity,
        home: new.home,
        severity: new.severity,
        above: new.above.map(|value| *value),
        below: new.below.map(|value| *value),
        clear: new.clear.map(|value| *value),
        for_s: new.for_s,
        averaging_s: new.averaging_s,
        silent_s: new.silent_s,
        source: new.source.map(|source| source.to_string()),
        enabled: new.enabled.unwrap_or(true),
        etag: String::new(),
    };
    let made = member.write(&app, move |db| {
        check(db, &rule)?;
        if alerts::rule_of(db, &rule.id)?.is_some() {
            return Err(Problem::conflict("a rule with this name exists"));
        }
        if alerts::count_rules(db)? >= MAX_RULES {
            return Err(Problem::conflict(format!("a twin has at most {MAX_RULES} rules")));
        }
        alerts::put_rule(db, &rule)?;
        find(db, &rule.id)
    });
    json(StatusCode::CREATED, &made.await?)
}

/// A change of a rule; missing keys stay, null clears.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleChange {
    name: Option<Title>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Quantity>)]
    quantity: Option<Option<Quantity>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Name>)]
    home: Option<Option<Name>>,
    severity: Option<Severity>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Amount>)]
    above: Option<Option<Amount>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Amount>)]
    below: Option<Option<Amount>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Amount>)]
    clear: Option<Option<Amount>>,
    #[schema(maximum = 2592000)]
    for_s: Option<u32>,
    #[schema(maximum = 2592000)]
    averaging_s: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 60, maximum = 2592000)]
    silent_s: Option<Option<u32>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Note>)]
    source: Option<Option<Note>>,
    enabled: Option<bool>,
}

impl RuleChange {
    fn apply(self, rule: &mut Rule) {
        fn set<T>(field: &mut T, new: Option<T>) {
            if let Some(new) = new {
                *field = new;
            }
        }
        let number = |new: Option<Option<Amount>>| new.map(|new| new.map(|value| *value));
        set(&mut rule.name, self.name.map(|name| name.to_string()));
        set(&mut rule.quantity, self.quantity);
        set(&mut rule.home, self.home);
        set(&mut rule.severity, self.severity);
        set(&mut rule.above, number(self.above));
        set(&mut rule.below, number(self.below));
        set(&mut rule.clear, number(self.clear));
        set(&mut rule.for_s, self.for_s);
        set(&mut rule.averaging_s, self.averaging_s);
        set(&mut rule.silent_s, self.silent_s);
        set(&mut rule.source, self.source.map(|source| source.map(|text| text.to_string())));
        set(&mut rule.enabled, self.enabled);
    }
}

/// Change a rule
///
/// The rule's alerts are cleared; what is still wrong by the new rule is raised again with the next measurement.
#[utoipa::path(patch, path = "/{twin}/alert_rule/{id}", tag = "alerts", request_body = RuleChange,
    responses((status = 200, body = Rule)))]
pub(crate) async fn change(Edit(app, member, id, conditions, change): Edit<RuleChange>) -> Answer {
    member.may(Deed::Manage)?;
    let changed = member.write(&app, move |db| {
        let mut rule = find(db, &id)?;
        conditions.hold(&rule.etag)?;
        change.apply(&mut rule);
        check(db, &rule)?;
        let notifications = evaluate::retire(db, &id, Time::now())?;
        alerts::put_rule(db, &rule)?;
        Ok((find(db, &id)?, notifications))
    });
    let (rule, notifications): (Rule, Vec<AlertNotification>) = changed.await?;
    announce(&app, &member.twin, &notifications);
    Conditions::default().json_tagged(&rule, &rule.etag)
}

/// Remove a rule
///
/// The rule's alerts are cleared and stay on record.
#[utoipa::path(delete, path = "/{twin}/alert_rule/{id}", tag = "alerts", responses((status = 204)))]
pub(crate) async fn remove(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    member.may(Deed::Manage)?;
    let removed = member.write(&app, move |db| {
        let rule = find(db, &id)?;
        conditions.hold(&rule.etag)?;
        let notifications = evaluate::retire(db, &id, Time::now())?;
        alerts::remove_rule(db, &id)?;
        Ok(notifications)
    });
    announce(&app, &member.twin, &removed.await?);
    done()
}

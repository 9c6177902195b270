//! Internal sessions: the durable sessions of the gateway and of the platform, created before the first client can
//! connect.
//!
//! Gateway and platform receive devices' publications through these sessions. If the sessions began only when the two
//! connect, earlier publications would be acknowledged but received by neither.

use fulmar_broker::User;
use fulmar_broker::storage::{
    FlowId, Op, Restored, SessionKey, SessionRecord, Storage, SubscriptionRecord,
};
use fulmar_mqtt::packet::SubscribeOptions;

/// Adds internal sessions to the state with which the broker starts.
pub struct InternalSessions<'a> {
    /// Storage of the broker.
    pub storage: &'a dyn Storage,
    /// State with which the broker starts.
    pub restored: &'a mut Restored,
    /// Their client identifiers. The broker delays publishers when too much is queued for one of them.
    pub client_ids: Vec<Box<str>>,
}

impl InternalSessions<'_> {
    /// Ensures that `client_id` has a session with these subscriptions, in storage and in the restored
    /// state. Its other subscriptions stay.
    pub fn add(&mut self, client_id: &str, filters: &[&str], options: SubscribeOptions) {
        ensure(self.storage, self.restored, client_id, filters, options);
        self.name(client_id);
    }

    /// The same, and other subscriptions are removed.
    pub fn set(&mut self, client_id: &str, filters: &[&str], options: SubscribeOptions) {
        remove_others(self.storage, self.restored, client_id, filters);
        self.add(client_id, filters, options);
    }

    /// Names a session that `client_id` may get later.
    pub fn name(&mut self, client_id: &str) {
        self.client_ids.push(client_id.into());
    }
}

/// The client identifier of a session that belongs to the program itself and begins so; the newest, if there are several.
pub fn client_id_of(restored: &Restored, prefix: &str) -> Option<String> {
    let program = User::program();
    let own = restored.sessions.iter().filter(|session| {
        session.username.as_deref() == Some(program.text()) && session.client_id.starts_with(prefix)
    });
    own.max_by_key(|session| session.key).map(|session| session.client_id.to_string())
}

fn remove_others(
    storage: &dyn Storage,
    restored: &mut Restored,
    client_id: &str,
    filters: &[&str],
) {
    let known = restored.sessions.iter().find(|session| *session.client_id == *client_id);
    let Some(key) = known.map(|session| session.key) else { return };
    let is_other =
        |held: &SubscriptionRecord| held.session == key && !filters.contains(&&*held.filter);
    let others = restored.subscriptions.extract_if(.., |held| is_other(held));
    let remove =
        |held: SubscriptionRecord| Op::SubscriptionRemove { session: key, filter: held.filter };
    storage.submit(&mut others.map(remove).collect());
}

fn ensure(
    storage: &dyn Storage,
    restored: &mut Restored,
    client_id: &str,
    filters: &[&str],
    options: SubscribeOptions,
) {
    let mut ops = Vec::new();
    let mut known = restored.sessions.iter_mut().find(|session| *session.client_id == *client_id);
    if let Some(session) = &mut known {
        // An earlier version let them expire as clients' do.
        (session.expiry_interval_s, session.expires_at) = (u32::MAX, None);
    }
    let key = known.map(|session| session.key).unwrap_or_else(|| {
        restored.last_session_key += 1;
        let record = SessionRecord {
            key: SessionKey(restored.last_session_key),
            client_id: client_id.into(),
            username: Some(User::program().text().into()),
            mqtt_sn: Some(false),
            expiry_interval_s: u32::MAX,
            expires_at: None,
            will: None,
            will_at: None,
        };
        ops.push(Op::SessionPut(record.clone()));
        let key = record.key;
        restored.sessions.push(record);
        key
    });
    for filter in filters {
        let mut held = restored.subscriptions.iter().filter(|held| held.session == key);
        if held.any(|held| *held.filter == **filter) {
            continue;
        }
        let record = SubscriptionRecord {
            session: key,
            flow: FlowId::CONTROL,
            filter: (*filter).into(),
            options: options.to_byte(),
            identifier: None,
            replay: None,
        };
        ops.push(Op::SubscriptionPut(record.clone()));
        restored.subscriptions.push(record);
    }
    storage.submit(&mut ops);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use fulmar_broker::storage::Seq;

    use super::*;

    #[derive(Default)]
    struct Submitted(Mutex<Vec<Op>>);

    impl Storage for Submitted {
        fn submit(&self, batch: &mut Vec<Op>) -> Seq {
            self.0.lock().expect("no panic").append(batch);
            Seq(0)
        }
        fn committed(&self) -> Seq {
            Seq(0)
        }
        fn backlog(&self) -> usize {
            0
        }
        fn failure(&self) -> Option<String> {
            None
        }
    }

    fn filters(restored: &Restored) -> Vec<(u64, &str)> {
        restored.subscriptions.iter().map(|held| (held.session.0, &*held.filter)).collect()
    }

    #[test]
    fn only_what_is_missing_is_made() {
        let storage = Submitted::default();
        let mut restored = Restored { last_session_key: 6, ..Restored::default() };
        let options = SubscribeOptions::default();
        ensure(&storage, &mut restored, "part", &["a/#", "b"], options);
        assert_eq!(filters(&restored), [(7, "a/#"), (7, "b")]);
        assert_eq!(storage.0.lock().expect("no panic").len(), 3);
        ensure(&storage, &mut restored, "other", &["a/#"], options);
        ensure(&storage, &mut restored, "part", &["b", "c"], options);
        assert_eq!(filters(&restored), [(7, "a/#"), (7, "b"), (8, "a/#"), (7, "c")]);
        assert_eq!(storage.0.lock().expect("no panic").len(), 6);
        assert_eq!(restored.last_session_key, 8);
        remove_others(&storage, &mut restored, "other", &["a/#"]);
        remove_others(&storage, &mut restored, "part", &["c"]);
        assert_eq!(filters(&restored), [(8, "a/#"), (7, "c")]);
        assert_eq!(storage.0.lock().expect("no panic").len(), 8);
    }
}

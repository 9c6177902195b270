//! Changes of accounts: made in the store of identities, then followed by the names of devices.

use std::sync::Arc;

use fulmar_identity::{AccountChange, ApplyError, Command, Identities, NewEntry, PasswordHash};
use tokio::sync::oneshot;

use super::refusal::refused;
use crate::app::App;
use crate::blocking;
use crate::error::Error;
use crate::problem::{Result, internal};
use crate::time::Time;

/// Accounts whose expired tokens are forgotten in one transaction.
const MAX_FORGOTTEN_AT_ONCE: usize = 500;

/// The length of a new password in characters.
pub(crate) const PASSWORD_CHARACTERS: std::ops::RangeInclusive<usize> = 8..=200;

/// Hashes a new password. Takes tens of milliseconds on purpose.
pub(crate) fn hash(password: &str) -> Result<PasswordHash> {
    PasswordHash::from_password(password).map_err(|error| internal(&error))
}

impl App {
    /// Makes changes that no device's name depends on, such as of sessions, all or none. They are durable and in effect then.
    pub(crate) async fn change_tokens(&self, changes: Vec<Command>) -> Result<()> {
        let (answer, waiting) = oneshot::channel();
        let identities = self.account_cache.identities();
        let job = move |desk: &mut fulmar_identity::Desk| {
            // Nobody may wait any more.
            drop(answer.send(desk.apply(changes)));
        };
        identities.submit(Box::new(job)).map_err(refused)?;
        waiting.await.unwrap_or(Err(ApplyError::Busy)).map_err(refused)
    }

    /// Makes a change that is in the server's log of changes before it is made, and then with its result.
    pub(crate) async fn change_account_as(&self, who: NewEntry, command: Command) -> Result<()> {
        // An account that gets the name of a removed one must not get that one's devices.
        self.settle_names().await?;
        let app = self.clone();
        let change = move || {
            let entry = app.change_log.begin(who)?;
            let made = app.account_cache.identities().apply(vec![command]).map_err(refused);
            entry.into_iter().for_each(|id| app.change_log.end(id, &made));
            made
        };
        blocking::run((), change).await??;
        self.settle_after_change(self.settle_names().await);
        Ok(())
    }

    /// The same for callers outside async tasks, whose change somebody else logs.
    pub(crate) fn change_account_now(&self, command: Command) -> Result<()> {
        self.store.write_now(self.settle_due_names())?;
        self.account_cache.identities().apply(vec![command]).map_err(refused)?;
        self.settle_after_change(self.store.write_now(self.settle_due_names()));
        Ok(())
    }

    /// The accounts are changed, whatever has become of the names: they are tried again.
    fn settle_after_change(&self, settled: Result<()>) {
        if let Err(problem) = settled {
            self.account_cache.names_are_due();
            tracing::warn!("platform: names of devices: {}", problem.detail());
        }
    }

    /// Gives accounts the devices of their names, if accounts have changed, and returns when that is durable.
    pub(crate) async fn settle_names(&self) -> Result<()> {
        let settled = self.store.write(self.settle_due_names()).await;
        if settled.is_err() {
            self.account_cache.names_are_due();
        }
        settled
    }

    /// Follows every change of accounts, also by another process.
    pub(crate) fn follow_accounts(&self) {
        let app = self.downgrade();
        self.account_cache.identities().subscribe(Box::new(move |change, _| {
            let Some(app) = app.upgrade() else { return };
            if app.account_cache.follow(change) {
                // Without waiting: if this is refused, the next change does it, or the upkeep.
                let cache = Arc::clone(&app.account_cache);
                app.store.write_later(app.settle_due_names(), move |settled| {
                    if settled.is_err() {
                        cache.names_are_due();
                    }
                });
            }
        }));
    }

    /// Forgets expired tokens, which ends connections that were made with them before the expiry was set.
    pub(crate) async fn forget_expired_tokens(&self) -> Result<()> {
        let now = Time::now();
        let forget =
            |name: &str| Command::ModifyAccount(name.into(), AccountChange::ForgetExpired(now.0));
        // A fleet whose tokens were all replaced at once has one end.
        for names in self.account_cache.with_expired_tokens(now).chunks(MAX_FORGOTTEN_AT_ONCE) {
            self.change_tokens(names.iter().map(|name| forget(name)).collect()).await?;
        }
        Ok(())
    }
}

/// Opens the store of identities of a platform that has it for itself.
pub(crate) fn open_identities(data: &std::path::Path) -> Result<Arc<Identities>, Error> {
    let file = data.join(fulmar_identity::FILE);
    Ok(Arc::new(Identities::open(&file, Box::new(|_, _, _| ()))?))
}

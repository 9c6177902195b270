//! How many wildcard and shared subscriptions one owner may have over all its sessions.
//!
//! A filter with a wildcard adds work to every publication that it matches, from any publisher, and so does a share
//! name; an owner with many sessions could accumulate such filters. Filters without either affect only the topic that
//! they name. Each session has a few that are not counted, for fleets of devices with one user. Further ones count for
//! the user, or for the address if the client has no user.

use std::net::IpAddr;

use fulmar_auth::User;
use fulmar_mqtt::topic::Subscription;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Wildcard and shared subscriptions of each session that are not counted. Devices have one to three: their commands,
/// messages to all devices, perhaps a group.
pub(crate) const FREE_PER_SESSION: u32 = 16;

/// The owner for whom something counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Payer {
    User(User),
    /// Clients without a user, by [`fulmar_text::network::site`].
    Site(IpAddr),
}

impl Payer {
    /// `None` for the program's own sessions, which are not counted.
    pub(crate) fn of(user: Option<&User>, site: IpAddr) -> Option<Payer> {
        match user {
            _ if User::is_program(user) => None,
            Some(user) => Some(Payer::User(user.clone())),
            None => Some(Payer::Site(site)),
        }
    }
}

/// A session's wildcard and shared subscriptions.
#[derive(Debug, Default)]
pub(crate) struct QuotaUse {
    wide: u32,
    /// The owner for whom they count, and how many count.
    paid: Option<Box<(Payer, usize)>>,
}

/// The subscriptions that count, by owner.
#[derive(Debug, Default)]
pub(crate) struct Quota(Mutex<FxHashMap<Payer, usize>>);

/// Whether a subscription is one that counts.
pub(crate) fn is_wide(subscription: &Subscription<'_>) -> bool {
    subscription.share.is_some() || subscription.filter.contains(['+', '#'])
}

impl Quota {
    /// Counts one more for a session of `user`; false if its owner has `most` beyond the free ones.
    pub(crate) fn take(
        &self,
        quota_use: &mut QuotaUse,
        user: Option<&User>,
        site: IpAddr,
        most: usize,
    ) -> bool {
        if quota_use.wide >= FREE_PER_SESSION {
            let payer = quota_use.paid.as_ref().map(|paid| paid.0.clone());
            if let Some(payer) = payer.or_else(|| Payer::of(user, site)) {
                let mut owners = self.0.lock();
                let had = owners.get(&payer).copied().unwrap_or(0);
                if had >= most {
                    return false;
                }
                owners.insert(payer.clone(), had + 1);
                quota_use.paid.get_or_insert_with(|| Box::new((payer, 0))).1 += 1;
            }
        }
        quota_use.wide += 1;
        true
    }

    /// Whether [`Quota::take`] would count one more. Without a user, the address decides; unknown, there is room.
    pub(crate) fn has_room(
        &self,
        quota_use: &QuotaUse,
        user: Option<&User>,
        site: Option<IpAddr>,
        most: usize,
    ) -> bool {
        if quota_use.wide < FREE_PER_SESSION {
            return true;
        }
        let payer = quota_use.paid.as_ref().map(|paid| paid.0.clone());
        // A user's do not depend on the address.
        let site = site.or_else(|| user.map(|_| IpAddr::from([0; 4])));
        let payer = payer.or_else(|| Payer::of(user, site?));
        payer.is_none_or(|payer| self.0.lock().get(&payer).copied().unwrap_or(0) < most)
    }

    /// A session gives one back.
    pub(crate) fn give_back(&self, quota_use: &mut QuotaUse) {
        quota_use.wide = quota_use.wide.saturating_sub(1);
        let Some(paid) = &mut quota_use.paid else { return };
        self.forget(&paid.0, 1);
        paid.1 -= 1;
        if paid.1 == 0 {
            quota_use.paid = None;
        }
    }

    /// A session ends, with all its subscriptions.
    pub(crate) fn end(&self, quota_use: &mut QuotaUse) {
        if let Some(paid) = std::mem::take(quota_use).paid {
            self.forget(&paid.0, paid.1);
        }
    }

    /// Storage remembered one more. It is counted when the session's owner is known.
    pub(crate) fn restore(quota_use: &mut QuotaUse) {
        quota_use.wide += 1;
    }

    /// A session is `user`'s at this address from now on, and so are its subscriptions, however many
    /// it brings along.
    pub(crate) fn belongs_to(&self, quota_use: &mut QuotaUse, user: Option<&User>, site: IpAddr) {
        let beyond = quota_use.wide.saturating_sub(FREE_PER_SESSION) as usize;
        if beyond == 0 {
            return;
        }
        let payer = Payer::of(user, site);
        if quota_use.paid.as_ref().map(|paid| &paid.0) == payer.as_ref() {
            return;
        }
        if let Some(paid) = quota_use.paid.take() {
            self.forget(&paid.0, paid.1);
        }
        if let Some(payer) = payer {
            *self.0.lock().entry(payer.clone()).or_default() += beyond;
            quota_use.paid = Some(Box::new((payer, beyond)));
        }
    }

    fn forget(&self, payer: &Payer, number: usize) {
        let mut owners = self.0.lock();
        if let Some(had) = owners.get_mut(payer) {
            *had = had.saturating_sub(number);
            if *had == 0 {
                owners.remove(payer);
            }
        }
    }

    #[cfg(test)]
    fn owners(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn fill(quota: &Quota, quota_use: &mut QuotaUse, user: Option<&str>, site: IpAddr) -> u32 {
        let user = user.map(User::from_text);
        let mut taken = 0;
        while taken < 100 && quota.take(quota_use, user.as_ref(), site, 10) {
            taken += 1;
        }
        taken
    }

    #[test]
    fn sessions_of_one_owner_share_what_is_beyond_the_free_ones() {
        let quota = Quota::default();
        let (mut a, mut b, mut c) = <(QuotaUse, QuotaUse, QuotaUse)>::default();
        assert_eq!(fill(&quota, &mut a, Some("eve"), HERE), FREE_PER_SESSION + 10);
        assert_eq!(fill(&quota, &mut b, Some("eve"), THERE), FREE_PER_SESSION);
        assert_eq!(fill(&quota, &mut c, Some("ann"), HERE), FREE_PER_SESSION + 10);
        quota.give_back(&mut a);
        assert_eq!(fill(&quota, &mut b, Some("eve"), THERE), 1, "what one gave back");
        quota.end(&mut a);
        assert_eq!(fill(&quota, &mut b, Some("eve"), THERE), 9);
        quota.end(&mut b);
        quota.end(&mut c);
        assert_eq!(quota.owners(), 0, "nothing is left behind");
    }

    #[test]
    fn clients_without_a_user_are_counted_by_address_and_what_is_restored_moves_along() {
        let quota = Quota::default();
        let (mut a, mut b, mut c) = <(QuotaUse, QuotaUse, QuotaUse)>::default();
        for _ in 0..FREE_PER_SESSION + 30 {
            Quota::restore(&mut a);
        }
        quota.belongs_to(&mut a, None, HERE);
        assert_eq!(fill(&quota, &mut b, None, HERE), FREE_PER_SESSION, "restored ones count");
        assert_eq!(fill(&quota, &mut c, None, THERE), FREE_PER_SESSION + 10);
        quota.end(&mut c);
        quota.belongs_to(&mut a, None, THERE);
        assert_eq!(fill(&quota, &mut b, None, HERE), 10);
        assert_eq!(fill(&quota, &mut c, None, THERE), FREE_PER_SESSION);
        // The program's own sessions are not counted.
        let program = User::program();
        assert_eq!(fill(&quota, &mut QuotaUse::default(), Some(program.text()), HERE), 100);
    }
}

//! What the administration API shows of the parts of a server that are not the broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::SystemTime;

use fulmar_admin::{Certificate, DiskAccount, Listener, ServerState};
use fulmar_transport::tls::Identity;

use fulmar_config::set;
use fulmar_part::Core;
use fulmar_part::Listeners;
use fulmar_part::Upstreams;
use fulmar_part::cluster_status::ClusterStatus;
use fulmar_part::disk::DiskUse;
use fulmar_part::machine::Machine;

/// Parts of a running server.
pub(super) struct Watched {
    /// All listeners, once they are bound.
    pub(super) listeners: Listeners,
    /// `None` where there is no `[upstream]`.
    pub(super) gateway: Option<Arc<dyn Upstreams>>,
    /// `None` where there is no `[cluster]`.
    pub(super) cluster: Option<Arc<ClusterStatus>>,
    pub(super) machine: Machine,
    pub(super) disk: DiskUse,
    /// True if certificates are ordered with ACME.
    pub(super) has_acme: bool,
    /// True if the development CA signs that of the listeners.
    pub(super) is_development: bool,
    /// That of the `webtransport` listeners; `None` if there are none.
    pub(super) webtransport: Option<Arc<Identity>>,
    /// When the first list of revoked certificates expires, in seconds since the Unix epoch; 0 without any.
    pub(super) crl_next_update: Arc<AtomicI64>,
}

fn ms(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

impl Watched {
    pub(super) fn new(core: &Core) -> Watched {
        let (config, certificates) = (&core.config, &core.certificates);
        let webtransport = &certificates.webtransport_certificate.identity;
        Watched {
            listeners: Arc::clone(&core.listeners),
            gateway: core.offers.gateway.clone(),
            cluster: core.cluster.clone(),
            machine: certificates.machine(&core.data),
            disk: core.disk.clone(),
            has_acme: core.offers.challenges.is_some(),
            is_development: set(&config.tls.cert).is_none(),
            webtransport: (!config.listeners.webtransport().is_empty())
                .then(|| Arc::clone(webtransport)),
            crl_next_update: Arc::clone(&core.crl_next_update),
        }
    }

    /// Returns the server's present state.
    pub(super) fn state(&self) -> ServerState {
        let bound = self.listeners.get().map_or(&[][..], Vec::as_slice);
        let listeners = bound.iter().map(|(name, address)| {
            let address = address.to_string();
            Listener { name, address }
        });
        let disk = self.disk.accounts().map(|one| DiskAccount {
            account: one.account,
            used_bytes: one.used,
            limit_bytes: one.limit,
        });
        let (processor, resident_bytes, disk_free_bytes) = self.machine.usage();
        ServerState {
            listeners: listeners.collect(),
            upstreams: self.gateway.as_ref().map(|gateway| gateway.list()).unwrap_or_default(),
            cluster: self.cluster.as_ref().map(|cluster| cluster.shown()),
            certificates: self.certificates(),
            disk: disk.collect(),
            disk_free_bytes,
            resident_bytes,
            processor_s: processor.as_secs_f64(),
        }
    }

    fn certificates(&self) -> Vec<Certificate> {
        let one = |name, end: Option<SystemTime>, is_renewed, renewed_at_reload| {
            Some(Certificate { name, expires_ms: ms(end?)?, is_renewed, renewed_at_reload })
        };
        let at_reload = self.is_development && !self.has_acme;
        let webtransport = self.webtransport.as_ref().and_then(|identity| identity.not_after());
        let crl = self.crl_next_update.load(Ordering::Relaxed);
        let crl = u64::try_from(crl).ok().filter(|seconds| *seconds > 0);
        let crl =
            crl.map(|seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        let all = [
            one("listeners", self.machine.certificate_end(), self.has_acme, at_reload),
            one("webtransport listeners", webtransport, true, false),
            one("list of revoked client certificates", crl, false, false),
        ];
        all.into_iter().flatten().collect()
    }
}

//! Replaces `acme` in builds without that feature: no certificates are ordered, and one that an earlier build ordered
//! is not used, because it would not be renewed.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fulmar_certs::issued::Issued;
use fulmar_transport::tls::Identity;
use rustls::ServerConfig;

use crate::config::Acme;

/// No certificate.
pub(super) fn kept(_: &Acme, _: &Path, _: SystemTime) -> Option<(Issued, Arc<Identity>)> {
    None
}

/// Never exists.
pub(super) struct Orders(Infallible);

/// Never runs.
pub(super) struct Running(Infallible);

impl Orders {
    pub(super) fn new(_: &Acme, _: &Path, _: &Arc<Identity>) -> Option<Orders> {
        None
    }

    pub(super) fn tls(&self) -> anyhow::Result<Arc<ServerConfig>> {
        match self.0 {}
    }

    pub(super) fn start(self) -> anyhow::Result<Running> {
        match self.0 {}
    }
}

impl Running {
    pub(super) fn again(&self) {
        match self.0 {}
    }
}

//! Search for a server that is silent, at its other addresses: on the same connection and with a new one.
//! `search` decides when and where.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::{Driver, Rival, Served};
use crate::api::Event;
use crate::dial::ServerConnection;
use crate::error::Error;
use crate::quic::{Change, QuicConnection};
use crate::search::{Arrivals, Observed, Search, Step};
use crate::url::BrokerUrl;

/// Time for the same connection before a new one is dialled: up to a third more, at random, so that the clients of one server
/// do not dial all at once.
const OLD_FIRST: Duration = Duration::from_millis(900);
/// Random time before addresses are resolved.
const SPREAD: Duration = Duration::from_millis(100);

/// An address, and the URL that names it.
pub(crate) type Candidate = (BrokerUrl, SocketAddr);

type Lookup = Pin<Box<dyn Future<Output = Vec<Candidate>> + Send>>;

/// The state of the search for a connection's server.
pub(super) struct Moving {
    pub(super) search: Search,
    pub(super) arrivals: Arrivals,
    lookup: Option<Lookup>,
    places: Vec<Candidate>,
    /// When the server became silent.
    silent_since: Instant,
}

impl Moving {
    pub(super) fn new(now: Instant) -> Moving {
        Moving {
            search: Search::default(),
            arrivals: Arrivals::new(now),
            lookup: None,
            places: Vec::new(),
            silent_since: now,
        }
    }

    /// The addresses, once they are resolved; never, without a search.
    pub(super) async fn looked_up(&mut self) -> Vec<Candidate> {
        let Some(lookup) = &mut self.lookup else { return std::future::pending().await };
        let places = lookup.await;
        self.lookup = None;
        places
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.search.deadline(), self.arrivals.ask_at()].into_iter().flatten().min()
    }
}

impl Driver {
    pub(super) fn path_changed(
        &mut self,
        change: Change,
        served: &mut Served,
        rival: &mut Option<Rival>,
    ) -> Result<(), Error> {
        match change {
            Change::Migrated(local) => {
                served.moving.search.heard(Instant::now());
                self.backlog.push_back(Event::Migrated { local });
            }
            Change::Gone => {
                let observed = served.conn.quic.as_ref().map(QuicConnection::observed);
                let search = &mut served.moving.search;
                if let Some(step) = observed.and_then(|observed| search.refused(&observed)) {
                    self.step(step, served, rival);
                    return Ok(());
                }
                return Err(Error::Lost("the server's UDP port is closed".to_owned()));
            }
            Change::Doubt => served.conn.quic.iter_mut().for_each(QuicConnection::follow),
            Change::Silent => self.server_is_silent(served),
        }
        Ok(())
    }

    /// The server does not answer: resolves its addresses, if it is time for that.
    fn server_is_silent(&self, served: &mut Served) {
        let Some(quic) = served.conn.quic.as_ref().filter(|_| self.machine.is_up()) else { return };
        let (observed, moving) = (quic.observed(), &mut served.moving);
        if !moving.search.begins(&observed) {
            return;
        }
        let Observed { now, silence, .. } = observed;
        moving.silent_since = now.checked_sub(silence).unwrap_or(now);
        let (dialer, urls) = (Arc::clone(&self.dialer), self.addresses.urls());
        moving.lookup = Some(Box::pin(async move {
            sleep(SPREAD.mul_f64(fastrand::f64())).await;
            dialer.places(&urls).await
        }));
    }

    /// Tries the addresses, if there are others than the silent one, and it is silent still.
    pub(super) fn search_at(
        &mut self,
        mut places: Vec<Candidate>,
        served: &mut Served,
        rival: &mut Option<Rival>,
    ) {
        let moving = &mut served.moving;
        let Some(quic) = &served.conn.quic else { return };
        places.retain(|(_, address)| *address != quic.remote);
        let mut addresses: Vec<_> = places.iter().map(|(_, address)| *address).collect();
        addresses.push(quic.remote);
        let step = moving.search.resolved(addresses, &quic.observed());
        if !matches!(step, Step::Try(_)) {
            return;
        }
        tracing::debug!(server = %quic.remote, others = places.len(), "the server is silent; looking for it elsewhere");
        let (dialer, limit, targets) = (Arc::clone(&self.dialer), self.patience(), places.clone());
        *rival = Some(Box::pin(async move {
            sleep(OLD_FIRST.mul_f64(1.0 + fastrand::f64() / 3.0)).await;
            let dialled = timeout(limit, dialer.dial_places(targets)).await;
            dialled.unwrap_or_else(|_| Err(Error::Lost("no other address answers".to_owned())))
        }));
        moving.places = places;
        self.step(step, served, rival);
    }

    /// Goes on with the search, and asks for a sign of life in an unusual pause.
    pub(super) fn on_moving_deadline(&mut self, served: &mut Served, rival: &mut Option<Rival>) {
        let (now, Served { conn, moving, .. }) = (Instant::now(), &mut *served);
        let Some(quic) = &conn.quic else { return };
        if moving.arrivals.ask_at().is_some_and(|at| at <= now) {
            moving.arrivals.asked();
            self.machine.ask_for_sign_of_life();
        }
        if moving.search.deadline().is_some_and(|at| at <= now) {
            let step = moving.search.on_deadline(&quic.observed());
            self.step(step, served, rival);
        }
    }

    fn step(&mut self, mut step: Step, served: &mut Served, rival: &mut Option<Rival>) {
        let Served { conn, moving, .. } = served;
        let Some(quic) = &mut conn.quic else { return };
        while let Step::Try(address) = step {
            quic.doubt();
            let Err(error) = quic.move_to(address) else { return };
            tracing::debug!(%address, %error, "cannot be tried");
            step = moving.search.refused(&quic.observed()).unwrap_or(Step::Nothing);
        }
        match step {
            Step::Nothing | Step::Try(_) => {}
            Step::Found(address) => {
                quic.doubt();
                *rival = None;
                if moving.places.iter().any(|(_, place)| *place == address) {
                    quic.server_moves += 1;
                    let gap_ms = moving.silent_since.elapsed().as_millis();
                    tracing::info!(%address, gap_ms, "the server was silent; the connection continues at its other address");
                    self.arrived_at(address, &moving.places);
                }
            }
            // A new connection may still be answered.
            Step::Ended => quic.doubt(),
        }
    }

    /// A new connection has been answered first.
    pub(super) fn found_by_rival(&mut self, winner: &ServerConnection, moving: &Moving) {
        let Some(quic) = winner.quic.as_ref().filter(|_| !moving.places.is_empty()) else { return };
        let gap_ms = moving.silent_since.elapsed().as_millis();
        tracing::info!(address = %quic.remote, gap_ms, "the server was silent; connected to its other address");
        self.arrived_at(quic.remote, &moving.places);
    }

    fn arrived_at(&mut self, address: SocketAddr, places: &[Candidate]) {
        if let Some((url, _)) = places.iter().find(|(_, place)| *place == address) {
            self.addresses.go_to(url.clone());
            self.dialer.answered_from(address.ip());
        }
    }
}

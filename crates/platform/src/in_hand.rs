//! What is known of a request while it is in hand: whose it is and whether that is still so, and its turn if it is an upload.
//!
//! An upload takes several times its size when it is read. Only [`TURNS`] are read and stored at once; further ones wait with
//! their bytes, which the endpoint counts.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{Problem, Result};
use crate::text::Name;

/// Uploads that are read and stored at once: enough for the storage to store many in one transaction.
const TURNS: usize = 32;

/// The turns of uploads; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Turns {
        Turns(Arc::new(Semaphore::new(TURNS)))
    }
}

/// State of a request; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct InHand(Arc<CallerState>);

struct CallerState {
    account: OnceLock<Name>,
    /// Whether the caller still is who it was found to be.
    still_is: Mutex<Option<Box<dyn Fn() -> bool + Send + Sync>>>,
    turns: Turns,
    turn: OnceLock<OwnedSemaphorePermit>,
}

fulmar_text::opaque_debug!(CallerState { account });

impl InHand {
    /// State of a request that has just come: nothing is known yet.
    pub(crate) fn new(turns: &Turns) -> InHand {
        let (account, turns, turn) = (OnceLock::new(), turns.clone(), OnceLock::new());
        InHand(Arc::new(CallerState { account, still_is: Mutex::default(), turns, turn }))
    }

    /// The request has a token of this account, as `still_is` finds out again.
    pub(crate) fn asked_by(
        &self,
        account: &Name,
        still_is: impl Fn() -> bool + Send + Sync + 'static,
    ) {
        drop(self.0.account.set(account.clone()));
        *self.0.still_is.lock() = Some(Box::new(still_is));
    }

    /// The body has come, which may have taken its time.
    ///
    /// # Errors
    /// The token has ended meanwhile, or the account has another role.
    pub(crate) fn ask_again(&self) -> Result<()> {
        let still_is = self.0.still_is.lock().as_ref().is_none_or(|still_is| still_is());
        // The words of `fulmar_http::NoLongerAllowed`, on which fuzz targets, which compile this file in, do not depend.
        let ended = "the credential that asked for this, or its user's role, is no longer valid";
        if still_is { Ok(()) } else { Err(Problem::unauthorized(ended)) }
    }

    /// The account, if the request has a token.
    pub(crate) fn account(&self) -> Option<&Name> {
        self.0.account.get()
    }

    /// Waits for the request's turn, which it has until it is answered.
    ///
    /// # Errors
    /// The server stops.
    pub(crate) async fn turn(&self) -> Result<()> {
        let turn = Arc::clone(&self.0.turns.0).acquire_owned().await;
        let turn = turn.map_err(|_| Problem::unavailable("the server stops"))?;
        drop(self.0.turn.set(turn));
        Ok(())
    }
}

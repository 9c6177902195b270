//! What is known of a request while it is in hand: whose it is, and its turn if it is an upload.
//!
//! An upload takes several times its size when it is read. Only [`TURNS`] are read and stored at once; further ones wait with
//! their bytes, which the endpoint counts.

use std::sync::{Arc, OnceLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::Problem;
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

/// What is known of a request; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct InHand(Arc<Known>);

#[derive(Debug)]
struct Known {
    account: OnceLock<Name>,
    turns: Turns,
    turn: OnceLock<OwnedSemaphorePermit>,
}

impl InHand {
    /// Of a request that has just come: nothing is known yet.
    pub(crate) fn new(turns: &Turns) -> InHand {
        let (account, turns, turn) = (OnceLock::new(), turns.clone(), OnceLock::new());
        InHand(Arc::new(Known { account, turns, turn }))
    }

    /// The request has a token of this account.
    pub(crate) fn asked_by(&self, account: &Name) {
        drop(self.0.account.set(account.clone()));
    }

    /// The account, if the request has a token.
    pub(crate) fn account(&self) -> Option<&Name> {
        self.0.account.get()
    }

    /// Waits for the request's turn, which it has until it is answered.
    ///
    /// # Errors
    /// The server stops.
    pub(crate) async fn turn(&self) -> Result<(), Problem> {
        let turn = Arc::clone(&self.0.turns.0).acquire_owned().await;
        let turn = turn.map_err(|_| Problem::unavailable("the server stops"))?;
        drop(self.0.turn.set(turn));
        Ok(())
    }
}

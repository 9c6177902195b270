//! Ends work on a snapshot early, from another thread.

use tokio::sync::watch;

/// Whether work is to end before it is complete, for good. Clones are one and the same.
#[derive(Clone, Debug)]
pub struct GiveUp(watch::Sender<bool>);

impl Default for GiveUp {
    fn default() -> GiveUp {
        GiveUp(watch::Sender::new(false))
    }
}

impl GiveUp {
    /// Ends it.
    pub fn give_up(&self) {
        self.0.send_replace(true);
    }

    /// Whether it is to end.
    pub fn is_given_up(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn given_up(&self) {
        // It fails only without a sender, and this is one.
        drop(self.0.subscribe().wait_for(|given_up| *given_up).await);
    }
}

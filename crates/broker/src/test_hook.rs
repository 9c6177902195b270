//! A hook where tests let other workers act between the steps of one publication, to try interleavings that threads
//! rarely produce. A running broker has none.

/// Called after a publication's receivers are found, and before each of them gets it. No lock is held then, so the hook
/// may do with other workers' shards what these could do at that moment.
#[derive(Default)]
pub(crate) struct TestHook(pub(crate) Option<Box<dyn FnMut() + Send>>);

impl TestHook {
    pub(crate) fn run(&mut self) {
        if let Some(hook) = &mut self.0 {
            hook();
        }
    }
}

fulmar_text::opaque_debug!(TestHook);

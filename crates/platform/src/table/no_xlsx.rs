//! In the place of `xlsx` where this is built without the feature `spreadsheet`.

use futures_util::Stream;

use super::{Cell, Outline};
use crate::problem::{Problem, Result};

/// No file.
#[allow(clippy::unused_async)]
pub(super) async fn made<R: AsRef<[Cell]> + Send + 'static>(
    _: &Outline,
    _: impl Stream<Item = Result<Vec<R>>> + Send,
) -> Result<Vec<u8>> {
    Err(Problem::absent(
        "this server was built without Excel files (feature `spreadsheet`): ask for CSV",
    ))
}

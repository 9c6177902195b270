//! Lines of standard input, of which none can take more memory than a reading may.

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

use fulmar_sensors::line::MAX_BYTES;

/// Reads the next line without its end into `line`; false at the end of the input. What is beyond
/// [`MAX_BYTES`] and one is read and forgotten, so that a line that is too long is seen to be.
pub(super) async fn next(
    input: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
) -> std::io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let available = input.fill_buf().await?;
        if available.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        let room = (MAX_BYTES + 1).saturating_sub(line.len());
        line.extend_from_slice(&part[..part.len().min(room)]);
        let taken = part.len() + usize::from(end.is_some());
        input.consume(taken);
        if end.is_some() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_lines_take_bounded_memory_and_the_next_is_whole() {
        let text = format!("one\n{}\n\nlast", "x".repeat(3 * MAX_BYTES));
        let mut input = tokio::io::BufReader::with_capacity(1000, text.as_bytes());
        let mut line = Vec::new();
        let mut lengths = Vec::new();
        while next(&mut input, &mut line).await.unwrap() {
            lengths.push(line.len());
        }
        assert_eq!(lengths, [3, MAX_BYTES + 1, 0, 4]);
        assert!(line.is_empty());
    }
}

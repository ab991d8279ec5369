//! Lines from a stream, without losing memory to those that never end, and without leaving a secret behind.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of memory that a quiet connection keeps.
const QUIET: usize = 4 * 1024;
/// How many bytes of a line's end are kept when the line is too long.
const TAIL: usize = 512;
/// How many times the limit a line may be long before the connection is given up.
const PATIENCE: usize = 8;

/// What a client sent. Lines may hold a scan key, so they are wiped on drop.
#[derive(Debug)]
pub(super) enum Incoming {
    /// A line without its end.
    Line(Zeroizing<Vec<u8>>),
    /// A line that was longer than allowed, and was skipped.
    TooLong {
        /// Its first bytes.
        head: Zeroizing<Vec<u8>>,
        /// Its last bytes; empty if its end was not waited for.
        tail: Zeroizing<Vec<u8>>,
        /// Whether what follows makes sense.
        recovered: bool,
    },
}

/// Reads lines.
pub(super) struct LineReader<R> {
    stream: R,
    /// Never grows by itself, which would leave a copy behind.
    buffer: Zeroizing<Vec<u8>>,
    /// What was not returned yet is `buffer[start..end]`.
    start: usize,
    end: usize,
    limit: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(super) fn new(stream: R, limit: usize) -> Self {
        Self { stream, buffer: Zeroizing::new(vec![0; QUIET]), start: 0, end: 0, limit }
    }

    /// The next line; `None` at the end of the stream. What stands before the end without a line's end is dropped.
    ///
    /// May not be called again after it was cancelled within a line that is too long.
    pub(super) async fn next(&mut self) -> io::Result<Option<Incoming>> {
        let mut searched = self.start;
        loop {
            if let Some(at) = self.buffer[searched..self.end].iter().position(|byte| *byte == b'\n') {
                let line = self.take(searched + at);
                return Ok(Some(line));
            }
            searched = self.end;
            if self.end - self.start > self.limit {
                return self.skip().await.map(Some);
            }
            if self.end == self.buffer.len() {
                searched -= self.start;
                self.make_room();
            }
            let read = self.stream.read(&mut self.buffer[self.end..]).await?;
            if read == 0 {
                return Ok(None);
            }
            self.end += read;
        }
    }

    /// Returns what stands before the line's end at `at`.
    fn take(&mut self, at: usize) -> Incoming {
        let line = &mut self.buffer[self.start..at];
        let incoming = if line.len() > self.limit {
            let (head, tail) = (&line[..TAIL.min(line.len())], &line[line.len().saturating_sub(TAIL)..]);
            Incoming::TooLong { head: copy(head), tail: copy(tail), recovered: true }
        } else {
            Incoming::Line(copy(line))
        };
        line.zeroize();
        self.start = at + 1;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > 16 * QUIET {
                self.buffer = Zeroizing::new(vec![0; QUIET]);
            }
        }
        incoming
    }

    /// Moves what is there to the front, into a larger buffer if it still fills more than half.
    fn make_room(&mut self) {
        let used = self.end - self.start;
        let size = if used > self.buffer.len() / 2 { self.buffer.len() * 2 } else { self.buffer.len() };
        let mut larger = Zeroizing::new(vec![0; size]);
        larger[..used].copy_from_slice(&self.buffer[self.start..self.end]);
        self.buffer = larger;
        (self.start, self.end) = (0, used);
    }

    /// Skips the rest of a line that is too long.
    async fn skip(&mut self) -> io::Result<Incoming> {
        let head = copy(&self.buffer[self.start..self.start + TAIL.min(self.end - self.start)]);
        let mut skipped = self.end - self.start;
        let mut tail = copy(&self.buffer[self.end - TAIL.min(skipped)..self.end]);
        self.buffer = Zeroizing::new(vec![0; 16 * QUIET]);
        (self.start, self.end) = (0, 0);
        loop {
            if skipped > self.limit.saturating_mul(PATIENCE) {
                return Ok(Incoming::TooLong { head, tail: Zeroizing::new(Vec::new()), recovered: false });
            }
            let read = self.stream.read(&mut self.buffer).await?;
            if read == 0 {
                return Ok(Incoming::TooLong { head, tail, recovered: false });
            }
            let line_end = self.buffer[..read].iter().position(|byte| *byte == b'\n');
            let part = &self.buffer[..line_end.unwrap_or(read)];
            let keep = &part[part.len().saturating_sub(TAIL)..];
            let mut joined = Zeroizing::new(Vec::with_capacity(2 * TAIL));
            joined.extend_from_slice(&tail);
            joined.extend_from_slice(keep);
            tail = copy(&joined[joined.len().saturating_sub(TAIL)..]);
            if let Some(at) = line_end {
                (self.start, self.end) = (at + 1, read);
                return Ok(Incoming::TooLong { head, tail, recovered: true });
            }
            skipped += read;
        }
    }
}

fn copy(bytes: &[u8]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(input: &[u8], limit: usize) -> Vec<Result<Vec<u8>, bool>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut reader = LineReader::new(input, limit);
            let mut lines = Vec::new();
            while let Some(incoming) = reader.next().await.unwrap() {
                match incoming {
                    Incoming::Line(line) => lines.push(Ok(line.to_vec())),
                    Incoming::TooLong { recovered, .. } => {
                        lines.push(Err(recovered));
                        if !recovered {
                            break;
                        }
                    }
                }
            }
            lines
        })
    }

    #[test]
    fn keeps_head_and_tail_of_what_is_too_long() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut input = b"head".to_vec();
        input.resize(100_000, b'x');
        input.extend_from_slice(b"tail\nnext\n");
        runtime.block_on(async {
            let mut reader = LineReader::new(input.as_slice(), 20_000);
            let Some(Incoming::TooLong { head, tail, recovered }) = reader.next().await.unwrap() else {
                panic!("expected a line that is too long")
            };
            assert!(head.starts_with(b"head") && tail.ends_with(b"xtail") && recovered);
            assert!(
                matches!(reader.next().await.unwrap(), Some(Incoming::Line(line)) if line.as_slice() == b"next")
            );
            assert!(reader.next().await.unwrap().is_none());
        });
        // Bug class 16: an unbounded line.
        assert_eq!(lines(&vec![b'x'; 100_000], 1_000), [Err(false)]);
    }

    proptest! {
        #[test]
        fn lines_are_those_of_a_plain_split(
            parts in proptest::collection::vec((any::<u8>(), 0..20_000usize), 0..12), limit in 1..20_000usize
        ) {
            let mut input = Vec::new();
            let mut expected = Vec::new();
            for (byte, len) in parts {
                let byte = if byte == b'\n' { b' ' } else { byte };
                expected.push(if len > limit { Err(true) } else { Ok(vec![byte; len]) });
                input.resize(input.len() + len, byte);
                input.push(b'\n');
                if len > limit * PATIENCE {
                    // May or may not be waited for, depending on what else was in the buffer.
                    return Ok(());
                }
            }
            prop_assert_eq!(lines(&input, limit), expected);
        }
    }
}

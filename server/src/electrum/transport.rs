//! Byte streams as sources and sinks of messages.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, WriteHalf};

use super::line::{Incoming, LineReader};

/// Where requests come from.
pub(super) trait Source: Send {
    /// The next message; `None` at the end.
    fn next(&mut self) -> impl Future<Output = io::Result<Option<Incoming>>> + Send;
}

/// Where replies go.
pub(super) trait Sink: Send {
    /// Sends messages and makes sure that they are on their way.
    fn send(&mut self, messages: Vec<String>) -> impl Future<Output = io::Result<()>> + Send;

    /// Says goodbye.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}

impl<R: AsyncRead + Unpin + Send> Source for LineReader<R> {
    fn next(&mut self) -> impl Future<Output = io::Result<Option<Incoming>>> + Send {
        LineReader::next(self)
    }
}

/// Writes lines.
pub(super) struct LineWriter<S> {
    stream: WriteHalf<S>,
    /// How long the client may take no byte.
    patience: Duration,
}

impl<S: AsyncRead + AsyncWrite + Send> LineWriter<S> {
    pub(super) fn new(stream: WriteHalf<S>, patience: Duration) -> Self {
        Self { stream, patience }
    }
}

/// The client doesn't read.
pub(super) fn slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client doesn't take what it asked for")
}

impl<S: AsyncRead + AsyncWrite + Send> Sink for LineWriter<S> {
    async fn send(&mut self, messages: Vec<String>) -> io::Result<()> {
        let mut bytes = messages.join("\n").into_bytes();
        bytes.push(b'\n');
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let write = self.stream.write(rest);
            let written = tokio::time::timeout(self.patience, write).await.map_err(|_| slow())??;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = &rest[written..];
        }
        tokio::time::timeout(self.patience, self.stream.flush()).await.map_err(|_| slow())?
    }

    async fn close(&mut self) {
        // A client that is gone already isn't missed.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.stream.shutdown()).await;
    }
}

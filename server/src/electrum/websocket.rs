//! WebSockets as sources and sinks: one message is one frame.
//!
//! The library logs whole frames at the level `trace`. Whoever sets up logging must not let `tungstenite` go that far:
//! frames may hold a scan key.

use std::io;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use zeroize::{Zeroize, Zeroizing};

use super::line::Incoming;
use super::transport::{Sink, Source, slow};

/// Bytes waiting to be read that a connection keeps.
const READ_BUFFER: usize = 4 * 1024;

/// Makes a WebSocket of a stream.
pub(super) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    limit: usize,
) -> io::Result<WebSocketStream<S>> {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(limit))
        .max_frame_size(Some(limit));
    tokio_tungstenite::accept_async_with_config(stream, Some(config)).await.map_err(io::Error::other)
}

/// Reads messages.
pub(super) struct FrameReader<S>(pub(super) SplitStream<WebSocketStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Source for FrameReader<S> {
    async fn next(&mut self) -> io::Result<Option<Incoming>> {
        loop {
            let bytes = match self.0.next().await {
                None | Some(Ok(Message::Close(_))) => return Ok(None),
                Some(Ok(Message::Text(text))) => text.into(),
                Some(Ok(Message::Binary(bytes))) => bytes,
                // Pings are answered by the library.
                Some(Ok(_)) => continue,
                Some(Err(Error::Capacity(_))) => {
                    let nothing = || Zeroizing::new(Vec::new());
                    return Ok(Some(Incoming::TooLong {
                        head: nothing(),
                        tail: nothing(),
                        recovered: false,
                    }));
                }
                Some(Err(error)) => return Err(io::Error::other(error)),
            };
            let line = Zeroizing::new(bytes.to_vec());
            // It may hold a key. The library's own buffer can't be reached.
            if let Ok(mut bytes) = bytes.try_into_mut() {
                bytes.as_mut().zeroize();
            }
            return Ok(Some(Incoming::Line(line)));
        }
    }
}

/// Writes messages.
pub(super) struct FrameWriter<S> {
    pub(super) sink: SplitSink<WebSocketStream<S>, Message>,
    /// How long the client may take to take them.
    pub(super) patience: Duration,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Sink for FrameWriter<S> {
    async fn send(&mut self, messages: Vec<String>) -> io::Result<()> {
        let send = async {
            for message in messages {
                self.sink.feed(Message::text(message)).await?;
            }
            self.sink.flush().await
        };
        tokio::time::timeout(self.patience, send).await.map_err(|_| slow())?.map_err(io::Error::other)
    }

    async fn close(&mut self) {
        // A client that is gone already isn't missed.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.sink.close()).await;
    }
}

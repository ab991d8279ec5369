//! Accepts connections and finds out what they speak.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use super::line::LineReader;
use super::rpc::{self, RpcError};
use super::session::{Session, State};
use super::transport::LineWriter;
use super::websocket::{self, FrameReader, FrameWriter};
use super::{Server, connection};

/// First byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;
/// A fatal alert that the protocol version isn't spoken, which a TLS client understands.
const TLS_ALERT: [u8; 7] = [0x15, 3, 1, 0, 2, 2, 70];

/// What a port speaks.
#[derive(Clone)]
pub(super) struct Port {
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) websocket: bool,
}

/// Opens a port.
pub(super) async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("can't listen on {address}"))
}

/// Accepts connections until `stop` is set. Each holds a clone of `alive`.
pub(super) async fn listen(
    server: Arc<Server>,
    listener: TcpListener,
    port: Port,
    mut stop: watch::Receiver<bool>,
    alive: tokio::sync::mpsc::Sender<()>,
) {
    // Refusals over TLS need a handshake; a flood of them must not.
    let refusals = Arc::new(Semaphore::new(16));
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Such as no more file descriptors: waiting helps, spinning doesn't.
                tracing::warn!("can't accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (server, port) = (Arc::clone(&server), port.clone());
        let (mut stop, alive, refusals) = (stop.clone(), alive.clone(), Arc::clone(&refusals));
        tokio::spawn(async move {
            let _alive = alive;
            let result = match server.peers.seat(address.ip()) {
                Ok(seat) => {
                    let (id, inbox) = server.hub.join();
                    let session = Session { server, seat, inbox, id, state: State::default().into() };
                    serve(Arc::new(session), stream, address.ip(), &port, stop).await
                }
                Err(error) => match refusals.try_acquire() {
                    Ok(_permit) => tokio::select! {
                        result = refuse(&server, stream, &port, &error) => result,
                        _ = stop.wait_for(|stop| *stop) => Ok(()),
                    },
                    Err(_) => Ok(()),
                },
            };
            if let Err(error) = result {
                tracing::debug!("a connection failed: {error}");
            }
        });
    }
}

/// What a client's first byte tells.
#[derive(PartialEq)]
enum Hello {
    Tls,
    Plain,
    Nothing,
}

async fn hello(stream: &TcpStream, patience: Duration) -> io::Result<Hello> {
    let mut first = [0];
    let read = tokio::time::timeout(patience, stream.peek(&mut first)).await;
    Ok(match read.map_err(|_| io::ErrorKind::TimedOut)?? {
        0 => Hello::Nothing,
        _ if first[0] == TLS_HANDSHAKE => Hello::Tls,
        _ => Hello::Plain,
    })
}

async fn serve(
    session: Arc<Session>,
    mut stream: TcpStream,
    address: IpAddr,
    port: &Port,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let limits = session.server.config.limits.clone();
    let patience = if port.tls.is_some() || port.websocket { limits.handshake } else { limits.idle };
    let hello = tokio::select! {
        hello = hello(&stream, patience) => hello?,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    };
    match (&port.tls, hello) {
        (_, Hello::Nothing) => Ok(()),
        (None, Hello::Tls) => {
            tracing::info!("{address} speaks TLS on a port without it");
            stream.write_all(&TLS_ALERT).await?;
            stream.shutdown().await
        }
        (Some(_), Hello::Plain) => {
            tracing::info!("{address} speaks without TLS on a TLS port");
            goodbye(&mut stream, &RpcError::new(rpc::INVALID_REQUEST, "this port speaks TLS")).await
        }
        (None, Hello::Plain) => speak(session, stream, port.websocket, stop).await,
        (Some(acceptor), Hello::Tls) => {
            let stream = within(limits.handshake, acceptor.accept(stream)).await?;
            speak(session, stream, port.websocket, stop).await
        }
    }
}

async fn speak<S>(
    session: Arc<Session>,
    stream: S,
    websocket: bool,
    stop: watch::Receiver<bool>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = session.server.config.limits.clone();
    if websocket {
        let accept = websocket::accept(stream, limits.request_bytes);
        let (sink, source) = within(limits.handshake, accept).await?.split();
        let sink = FrameWriter { sink, patience: limits.write_timeout };
        connection::run(session, FrameReader(source), sink, stop).await;
    } else {
        let (reader, writer) = tokio::io::split(stream);
        let reader = LineReader::new(reader, limits.request_bytes);
        let writer = LineWriter::new(writer, limits.write_timeout);
        connection::run(session, reader, writer, stop).await;
    }
    Ok(())
}

async fn within<T>(patience: Duration, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(patience, step).await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Tells a client that there is no place for it.
async fn refuse(server: &Server, stream: TcpStream, port: &Port, error: &RpcError) -> io::Result<()> {
    let patience = server.config.limits.handshake.min(Duration::from_secs(3));
    let refuse = async {
        match (&port.tls, port.websocket) {
            (None, false) => goodbye(&mut { stream }, error).await,
            (Some(acceptor), false) => goodbye(&mut acceptor.accept(stream).await?, error).await,
            // A WebSocket that isn't one yet can only be told in HTTP.
            (None, true) => unavailable(&mut { stream }, error).await,
            (Some(acceptor), true) => unavailable(&mut acceptor.accept(stream).await?, error).await,
        }
    };
    within(patience, refuse).await
}

async fn goodbye(stream: &mut (impl AsyncWrite + Unpin), error: &RpcError) -> io::Result<()> {
    let line = format!("{}\n", rpc::error_reply("null", error));
    stream.write_all(line.as_bytes()).await?;
    stream.shutdown().await
}

async fn unavailable(stream: &mut (impl AsyncWrite + Unpin), error: &RpcError) -> io::Result<()> {
    let (text, length) = (&error.message, error.message.len());
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

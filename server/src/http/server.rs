//! From ports to requests.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tower::{Service, ServiceExt};
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use super::problem::Problem;
use super::web::Web;
use super::{CONTRADICT, Config, Interface};
use crate::electrum::Limits;
use crate::electrum::peers::{Peers, Seat};
use crate::electrum::tls;
use crate::light::Blocks;
use crate::node::Explorer;

/// How long somebody is told that there is no place.
const REFUSAL: Duration = Duration::from_secs(3);

/// A running server.
pub struct Handle {
    addresses: Vec<(Interface, bool, SocketAddr)>,
    done: JoinHandle<()>,
}

impl Handle {
    /// What is offered where, and whether over TLS; a port of 0 in the settings is a real one here.
    pub fn addresses(&self) -> &[(Interface, bool, SocketAddr)] {
        &self.addresses
    }

    /// Returns when the server has stopped.
    pub async fn finished(self) {
        if let Err(error) = self.done.await {
            tracing::error!("the HTTP server ended badly: {error}");
        }
    }
}

/// What connections share.
struct Listener {
    router: Router,
    tls: Option<TlsAcceptor>,
    peers: Arc<Peers>,
    limits: Limits,
    graceful: GracefulShutdown,
}

/// Opens the ports and serves until `shutdown` is done; then what is being answered is answered, for at most
/// [`Config::drain`].
///
/// Runs on the runtime it is called on, which needs input, output and time.
///
/// # Errors
/// A port can't be opened, the certificate can't be read, or two interfaces contradict each other on one address.
pub async fn serve(
    config: Config,
    node: Arc<dyn Explorer>,
    blocks: Arc<Blocks>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<Handle> {
    let with_tls = config.ports.iter().any(|port| port.tls && !port.addresses.is_empty());
    let acceptor =
        with_tls.then(|| tls::server_config(&config.certificate)).transpose()?.map(TlsAcceptor::from);
    let web = Web::new(node, blocks, &config);
    let peers = Peers::new(config.limits.clone());
    // What is to be offered at each address. Port 0 is another one every time.
    let mut offers: BTreeMap<(SocketAddr, bool, usize), Vec<Interface>> = BTreeMap::new();
    for (number, port) in config.ports.iter().enumerate() {
        for address in &port.addresses {
            let own = if address.port() == 0 { number + 1 } else { 0 };
            offers.entry((*address, port.tls, own)).or_default().push(port.interface);
        }
    }
    let (mut addresses, mut listeners) = (Vec::new(), Vec::new());
    for ((address, tls, _), interfaces) in offers {
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("can't listen on {address}"))?;
        let open = listener.local_addr()?;
        addresses.extend(interfaces.iter().map(|interface| (*interface, tls, open)));
        if CONTRADICT.iter().all(|interface| interfaces.contains(interface)) {
            let names = CONTRADICT.map(Interface::name).join(" and ");
            bail!("{names} can't share {address}: the same paths have other answers");
        }
        let mut router = Router::new();
        for interface in &interfaces {
            router = router.merge(interface.router());
        }
        let router = layered(router.with_state(Arc::clone(&web)), &config)?;
        let shared = Listener {
            router,
            tls: acceptor.clone().filter(|_| tls),
            peers: Arc::clone(&peers),
            limits: config.limits.clone(),
            graceful: GracefulShutdown::new(),
        };
        listeners.push((listener, shared));
    }
    let (stop, stopped) = watch::channel(false);
    let drain = config.drain;
    let running: Vec<JoinHandle<()>> = listeners
        .into_iter()
        .map(|(listener, shared)| tokio::spawn(listen(listener, shared, stopped.clone(), drain)))
        .collect();
    let done = tokio::spawn(async move {
        shutdown.await;
        stop.send_replace(true);
        for listener in running {
            if let Err(error) = listener.await {
                tracing::error!("a listener ended badly: {error}");
            }
        }
    });
    Ok(Handle { addresses, done })
}

/// Limits and headers that all interfaces have.
fn layered(router: Router, config: &Config) -> anyhow::Result<Router> {
    let mut router = router
        .fallback(|| async { Problem::missing("endpoint does not exist") })
        .method_not_allowed_fallback(|| async { (StatusCode::METHOD_NOT_ALLOWED, "method not allowed") })
        .layer(DefaultBodyLimit::max(config.limits.request_bytes))
        .layer(middleware::from_fn(metered));
    if let Some(origin) = &config.cors {
        let origin = match origin.as_str() {
            "*" => AllowOrigin::from(Any),
            origin => AllowOrigin::exact(HeaderValue::from_str(origin).context("http_cors")?),
        };
        let cors = CorsLayer::new()
            .allow_origin(origin)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(Any)
            .expose_headers(Any);
        router = router.layer(cors);
    }
    Ok(router)
}

/// Has a client that asks too much wait, or come later.
async fn metered(request: Request, next: Next) -> Response {
    let Some(seat) = request.extensions().get::<Arc<Seat>>().cloned() else {
        return next.run(request).await;
    };
    match seat.wait() {
        Ok(Duration::ZERO) => {}
        Ok(wait) => tokio::time::sleep(wait).await,
        Err(error) => return Problem::too_many(error.message).into_response(),
    }
    let response = next.run(request).await;
    seat.charge(1.0);
    response
}

async fn listen(listener: TcpListener, shared: Listener, mut stop: watch::Receiver<bool>, drain: Duration) {
    let Listener { router, tls, peers, limits, graceful } = shared;
    let refusals = Arc::new(Semaphore::new(16));
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
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
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("{}: {error}", address.ip());
        }
        let seat = peers.seat(address.ip());
        let refusals = Arc::clone(&refusals);
        let (router, tls, limits, watcher) =
            (router.clone(), tls.clone(), limits.clone(), graceful.watcher());
        tokio::spawn(async move {
            let seat = match seat {
                Ok(seat) => Arc::new(seat),
                Err(error) => {
                    tracing::debug!("{}: {}", address.ip(), error.message);
                    // Only a few are told, and only where it costs no handshake: refusals mustn't be a way around the limit.
                    let (Ok(_permit), None) = (refusals.try_acquire(), tls) else { return };
                    let refusal = Problem::busy(error.message, 5);
                    let router = Router::new().fallback(move || async move { refusal });
                    let told = speak(stream, router, None, &limits, |connection| connection);
                    let _ = tokio::time::timeout(REFUSAL, told).await;
                    return;
                }
            };
            match tls {
                None => {
                    speak(stream, router, Some(seat), &limits, |connection| watcher.watch(connection)).await
                }
                Some(acceptor) => {
                    if let Some(stream) = handshake(acceptor, stream, &limits, address.ip()).await {
                        speak(stream, router, Some(seat), &limits, |connection| watcher.watch(connection))
                            .await;
                    }
                }
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(drain, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests weren't answered in time");
    }
}

async fn handshake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    limits: &Limits,
    address: IpAddr,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    match tokio::time::timeout(limits.handshake, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!("{address}: no TLS: {error}");
            None
        }
        Err(_) => None,
    }
}

type Connection<S> =
    http1::Connection<TokioIo<std::pin::Pin<Box<TimeoutStream<S>>>>, TowerToHyperService<Seated>>;

async fn speak<S, F>(
    stream: S,
    router: Router,
    seat: Option<Arc<Seat>>,
    limits: &Limits,
    watched: impl FnOnce(Connection<S>) -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = hyper::Result<()>>,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_timeout));
    let service = TowerToHyperService::new(Seated { router, seat });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Between requests, too.
        .header_read_timeout(limits.idle)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    if let Err(error) = watched(connection).await {
        tracing::debug!("a connection failed: {error}");
    }
}

/// Tells handlers whose connection it is.
#[derive(Clone)]
struct Seated {
    router: Router,
    seat: Option<Arc<Seat>>,
}

impl Service<hyper::Request<hyper::body::Incoming>> for Seated {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = tower::util::Oneshot<Router, Request>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: hyper::Request<hyper::body::Incoming>) -> Self::Future {
        let mut request = request.map(axum::body::Body::new);
        if let Some(seat) = &self.seat {
            request.extensions_mut().insert(Arc::clone(seat));
        }
        self.router.clone().oneshot(request)
    }
}

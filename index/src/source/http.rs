//! One HTTP client for both interfaces of a node: blocking, keep-alive, shared by many threads.

use std::io;
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bitcoin::Network;
use ureq::Agent;
use ureq::config::Config;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::secret::Secret;
use super::{SourceError, default_rpc_port};

/// How long to wait for a connection; a node on the same machine or network accepts within milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Room for the text of an error, also where the expected answer is shorter.
const MIN_ERROR_LIMIT: usize = 4096;

/// Requests in flight at once; further ones wait. That is how many Bitcoin Core answers at the same time, and before version
/// 29 it refuses requests when 16 more are waiting.
const IN_FLIGHT: usize = 16;

/// Bitcoin Core drops idle connections after 30 s; letting go of them earlier avoids requests into a closing one.
const IDLE_AGE: Duration = Duration::from_secs(15);

/// How long the address behind a name is used again.
const NAME_AGE: Duration = Duration::from_secs(10);

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeAddress {
    /// `host:port`, for people and for URLs.
    authority: String,
}

impl NodeAddress {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self { authority: format!("{host}:{port}") }
    }

    /// Reads `http://host:port`, `host:port` or `host`; the network's usual port is taken when there is none.
    pub(super) fn parse(url: &str, network: Network) -> Result<Self, SourceError> {
        // The text itself is never repeated: somebody may have put a password into it.
        let refuse = |what: &str| SourceError::Refused(format!("node address: {what}"));
        let rest = match url.trim().split_once("://") {
            None => url.trim(),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => {
                return Err(refuse(
                    "https isn't supported; use http on the same machine or through a tunnel (SSH, WireGuard)",
                ));
            }
            Some(_) => return Err(refuse("it must look like http://127.0.0.1:8332")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('@') {
            return Err(refuse("give user and password in their own settings, not in the address"));
        }
        if rest.is_empty()
            || !rest
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b':' | b'-' | b'_' | b'[' | b']'))
        {
            return Err(refuse("it must look like http://127.0.0.1:8332, without a path"));
        }
        // The last colon starts the port, unless it is inside the brackets of an IPv6 address.
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => match port.parse::<u16>() {
                Ok(port) if port != 0 => (host, port),
                _ => return Err(refuse("the port must be a number from 1 to 65535")),
            },
            _ => (rest, default_rpc_port(network)),
        };
        let bracketed = host.starts_with('[') && host.ends_with(']');
        if host.is_empty() || (!bracketed && host.contains([':', '[', ']'])) {
            return Err(refuse("an IPv6 address stands in brackets, as in http://[::1]:8332"));
        }
        Ok(Self::new(host, port))
    }

    pub(super) fn authority(&self) -> &str {
        &self.authority
    }
}

/// Finds the node's address. The library looks it up before each request, in a new thread, which takes longer than all else
/// that is done for a small request.
#[derive(Debug, Default)]
struct Addresses {
    by_name: DefaultResolver,
    known: Mutex<Option<(String, Instant, ResolvedSocketAddrs)>>,
}

impl Resolver for Addresses {
    fn resolve(
        &self,
        uri: &ureq::http::Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if let Ok(address) = authority.parse::<SocketAddr>() {
            let mut addresses = self.empty();
            addresses.push(address);
            return Ok(addresses);
        }
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((name, since, addresses)) = &*known()
            && name == authority
            && since.elapsed() < NAME_AGE
        {
            return Ok(addresses.clone());
        }
        let addresses = self.by_name.resolve(uri, config, timeout)?;
        *known() = Some((authority.to_owned(), Instant::now(), addresses.clone()));
        Ok(addresses)
    }
}

/// Status and body of an answer, whatever the status.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Reply {
    /// The beginning of the body as one short printable line, for an error message.
    pub(super) fn excerpt(&self) -> String {
        excerpt(&self.body)
    }
}

/// The beginning of what a node sent, fit for a terminal and a log: one line, printable ASCII, at most 200 characters.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let mut text: String = bytes
        .iter()
        .take(200)
        .map(|&b| if b == b' ' || b.is_ascii_graphic() { char::from(b) } else { ' ' })
        .collect();
    text.truncate(text.trim_end().len());
    text
}

pub(super) struct HttpClient {
    agent: Agent,
    address: NodeAddress,
    timeout: Duration,
    places: Places,
}

/// Places for requests in flight.
struct Places {
    free: Mutex<usize>,
    freed: Condvar,
}

/// One of them, until it is dropped.
struct Place<'a>(&'a Places);

impl Places {
    /// Waits for a place. `None` if there was none for so long.
    fn take(&self, timeout: Duration) -> Option<Place<'_>> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_timeout_while(free, timeout, |free| *free == 0);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Place(self))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

impl HttpClient {
    /// `timeout` limits a whole request, from connecting to the last byte of the body, and how long it waits for its turn.
    pub(super) fn new(address: NodeAddress, timeout: Duration) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // A node is reached directly; proxies of the environment are meant for the web.
            .proxy(None)
            .timeout_global(Some(timeout))
            .timeout_connect(Some(CONNECT_TIMEOUT.min(timeout)))
            .max_idle_connections(IN_FLIGHT)
            .max_idle_connections_per_host(IN_FLIGHT)
            .max_idle_age(IDLE_AGE)
            .user_agent(concat!("peregrine/", env!("CARGO_PKG_VERSION")))
            .build();
        let agent = Agent::with_parts(config, DefaultConnector::default(), Addresses::default());
        let places = Places { free: Mutex::new(IN_FLIGHT), freed: Condvar::new() };
        Self { agent, address, timeout, places }
    }

    pub(super) fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// `path` starts with a slash; an answer of more than `limit` bytes is an error (errors may have a few
    /// kilobytes in any case).
    pub(super) fn get(&self, path: &str, limit: usize) -> Result<Reply, SourceError> {
        let url = format!("http://{}{path}", self.address.authority);
        self.once_more(limit, || self.agent.get(&url).call())
    }

    /// Posts JSON to `/`. All requests of this crate may be sent twice: they only read, or hand in a transaction, which the
    /// node takes as often as it is sent.
    pub(super) fn post(
        &self,
        json: &[u8],
        authorization: Option<&Secret>,
        limit: usize,
    ) -> Result<Reply, SourceError> {
        let url = format!("http://{}/", self.address.authority);
        self.once_more(limit, || {
            let mut request = self.agent.post(&url).header("content-type", "application/json");
            if let Some(authorization) = authorization {
                request = request.header("authorization", authorization.expose());
            }
            request.send(json)
        })
    }

    /// Sends, and sends again if a kept connection turned out to be closed: the node was restarted, or it closed the
    /// connection for idleness while the request was on its way.
    fn once_more(
        &self,
        limit: usize,
        send: impl Fn() -> Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Reply, SourceError> {
        let Some(_place) = self.places.take(self.timeout) else {
            return Err(SourceError::Unavailable(format!(
                "the node left {IN_FLIGHT} other requests unanswered for {} s",
                self.timeout.as_secs_f32()
            )));
        };
        let mut response = match send() {
            Err(ureq::Error::Io(e)) if is_disconnect(&e) => send(),
            other => other,
        }
        .map_err(|e| self.error(e, limit))?;
        let status = response.status().as_u16();
        let limit = if status == 200 { limit } else { limit.max(MIN_ERROR_LIMIT) };
        // One byte more, so that an answer of exactly the limit passes.
        let body = response.body_mut().with_config().limit(limit as u64 + 1).read_to_vec();
        let body = body.map_err(|e| self.error(e, limit))?;
        if body.len() > limit {
            return Err(too_long(limit));
        }
        Ok(Reply { status, body })
    }

    fn error(&self, error: ureq::Error, limit: usize) -> SourceError {
        use ureq::Error as E;
        let unavailable = |text: String| SourceError::Unavailable(text);
        match error {
            E::Io(e) => match e.kind() {
                io::ErrorKind::ConnectionRefused => unavailable("connection refused".into()),
                _ if is_disconnect(&e) => unavailable("the node closed the connection".into()),
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => self.timed_out(),
                _ => unavailable(e.to_string()),
            },
            E::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => unavailable(format!(
                "no connection within {} s",
                CONNECT_TIMEOUT.min(self.timeout).as_secs_f32()
            )),
            E::Timeout(_) => self.timed_out(),
            E::HostNotFound => unavailable("the host name isn't known".into()),
            E::BodyExceedsLimit(_) => too_long(limit),
            E::Protocol(e) => SourceError::Invalid(format!("not a valid HTTP answer: {e}")),
            E::Http(e) => SourceError::Invalid(format!("not a valid HTTP answer: {e}")),
            E::LargeResponseHeader(..) => SourceError::Invalid("the HTTP header never ends".into()),
            E::BadUri(_) => SourceError::Refused("the node's address can't be used".into()),
            e => unavailable(e.to_string()),
        }
    }

    fn timed_out(&self) -> SourceError {
        SourceError::Unavailable(format!("no complete answer within {} s", self.timeout.as_secs_f32()))
    }
}

fn too_long(limit: usize) -> SourceError {
    SourceError::Invalid(format!("an answer of more than {limit} bytes"))
}

fn is_disconnect(e: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        e.kind(),
        K::UnexpectedEof | K::ConnectionReset | K::ConnectionAborted | K::BrokenPipe | K::NotConnected
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_no_place_waits_for_one() {
        let places = Places { free: Mutex::new(2), freed: Condvar::new() };
        let (first, second) = (places.take(Duration::ZERO), places.take(Duration::ZERO));
        assert!(first.is_some() && second.is_some());
        assert!(places.take(Duration::from_millis(5)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| places.take(Duration::from_secs(60)).is_some());
            drop(first);
            assert!(waiting.join().unwrap());
        });
        drop(second);
        assert_eq!(*places.free.lock().unwrap(), 2);
    }

    #[test]
    fn addresses_need_no_lookup_and_names_only_one() {
        let resolver = Addresses::default();
        let config = Agent::config_builder().build();
        let resolve = |url: &str| {
            let uri = url.parse().unwrap();
            let timeout = NextTimeout { after: Duration::from_secs(60).into(), ..NextTimeout::default() };
            resolver.resolve(&uri, &config, timeout).map(|addresses| addresses.to_vec())
        };
        for (url, address) in
            [("http://127.0.0.1:8332/rest", "127.0.0.1:8332"), ("http://[::1]:18443/", "[::1]:18443")]
        {
            assert_eq!(resolve(url).unwrap(), [address.parse::<SocketAddr>().unwrap()]);
        }
        assert!(resolver.known.lock().unwrap().is_none());
        let localhost = resolve("http://localhost:8332/").unwrap();
        assert!(localhost.iter().all(|address| address.ip().is_loopback() && address.port() == 8332));
        let known = resolver.known.lock().unwrap().as_ref().unwrap().1;
        assert_eq!(resolve("http://localhost:8332/").unwrap(), localhost);
        assert_eq!(resolver.known.lock().unwrap().as_ref().unwrap().1, known);
    }
}

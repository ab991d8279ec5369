//! One HTTP client for both interfaces of a node: blocking, keep-alive, shared by many threads.

use std::io;
use std::time::Duration;

use bitcoin::Network;
use ureq::Agent;

use super::secret::Secret;
use super::{SourceError, default_rpc_port};

/// How long to wait for a connection; a node on the same machine or network accepts within milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Room for the text of an error, also where the expected answer is shorter.
const MIN_ERROR_LIMIT: usize = 4096;

/// Connections kept open for reuse; more requests than this can be in flight, the rest of them reconnects.
const IDLE_CONNECTIONS: usize = 64;

/// Bitcoin Core drops idle connections after 30 s; letting go of them earlier avoids requests into a closing one.
const IDLE_AGE: Duration = Duration::from_secs(15);

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
}

impl HttpClient {
    /// `timeout` limits a whole request, from connecting to the last byte of the body.
    pub(super) fn new(address: NodeAddress, timeout: Duration) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // A node is reached directly; proxies of the environment are meant for the web.
            .proxy(None)
            .timeout_global(Some(timeout))
            .timeout_connect(Some(CONNECT_TIMEOUT.min(timeout)))
            .max_idle_connections(IDLE_CONNECTIONS)
            .max_idle_connections_per_host(IDLE_CONNECTIONS)
            .max_idle_age(IDLE_AGE)
            .user_agent(concat!("peregrine/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Self { agent, address, timeout }
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

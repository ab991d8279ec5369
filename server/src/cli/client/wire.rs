//! A connection to an Electrum server, seen from the client.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use bitcoin::hashes::{Hash, sha256};
use bitcoin::hex::{DisplayHex, FromHex};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use serde_json::Value;
use zeroize::Zeroizing;

/// How long connecting, and a reply, may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon an interruption is noticed.
const POLL: Duration = Duration::from_millis(100);
/// How long a server may take to hear that we leave.
const FAREWELL: Duration = Duration::from_secs(1);
/// Longer lines aren't what a server sends.
const MAX_LINE: usize = 64 << 20;
/// More of a server's text isn't shown.
const MAX_TEXT: usize = 300;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    tls: bool,
    host: String,
    port: u16,
}

impl Server {
    /// On this machine, without TLS.
    pub(super) fn local(port: u16) -> Self {
        Self { tls: false, host: "127.0.0.1".into(), port }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", if self.tls { "ssl" } else { "tcp" }, self.host, self.port)
    }
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' isn't a server such as tcp://127.0.0.1:50001 or ssl://HOST:50002");
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let tls = match scheme {
            "tcp" => false,
            "ssl" | "tls" => true,
            _ => return Err(wrong()),
        };
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self { tls, host: host.to_owned(), port })
    }
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// An open connection.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    /// Whether others on the way can read what is sent.
    pub(super) exposed: bool,
    received: Vec<u8>,
    /// So many of these bytes hold no end of a line.
    searched: usize,
    notifications: VecDeque<Value>,
    next_id: u64,
}

impl Connection {
    /// Connects. Over TLS the certificate must have this fingerprint, or the server be on this machine.
    pub(super) fn open(server: &Server, fingerprint: Option<&str>) -> anyhow::Result<Self> {
        let host = server.host.trim_start_matches('[').trim_end_matches(']');
        let addresses: Vec<_> = (host, server.port).to_socket_addrs()?.collect();
        let mut connected = Err(anyhow!("{host} has no address"));
        for address in &addresses {
            connected = TcpStream::connect_timeout(address, PATIENCE).map_err(Into::into);
            if connected.is_ok() {
                break;
            }
        }
        let socket = connected?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_read_timeout(Some(POLL))?;
        let local = socket.peer_addr()?.ip().is_loopback();
        let stream: Box<dyn Stream> = if server.tls {
            let wanted = fingerprint.map(parse_fingerprint).transpose()?;
            if wanted.is_none() && !local {
                let seen = probe(socket, host)?;
                bail!(
                    "the server's certificate has the fingerprint {seen}; if that is right (compare it on the server: \
                     openssl x509 -in electrum-cert.pem -noout -fingerprint -sha256), give --fingerprint {seen}"
                );
            }
            Box::new(secure(socket, host, wanted)?)
        } else {
            Box::new(socket)
        };
        Ok(Self {
            stream,
            exposed: !server.tls && !local,
            received: Vec::new(),
            searched: 0,
            notifications: VecDeque::new(),
            next_id: 1,
        })
    }

    /// Sends a request; its reply, if it comes, is passed over.
    pub(super) fn send(&mut self, method: &str, params: &str) -> anyhow::Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        // As Sparrow writes it. One allocation of the right size, which is wiped: there may be a key in it.
        let mut line = Zeroizing::new(String::with_capacity(params.len() + method.len() + 96));
        for part in [
            "{\"jsonrpc\":\"2.0\",\"method\":\"",
            method,
            "\",\"params\":",
            params,
            ",\"id\":",
            &id.to_string(),
            "}\n",
        ] {
            line.push_str(part);
        }
        self.stream.write_all(line.as_bytes())?;
        self.stream.flush()?;
        Ok(id)
    }

    /// Sends a request and waits for its result.
    pub(super) fn call(
        &mut self,
        method: &str,
        params: &str,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<Value> {
        let id = self.send(method, params)?;
        let end = Instant::now() + PATIENCE;
        loop {
            if interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            if Instant::now() > end {
                bail!("the server doesn't answer {method} within {} s", PATIENCE.as_secs());
            }
            let Some(mut reply) = self.line()? else { continue };
            if reply.get("method").is_some() {
                self.notifications.push_back(reply);
            } else if reply["id"] == id {
                if let Some(error) = reply.get("error").filter(|error| !error.is_null()) {
                    let message = error["message"].as_str().map_or_else(|| error.to_string(), printable);
                    bail!("the server refuses {method}: {message}");
                }
                return Ok(reply["result"].take());
            }
        }
    }

    /// Sends a last request and waits a moment for its reply, so that it is read before the connection ends.
    pub(super) fn leave(&mut self, method: &str, params: &str) {
        // Whatever goes wrong, the connection ends.
        let Ok(id) = self.send(method, params) else { return };
        let end = Instant::now() + FAREWELL;
        while Instant::now() < end {
            match self.line() {
                Ok(Some(reply)) if reply["id"] == id => return,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// The parameters of the next notification of a method, if there is one by now.
    pub(super) fn notification(&mut self, method: &str) -> anyhow::Result<Option<Value>> {
        let next = match self.notifications.pop_front() {
            Some(note) => Some(note),
            None => self.line()?,
        };
        let Some(mut note) = next.filter(|note| note["method"] == method) else { return Ok(None) };
        let params = note["params"].take();
        // By position or by name: both are seen.
        Ok(Some(match params {
            Value::Array(mut list) if list.len() == 3 => serde_json::json!({
                "subscription": list[0].take(), "progress": list[1].take(), "history": list[2].take(),
            }),
            other => other,
        }))
    }

    /// The next line, if it comes soon.
    fn line(&mut self) -> anyhow::Result<Option<Value>> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let unsearched = &self.received[self.searched..];
            if let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=self.searched + end).collect();
                self.searched = 0;
                return serde_json::from_slice(&line)
                    .map(Some)
                    .context("the server sent a line that isn't JSON");
            }
            self.searched = self.received.len();
            if self.received.len() > MAX_LINE {
                bail!("the server sent a line of more than {} MiB", MAX_LINE >> 20);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
                        return Ok(None);
                    }
                    _ => return Err(error).context("the connection broke"),
                },
            }
        }
    }
}

/// A server's text as it may be shown on a terminal: without control characters, and not long.
pub(super) fn printable(text: &str) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut shown: String = chars.by_ref().take(MAX_TEXT).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

fn parse_fingerprint(text: &str) -> anyhow::Result<[u8; 32]> {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    FromHex::from_hex(&digits).context("--fingerprint takes the 64 hexadecimal digits of a SHA-256")
}

fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    sha256::Hash::hash(certificate).to_byte_array()
}

fn secure(
    socket: TcpStream,
    host: &str,
    wanted: Option<[u8; 32]>,
) -> anyhow::Result<StreamOwned<ClientConnection, TcpStream>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(Pinned { wanted, provider: Arc::clone(&provider) });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let name = match host.parse::<IpAddr>() {
        Ok(address) => ServerName::from(address),
        Err(_) => ServerName::try_from(host.to_owned())?,
    };
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name)?, socket);
    let end = Instant::now() + PATIENCE;
    while stream.conn.is_handshaking() {
        match stream.conn.complete_io(&mut stream.sock) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {}
            Err(error) => return Err(error).context("no TLS connection"),
        }
    }
    Ok(stream)
}

/// The fingerprint of the server's certificate, to be shown.
fn probe(socket: TcpStream, host: &str) -> anyhow::Result<String> {
    let stream = secure(socket, host, None)?;
    let certificates = stream.conn.peer_certificates().unwrap_or_default();
    let first = certificates.first().context("the server has no certificate")?;
    Ok(fingerprint(first).to_lower_hex_string())
}

/// Accepts the one certificate that has the fingerprint, or with none any: then the server is on this machine, or only its
/// fingerprint is asked for.
#[derive(Debug)]
struct Pinned {
    wanted: Option<[u8; 32]>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let seen = fingerprint(certificate);
        if self.wanted.is_none_or(|wanted| wanted == seen) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::General(format!(
                "the server's certificate has another fingerprint: {}",
                seen.to_lower_hex_string()
            )))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_read_as_people_write_them() {
        let server = |text: &str| text.parse::<Server>().map(|server| server.to_string());
        assert_eq!(server("tcp://a.example:1"), Ok("tcp://a.example:1".into()));
        assert_eq!(server("tls://[::1]:2"), Ok("ssl://[::1]:2".into()));
        for wrong in ["", "a:1", "http://a:1", "tcp://a", "tcp://:1", "tcp://a:b", "tcp://a:70000"] {
            assert!(server(wrong).unwrap_err().contains("tcp://127.0.0.1:50001"), "{wrong}");
        }
    }

    #[test]
    fn texts_of_a_server_cannot_steer_the_terminal() {
        assert_eq!(printable("no\u{1b}[2J\n\rway\u{9b}1m é"), "no [2J  way 1m é");
        assert_eq!(printable(&"x".repeat(400)), "x".repeat(300) + "…");
    }

    #[test]
    fn lines_are_read_however_they_come() {
        struct Pieces(VecDeque<&'static [u8]>);
        impl Read for Pieces {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let Some(piece) = self.0.pop_front() else { return Ok(0) };
                if piece.is_empty() {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                buffer[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            }
        }
        impl Write for Pieces {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let pieces: [&[u8]; 6] = [b"[", b"1", b"", b"]\r\n[2] \n[", b"3]\n", b"x\n"];
        let mut connection = Connection {
            stream: Box::new(Pieces(pieces.into())),
            exposed: false,
            received: Vec::new(),
            searched: 0,
            notifications: VecDeque::new(),
            next_id: 1,
        };
        let mut line = || connection.line().map_err(|error| error.to_string());
        assert_eq!(line(), Ok(None));
        for number in 1..=3 {
            assert_eq!(line(), Ok(Some(serde_json::json!([number]))));
        }
        assert!(line().unwrap_err().contains("isn't JSON"));
        assert!(line().unwrap_err().contains("closed"));
    }
}

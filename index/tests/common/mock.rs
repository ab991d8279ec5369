//! An HTTP server that answers as badly as a test wants.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What a client sent. Header lines are in lower case up to the colon.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: Vec<String>,
    pub(crate) body: Vec<u8>,
}

/// What it gets.
pub(crate) enum Answer {
    /// A proper answer; the connection stays open.
    Full(u16, Vec<u8>),
    /// A proper answer that doesn't announce that the connection is then closed.
    FullThenClose(u16, Vec<u8>),
    /// These bytes, then the connection is closed.
    Raw(Vec<u8>),
    /// These bytes, and the last of them again and again for as long as the client reads.
    Endless(Vec<u8>),
    /// Nothing for this long, then the connection is closed.
    Silence(Duration),
}

/// A running server; it ends with the value.
pub(crate) struct Mock {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Mock {
    /// `answer` is called for every request, by a thread per connection.
    pub(crate) fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mock =
            Self { address: listener.local_addr().unwrap(), stop: Arc::default(), requests: Arc::default() };
        let (stop, requests, answer) = (mock.stop.clone(), mock.requests.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (requests, answer) = (requests.clone(), answer.clone());
                thread::spawn(move || serve(stream.unwrap(), &requests, &*answer));
            }
        });
        mock
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// `None` at the end of the connection.
fn serve(
    stream: TcpStream,
    requests: &Mutex<Vec<Request>>,
    answer: &dyn Fn(&Request) -> Answer,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let request = read_request(&mut reader)?;
        requests.lock().unwrap().push(request.clone());
        match answer(&request) {
            Answer::Full(status, body) => writer.write_all(&full(status, &body)).ok()?,
            Answer::FullThenClose(status, body) => {
                writer.write_all(&full(status, &body)).ok()?;
                return None;
            }
            Answer::Raw(bytes) => {
                writer.write_all(&bytes).ok()?;
                return None;
            }
            Answer::Endless(bytes) => {
                writer.write_all(&bytes).ok()?;
                let more = vec![*bytes.last()?; 1 << 16];
                loop {
                    writer.write_all(&more).ok()?;
                }
            }
            Answer::Silence(time) => {
                thread::sleep(time);
                return None;
            }
        }
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&len| len > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        let name = name.to_ascii_lowercase();
        if name == "content-length" {
            length = value.trim().parse().ok()?;
        }
        headers.push(format!("{name}:{value}"));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { path, headers, body })
}

fn full(status: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

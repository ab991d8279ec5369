//! A plain Electrum client: one request, or one batch, at a time, as Sparrow does.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

pub(crate) struct Client {
    reader: BufReader<TcpStream>,
    next_id: u64,
    /// Time spent waiting for the server: from each request to the last byte of its answer. What this client does with
    /// requests and answers isn't in it.
    waited: Duration,
}

impl Client {
    /// Connects and negotiates protocol 1.4.
    pub(crate) fn connect(address: &str) -> anyhow::Result<Self> {
        let started = Instant::now();
        let stream = TcpStream::connect(address).with_context(|| format!("no server at {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(600)))?;
        let mut client =
            Self { reader: BufReader::with_capacity(1 << 16, stream), next_id: 1, waited: Duration::ZERO };
        client.waited = started.elapsed();
        client.call("server.version", json!(["electrum-load", "1.4"]))?;
        Ok(client)
    }

    pub(crate) fn call(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": id }).to_string();
        let mut answer = self.ask(&request)?;
        loop {
            let mut reply: Value = serde_json::from_slice(&answer)?;
            if reply["id"] == id {
                return result(&mut reply).with_context(|| method.to_owned());
            }
            answer = self.timed_line()?;
        }
    }

    /// One batch; results in the order of the requests.
    pub(crate) fn batch(&mut self, method: &str, params: &[Value]) -> anyhow::Result<Vec<Value>> {
        let first = self.next_id;
        self.next_id += params.len() as u64;
        let requests: Vec<Value> = (first..)
            .zip(params)
            .map(|(id, params)| json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": id }))
            .collect();
        let mut answer = self.ask(&Value::Array(requests).to_string())?;
        loop {
            let Value::Array(mut replies) = serde_json::from_slice(&answer)? else {
                answer = self.timed_line()?;
                continue;
            };
            // Any order is allowed.
            replies.sort_by_key(|reply| reply["id"].as_u64());
            if replies.len() != params.len() || replies[0]["id"] != first {
                bail!("{method}: {} replies to {} requests", replies.len(), params.len());
            }
            return replies
                .iter_mut()
                .map(|reply| result(reply).with_context(|| method.to_owned()))
                .collect();
        }
    }

    /// All of it in batches of a size.
    pub(crate) fn pages(
        &mut self,
        method: &str,
        params: &[Value],
        page: usize,
    ) -> anyhow::Result<Vec<Value>> {
        let mut all = Vec::with_capacity(params.len());
        for part in params.chunks(page) {
            all.extend(self.batch(method, part)?);
        }
        Ok(all)
    }

    /// The next notification of a method: its parameters.
    pub(crate) fn notification(&mut self, method: &str) -> anyhow::Result<Value> {
        loop {
            let mut line: Value = serde_json::from_slice(&self.line()?)?;
            if line["method"] == method {
                return Ok(line["params"].take());
            }
        }
    }

    /// How long this client has waited for the server.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    fn ask(&mut self, request: &str) -> anyhow::Result<Vec<u8>> {
        let line = [request.as_bytes(), b"\n"].concat();
        let started = Instant::now();
        self.reader.get_mut().write_all(&line)?;
        let answer = self.line();
        self.waited += started.elapsed();
        answer
    }

    fn timed_line(&mut self) -> anyhow::Result<Vec<u8>> {
        let started = Instant::now();
        let line = self.line();
        self.waited += started.elapsed();
        line
    }

    fn line(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut line = Vec::new();
        if self.reader.read_until(b'\n', &mut line)? == 0 {
            bail!("the server closed the connection");
        }
        Ok(line)
    }
}

fn result(reply: &mut Value) -> anyhow::Result<Value> {
    match reply.get("error").filter(|error| !error.is_null()) {
        Some(error) => bail!("{error}"),
        None => Ok(reply["result"].take()),
    }
}

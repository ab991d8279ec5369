//! A plain Electrum client: one request, or one batch, at a time, as Sparrow does.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

pub(crate) struct Client {
    reader: BufReader<TcpStream>,
    next_id: u64,
}

impl Client {
    /// Connects and negotiates protocol 1.4.
    pub(crate) fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("no server at {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(600)))?;
        let mut client = Self { reader: BufReader::with_capacity(1 << 16, stream), next_id: 1 };
        client.call("server.version", json!(["electrum-load", "1.4"]))?;
        Ok(client)
    }

    pub(crate) fn call(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        let id = self.next_id;
        self.next_id += 1;
        self.write(&json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": id }).to_string())?;
        loop {
            let mut reply = self.line()?;
            if reply["id"] == id {
                return result(&mut reply).with_context(|| method.to_owned());
            }
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
        self.write(&Value::Array(requests).to_string())?;
        loop {
            let Value::Array(mut replies) = self.line()? else { continue };
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
            let mut line = self.line()?;
            if line["method"] == method {
                return Ok(line["params"].take());
            }
        }
    }

    fn write(&mut self, text: &str) -> anyhow::Result<()> {
        let line = [text.as_bytes(), b"\n"].concat();
        Ok(self.reader.get_mut().write_all(&line)?)
    }

    fn line(&mut self) -> anyhow::Result<Value> {
        let mut line = Vec::new();
        if self.reader.read_until(b'\n', &mut line)? == 0 {
            bail!("the server closed the connection");
        }
        Ok(serde_json::from_slice(&line)?)
    }
}

fn result(reply: &mut Value) -> anyhow::Result<Value> {
    match reply.get("error").filter(|error| !error.is_null()) {
        Some(error) => bail!("{error}"),
        None => Ok(reply["result"].take()),
    }
}

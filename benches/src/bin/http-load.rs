//! Load on an HTTP server: how many requests a second it answers over so many connections, and how fast; see
//! `tools/bench-http.sh`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;

/// Ask an HTTP server as much as it answers
#[derive(Parser)]
#[command(name = "http-load", max_term_width = 110)]
struct Cli {
    /// The server
    #[arg(long, value_name = "ADDR:PORT")]
    server: SocketAddr,
    /// File with paths to ask in turn, one a line, beginning with /
    #[arg(long, value_name = "FILE")]
    paths: std::path::PathBuf,
    /// What to call it in the output
    #[arg(long, value_name = "TEXT", default_value = "requests")]
    name: String,
    /// How many connections, one number after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16,64,256")]
    connections: Vec<usize>,
    /// For how long each
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    seconds: u64,
    /// Print one JSON object for each number of connections
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let text = std::fs::read_to_string(&cli.paths).with_context(|| cli.paths.display().to_string())?;
    let paths: Arc<[String]> = text.lines().map(str::to_owned).filter(|line| line.starts_with('/')).collect();
    if paths.is_empty() {
        bail!("{} has no path", cli.paths.display());
    }
    let runtime = tokio::runtime::Runtime::new()?;
    for connections in &cli.connections {
        runtime.block_on(measure(&cli, &paths, *connections))?;
    }
    Ok(())
}

/// What one connection saw.
#[derive(Default)]
struct Seen {
    times: Vec<Duration>,
    bytes: u64,
    errors: u64,
}

async fn measure(cli: &Cli, paths: &Arc<[String]>, connections: usize) -> anyhow::Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let end = started + Duration::from_secs(cli.seconds);
    let running: Vec<_> = (0..connections)
        .map(|_| tokio::spawn(ask(cli.server, Arc::clone(paths), Arc::clone(&next), end)))
        .collect();
    let mut all = Seen::default();
    for connection in running {
        let seen = connection.await??;
        all.times.extend(seen.times);
        all.bytes += seen.bytes;
        all.errors += seen.errors;
    }
    let elapsed = started.elapsed().as_secs_f64();
    all.times.sort_unstable();
    let at = |share: f64| {
        let index = (all.times.len() as f64 * share) as usize;
        all.times
            .get(index.min(all.times.len().saturating_sub(1)))
            .map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let (rate, megabytes) = (all.times.len() as f64 / elapsed, all.bytes as f64 / elapsed / 1e6);
    if cli.json {
        let line = json!({
            "name": cli.name, "connections": connections, "requests": all.times.len(), "per_second": rate,
            "megabytes_per_second": megabytes, "ms_median": at(0.5), "ms_99": at(0.99), "errors": all.errors,
        });
        println!("{line}");
    } else {
        println!(
            "{:<28} {connections:>4} connections {rate:>9.0} requests/s {megabytes:>8.1} MB/s, median {:.2} ms, 99 % {:.2} ms, {} errors",
            cli.name,
            at(0.5),
            at(0.99),
            all.errors
        );
    }
    Ok(())
}

async fn ask(
    server: SocketAddr,
    paths: Arc<[String]>,
    next: Arc<AtomicUsize>,
    end: Instant,
) -> anyhow::Result<Seen> {
    let stream = TcpStream::connect(server).await.with_context(|| server.to_string())?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut seen = Seen::default();
    while Instant::now() < end {
        let path = &paths[next.fetch_add(1, Ordering::Relaxed) % paths.len()];
        let request = Request::get(path)
            .header("host", "localhost")
            .header("accept", "application/octet-stream, application/json;q=0.5")
            .body(Empty::<Bytes>::new())?;
        let started = Instant::now();
        sender.ready().await?;
        let reply = sender.send_request(request).await?;
        let good = reply.status().is_success();
        let mut body = reply.into_body();
        let mut bytes = 0;
        // To the last byte, without keeping it.
        while let Some(frame) = body.frame().await {
            bytes += frame?.data_ref().map_or(0, |data| data.len() as u64);
        }
        seen.times.push(started.elapsed());
        seen.bytes += bytes;
        seen.errors += u64::from(!good);
    }
    drop(sender);
    connection.abort();
    Ok(seen)
}

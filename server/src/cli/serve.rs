//! `peregrine serve`

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use peregrine_index::store::{IndexParams, TweakIndexWriter, TweakReader};
use peregrine_scanner::batch::TweakMethod;
use serde_json::json;
use tokio::sync::oneshot;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::prelude::*;

use super::output;
use crate::config::{ServeSettings, Settings};
use crate::electrum;
use crate::http;
use crate::interrupt;
use crate::light::Blocks;
use crate::live;
use crate::silent::{self, SilentService};

/// How often a signal is looked for.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// Index the chain and serve wallets: Electrum and silent payments
///
/// Everything in one process: it builds the indexes from a Bitcoin Core with rest=1 (30 or later; older ones by JSON-RPC),
/// follows blocks and the mempool, and answers wallets. The ports open at once; until the indexes are complete, what needs
/// them is answered with how far they are. It needs neither txindex nor a wallet in the node, but a login for JSON-RPC,
/// which it finds by itself beside a node of the same user (the cookie). With zmqpubsequence in the node's bitcoin.conf it
/// hears of transactions at once; without, it asks twice a second.
///
/// In Sparrow, add it as a private Electrum server: this machine, and the port.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  peregrine serve
  peregrine serve --electrum-tls 0.0.0.0:50002
  peregrine serve --network signet --node http://127.0.0.1:38332

It stops on Ctrl-C or SIGTERM within seconds, with everything committed. PEREGRINE_LOG sets what is logged, as in
info,peregrine=debug [default: info].")]
pub(super) struct Serve {
    #[command(flatten)]
    settings: ServeSettings,
    /// Print one JSON object per event to standard output; the log stays on standard error
    #[arg(long)]
    json: bool,
}

impl Serve {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let serve = self.settings.or(settings.serve.clone());
        start_log()?;
        let interrupted = interrupt::flag()?;
        let network = settings.network().network();
        let config = serve.electrum_config(settings)?;
        let web = serve.http_config(settings)?;
        std::fs::create_dir_all(settings.network_dir()?).with_context(|| {
            format!("can't make {}", settings.network_dir().unwrap_or_default().display())
        })?;

        let engine = settings.engine()?;
        let method = TweakMethod::choose(settings.backend())?;
        tracing::info!(
            backend = engine.backend(),
            threads = engine.threads(),
            "peregrine {}",
            env!("CARGO_PKG_VERSION")
        );
        let index_dir = settings.index_dir()?;
        let mut params = IndexParams::for_network(network);
        if let Ok(existing) = TweakReader::open(&index_dir) {
            // What was once begun elsewhere goes on without being told again.
            params.start_height = existing.params().start_height;
        }
        let tweaks = TweakIndexWriter::open_or_create(&index_dir, &params)?;
        let tweak_reader = TweakReader::open(&index_dir)?;
        let silent = SilentService::start(silent::Setup {
            reader: tweak_reader.clone(),
            engine: Arc::new(engine),
            limits: silent::Limits { scans: serve.max_silent_scans() },
        })?;
        let mut chain = live::start(live::Setup {
            network,
            node: settings.node(),
            tweaks,
            index_dir,
            address_cache: serve.address_cache(),
            transaction_cache: serve.transaction_cache(),
            requests: settings.requests(),
            method,
            zmq: serve.zmq_choice(),
            max_history: serve.max_history(),
            silent: Some(Arc::clone(&silent)),
        })?;

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("serve")
            // Requests that wait for the disk or the node; the Electrum server limits itself to fewer.
            .max_blocking_threads(512)
            .build()?;
        let node = chain.node();
        let service = Arc::clone(&silent);
        let json = self.json;
        let result = runtime.block_on(async {
            let (stop, stopped) = oneshot::channel::<()>();
            let (stop_web, web_stopped) = oneshot::channel::<()>();
            let explorer = Arc::clone(&node);
            let light = Arc::new(Blocks::new(Arc::clone(&explorer) as _, tweak_reader, web.cache / 2));
            let server = electrum::serve(config, node, Some(service), Some(Arc::clone(&light)), async {
                let _ = stopped.await;
            })
            .await?;
            let web = http::serve(web, explorer, light, async {
                let _ = web_stopped.await;
            })
            .await?;
            announce(server.addresses(), web.addresses(), json)?;
            let failure = tokio::select! {
                failure = chain.failed() => Some(failure),
                () = signal(interrupted) => None,
            };
            tracing::info!("stopping");
            // A second signal ends the program at once.
            let _ = stop.send(());
            let _ = stop_web.send(());
            tokio::join!(server.finished(), web.finished());
            Ok(failure)
        });
        silent.stop();
        chain.stop();
        runtime.shutdown_timeout(Duration::from_secs(1));
        match result {
            Ok(None) => {
                tracing::info!("stopped");
                Ok(ExitCode::SUCCESS)
            }
            Ok(Some(failure)) => Err(failure.into()),
            Err(error) => Err(error),
        }
    }
}

/// Returns when the program is told to end.
async fn signal(interrupted: &AtomicBool) {
    while !interrupted.load(Ordering::Relaxed) {
        tokio::time::sleep(SIGNAL_POLL).await;
    }
}

fn announce(
    addresses: &electrum::Addresses,
    web: &[(http::Interface, bool, SocketAddr)],
    json: bool,
) -> anyhow::Result<()> {
    let mut lists: BTreeMap<String, Vec<SocketAddr>> = [
        ("electrum", &addresses.tcp),
        ("electrum_tls", &addresses.tls),
        ("electrum_websocket", &addresses.websocket),
        ("electrum_websocket_tls", &addresses.websocket_tls),
    ]
    .into_iter()
    .map(|(name, list)| (name.to_owned(), list.clone()))
    .collect();
    for (interface, tls, address) in web {
        let name = format!("{}{}", interface.name(), if *tls { "_tls" } else { "" });
        lists.entry(name).or_default().push(*address);
    }
    let mut event = json!({ "event": "listening" });
    for (name, list) in &lists {
        let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
        for address in &texts {
            tracing::info!("listening on {address} ({name})");
        }
        event[name] = texts.into();
    }
    if json {
        output::json_line(&event)?;
    }
    Ok(())
}

/// Logs to standard error.
fn start_log() -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var("PEREGRINE_LOG")
        .from_env()
        .context("PEREGRINE_LOG")?;
    // Others than ourselves only warn. Some log what they carry at their finest levels, which may be a scan key, so that
    // not even PEREGRINE_LOG changes that.
    let careful = tracing_subscriber::filter::filter_fn(|metadata| {
        metadata.target().starts_with("peregrine") || *metadata.level() <= tracing::Level::WARN
    });
    tracing_subscriber::registry()
        .with(
            tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false)
                .with_filter(filter)
                .with_filter(careful),
        )
        .try_init()
        .context("can't start the log")
}

//! The Electrum server as clients see it, beside a node in memory.

mod chain;
mod client;
mod limits;
mod malformed;
mod memory;
mod methods;
mod silent;
mod sparrow;
#[path = "../common/tls.rs"]
mod tls;
mod transports;

use std::net::SocketAddr;
use std::sync::Arc;

use memory::{MemoryNode, MemorySilent};
use peregrine::electrum::{self, Config, Handle};
use tokio::sync::oneshot;

pub(crate) struct Running {
    pub(crate) handle: Handle,
    pub(crate) node: Arc<MemoryNode>,
    pub(crate) silent: Arc<MemorySilent>,
    pub(crate) dir: tempfile::TempDir,
    stop: oneshot::Sender<()>,
}

impl Running {
    /// A server on a plain port of loopback.
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// The same with other settings.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        config.tcp.push(loopback());
        change(&mut config);
        let (node, silent) = (MemoryNode::new(), MemorySilent::new());
        let (stop, stopped) = oneshot::channel();
        let shutdown = async { _ = stopped.await };
        let handle =
            electrum::serve(config, node.clone(), Some(silent.clone()), None, shutdown).await.unwrap();
        Self { handle, node, silent, dir, stop }
    }

    pub(crate) fn tcp(&self) -> SocketAddr {
        self.handle.addresses().tcp[0]
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.handle.finished().await;
    }
}

pub(crate) fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

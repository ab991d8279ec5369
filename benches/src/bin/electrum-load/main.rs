//! Loads of a large wallet on Electrum servers, to compare them in one run on one chain; see `tools/bench-peers.sh`.
//!
//! - `chain` makes a regtest chain with a wallet in it, always the same one;
//! - `wait` waits until a server has it;
//! - `run` measures servers in turn, and compares their answers;
//! - `connections` holds many connections open, busy and idle ones;
//! - `silent-chain` makes a regtest chain with many rows to scan;
//! - `scan` times silent-payment scans of many clients at once.

mod chain;
mod client;
mod connections;
mod load;
mod scan;
mod silent_chain;

use clap::{Parser, Subcommand};

/// Loads of a large wallet on Electrum servers, to compare them
#[derive(Parser)]
#[command(name = "electrum-load", max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a chain with a wallet on an empty regtest node, and write down the wallet's script hashes
    Chain(chain::Chain),
    /// Wait until a server has a height and answers
    Wait(load::Wait),
    /// Measure the first load and the refresh of the wallet, on several servers in turn
    Run(load::Run),
    /// Hold many connections open for a while, some of them busy
    Connections(connections::Connections),
    /// Make a chain with rows for silent-payment scans on an empty regtest node
    SilentChain(silent_chain::SilentChain),
    /// Time silent-payment scans of many clients at once against that of one
    Scan(scan::Scan),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Chain(command) => command.run(),
        Command::Wait(command) => command.run(),
        Command::Run(command) => command.run(),
        Command::Connections(command) => command.run(),
        Command::SilentChain(command) => command.run(),
        Command::Scan(command) => command.run(),
    }
}

//! The command line.
//!
//! Exit codes: 0 success; 1 an error, or something that was checked is wrong; 2 wrong use; 130 interrupted.

mod address;
mod bench;
mod client;
mod demo;
mod devices;
mod index;
mod info;
mod output;
mod scan;
mod serve;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::Settings;

/// Finds silent payments (BIP352): keeps an index of the chain's tweaks and scans it for a wallet's keys.
#[derive(Parser)]
#[command(name = "peregrine", version, max_term_width = 110)]
#[command(after_help = "\
Begin with `peregrine demo`, which needs no node. Beside a Bitcoin Core 30 with rest=1:
  peregrine serve
  peregrine scan --spend-key 02… --scan-key-file key.txt --from 2024-01-01

Exit codes: 0 success; 1 an error, or a check failed; 2 wrong use; 130 interrupted.")]
struct Cli {
    /// Settings file [default: peregrine.toml in the data directory, if it is there]
    #[arg(long, global = true, env = "PEREGRINE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a synthetic chain, index it, scan it and compare with what was planted; needs no node
    Demo(demo::Demo),
    /// Build or continue the tweak index from a Bitcoin Core node
    Index(index::Index),
    /// Index the chain and serve wallets: Electrum and silent payments
    Serve(Box<serve::Serve>),
    /// Scan blocks of the index for the payments of a wallet
    Scan(scan::Scan),
    /// Find payments through a server, as a wallet does
    Client(Box<client::Client>),
    /// Say what the index holds
    Info(info::Info),
    /// Check every byte of the index, and with a node its contents
    Verify(verify::Verify),
    /// Decode and check a silent payment address
    Address(address::Address),
    /// Say what can compute on this machine, and why something can't
    Devices(devices::Devices),
    /// Time what this machine's backends need for a scan
    Bench(bench::Bench),
}

/// Runs the program.
pub fn main() -> ExitCode {
    // So that `peregrine demo | head` ends quietly, as other programs do, instead of failing to print.
    sigpipe::reset();
    let cli = Cli::parse();
    let result = cli.settings.complete(cli.config.as_deref()).and_then(|settings| match cli.command {
        Command::Demo(command) => command.run(&settings),
        Command::Index(command) => command.run(&settings),
        Command::Serve(command) => command.run(&settings),
        Command::Scan(command) => command.run(&settings),
        Command::Client(command) => command.run(&settings),
        Command::Info(command) => command.run(&settings),
        Command::Verify(command) => command.run(&settings),
        Command::Address(command) => command.run(),
        Command::Devices(command) => command.run(),
        Command::Bench(command) => command.run(&settings),
    });
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// For work that ended because of Ctrl-C.
fn interrupted() -> ExitCode {
    ExitCode::from(130)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent_and_every_command_has_an_example() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            let help = sub.clone().render_long_help().to_string();
            assert!(help.contains("Example"), "{}: {help}", sub.get_name());
            assert!(help.contains(&format!("peregrine {}", sub.get_name())), "{help}");
        }
    }
}

//! `peregrine address`

use std::process::ExitCode;

use peregrine_scanner::{Address as SilentAddress, AddressNetwork};
use serde::Serialize;

/// Decode and check a silent payment address
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  peregrine address sp1qqgste7k9hx0qftg6qmwlkqtwuy6cycyavzmzj85c6qdfhjdpdjtdgqjuexzk6murw56suy3e0rd2cgqvycxttddwsvgxe2usfpxumr70xc9pkqwv")]
pub(super) struct Address {
    /// The address: sp1… (mainnet), tsp1… (test networks) or sprt1… (regtest)
    address: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Decoded {
    network: &'static str,
    version: u8,
    scan_key: String,
    spend_key: String,
}

impl Address {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let address: SilentAddress = self.address.trim().parse()?;
        let decoded = Decoded {
            network: match address.network {
                AddressNetwork::Mainnet => "mainnet",
                AddressNetwork::Testnet => "testnet",
                AddressNetwork::Regtest => "regtest",
            },
            version: address.version,
            scan_key: address.scan.to_string(),
            spend_key: address.spend.to_string(),
        };
        if self.json {
            super::output::json(&decoded)?;
        } else {
            println!("network    {}", decoded.network);
            println!("version    {}", decoded.version);
            println!("scan key   {}", decoded.scan_key);
            println!("spend key  {}  (labelled, if the address is)", decoded.spend_key);
        }
        Ok(ExitCode::SUCCESS)
    }
}

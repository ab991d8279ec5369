//! Settings: a TOML file, then the environment, then flags; the later one wins.
//!
//! One structure defines a setting's name everywhere: the key `rpc_user` of the file is the variable
//! `PEREGRINE_RPC_USER` and the flag `--rpc-user`. A key or variable that nobody knows is an error that names the
//! nearest known one.

mod serve;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bitcoin::Network;
use clap::ValueEnum;
use peregrine_index::source::{NodeConfig, NodeKind, Secret};
use peregrine_scanner::Engine;
use peregrine_scanner::backend::{self, Selection};
use serde::{Deserialize, Deserializer};

pub use serve::{Listen, ServeSettings, default_port};

/// Opens every variable of ours.
const PREFIX: &str = "PEREGRINE_";

/// Variables of the environment that aren't settings: the file's place, secrets, and what the project's tests use.
const OTHER_VARIABLES: [&str; 7] = [
    "PEREGRINE_CONFIG",
    "PEREGRINE_LOG",
    "PEREGRINE_RPC_PASSWORD",
    crate::secret::SCAN_KEY_VARIABLE,
    "PEREGRINE_BITCOIND",
    "PEREGRINE_FIXTURES",
    "PEREGRINE_SKIP_NODE_TESTS",
];

/// A mebibyte more and it wouldn't be a number of bytes.
const MAX_CARD_MEMORY: u64 = (1 << 44) - 1;

/// The keys of the settings file that every command has.
const COMMON_KEYS: [&str; 15] = [
    "network",
    "datadir",
    "node",
    "bitcoin_datadir",
    "cookie",
    "rpc_user",
    "rpc_password",
    "source",
    "timeout",
    "requests",
    "backend",
    "cards",
    "card_memory",
    "cuda_arch",
    "threads",
];

/// All keys of the settings file.
fn keys() -> impl Iterator<Item = &'static str> {
    COMMON_KEYS.iter().chain(ServeSettings::KEYS).copied()
}

/// A network by the name that people use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkName {
    /// The main chain.
    #[default]
    #[value(alias = "main", alias = "bitcoin")]
    #[serde(alias = "main", alias = "bitcoin")]
    Mainnet,
    /// The third test chain.
    #[value(alias = "test", alias = "testnet3")]
    #[serde(alias = "test", alias = "testnet3")]
    Testnet,
    /// The fourth test chain.
    Testnet4,
    /// The signed test chain.
    Signet,
    /// A private chain for tests.
    Regtest,
}

impl NetworkName {
    /// The network.
    pub fn network(self) -> Network {
        match self {
            Self::Mainnet => Network::Bitcoin,
            Self::Testnet => Network::Testnet,
            Self::Testnet4 => Network::Testnet4,
            Self::Signet => Network::Signet,
            Self::Regtest => Network::Regtest,
        }
    }
}

impl fmt::Display for NetworkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mainnet => "mainnet",
            Self::Testnet => "testnet",
            Self::Testnet4 => "testnet4",
            Self::Signet => "signet",
            Self::Regtest => "regtest",
        })
    }
}

/// Which of a node's interfaces to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// REST if the node offers it, else JSON-RPC.
    Auto,
    /// REST (Bitcoin Core 30 or later, started with rest=1).
    Rest,
    /// JSON-RPC.
    Rpc,
}

/// A password: never printed, not even by `Debug`.
fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    Ok(Some(Secret::new(String::deserialize(deserializer)?)))
}

/// All settings as they stand in one place (file, or environment and flags); what is absent is `None`.
#[derive(clap::Args, Clone, Debug, Default, Deserialize)]
#[command(next_help_heading = "Settings (also in the settings file)")]
#[serde(default)]
pub struct Settings {
    /// Which chain [default: mainnet]
    #[arg(long, global = true, env = "PEREGRINE_NETWORK", value_name = "NAME", hide_possible_values = true)]
    pub network: Option<NetworkName>,
    /// Where Peregrine keeps its data [default: ~/.peregrine]
    #[arg(long, global = true, env = "PEREGRINE_DATADIR", value_name = "DIR")]
    pub datadir: Option<PathBuf>,
    /// The node, as http://HOST:PORT [default: the Bitcoin Core of this machine]
    #[arg(long, global = true, env = "PEREGRINE_NODE", value_name = "URL")]
    pub node: Option<String>,
    /// Bitcoin Core's data directory, for bitcoin.conf and the cookie [default: the usual one]
    #[arg(long, global = true, env = "PEREGRINE_BITCOIN_DATADIR", value_name = "DIR")]
    pub bitcoin_datadir: Option<PathBuf>,
    /// Bitcoin Core's cookie file, for JSON-RPC [default: the one in its data directory]
    #[arg(long, global = true, env = "PEREGRINE_COOKIE", value_name = "FILE")]
    pub cookie: Option<PathBuf>,
    /// User for JSON-RPC instead of a cookie; the password comes from the settings file or PEREGRINE_RPC_PASSWORD
    #[arg(long, global = true, env = "PEREGRINE_RPC_USER", value_name = "NAME")]
    pub rpc_user: Option<String>,
    /// Password for JSON-RPC. Not a flag, since everybody on a machine can see those.
    #[arg(skip)]
    #[serde(deserialize_with = "secret")]
    pub rpc_password: Option<Secret>,
    /// How to talk to the node: auto, rest or rpc [default: auto]
    #[arg(long, global = true, env = "PEREGRINE_SOURCE", value_name = "KIND", hide_possible_values = true)]
    pub source: Option<SourceKind>,
    /// Give up on a request to the node after so many seconds, and repeat it [default: 60]
    #[arg(long, global = true, env = "PEREGRINE_TIMEOUT", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: Option<u64>,
    /// Blocks to fetch and compute at once [default: 4 per core, at most 16]
    #[arg(long, global = true, env = "PEREGRINE_REQUESTS", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub requests: Option<u64>,
    /// What computes: auto, or the name of a backend (see peregrine devices) [default: auto]
    #[arg(long, global = true, env = "PEREGRINE_BACKEND", value_name = "NAME")]
    pub backend: Option<String>,
    /// Which graphics cards compute: numbers or parts of names, as in 0,2 or 5090 [default: all]
    #[arg(long, global = true, env = "PEREGRINE_CARDS", value_name = "LIST", value_delimiter = ',')]
    pub cards: Option<Vec<String>>,
    /// How much of the index stays on each graphics card, in MiB [default: what its memory holds, 2048 if it doesn't say]
    #[arg(long, global = true, env = "PEREGRINE_CARD_MEMORY", value_name = "MIB", value_parser = clap::value_parser!(u64).range(0..=MAX_CARD_MEMORY))]
    pub card_memory: Option<u64>,
    /// Have the CUDA toolkit compile the kernels for an architecture, as sm_90 or native, instead of the driver
    #[arg(long, global = true, env = "PEREGRINE_CUDA_ARCH", value_name = "ARCH")]
    pub cuda_arch: Option<String>,
    /// Threads that scan; 0 for one per core [default: 0]
    #[arg(long, global = true, env = "PEREGRINE_THREADS", value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1024))]
    pub threads: Option<u64>,
    /// What only the server needs. Its flags belong to `peregrine serve`.
    #[arg(skip)]
    #[serde(flatten)]
    pub serve: ServeSettings,
}

impl Settings {
    /// Fills in from the environment what no flag may carry, and from the settings file what is still missing.
    ///
    /// `file` is an explicit settings file, which must exist; otherwise `peregrine.toml` in the data directory is read
    /// if it is there.
    pub fn complete(mut self, file: Option<&Path>) -> anyhow::Result<Self> {
        check_environment(std::env::vars_os().map(|(name, _)| name))?;
        if let Some(password) = std::env::var_os("PEREGRINE_RPC_PASSWORD") {
            let Ok(password) = password.into_string() else {
                bail!("PEREGRINE_RPC_PASSWORD isn't valid text")
            };
            self.rpc_password = Some(Secret::new(password));
        }
        let default = self.data_dir()?.join("peregrine.toml");
        let text = match file {
            Some(file) => Some((
                file,
                std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?,
            )),
            None => match std::fs::read_to_string(&default) {
                Ok(text) => Some((default.as_path(), text)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => return Err(error).with_context(|| format!("can't read {}", default.display())),
            },
        };
        match text {
            Some((path, text)) => {
                Ok(self.or(Self::parse(&text).with_context(|| format!("in {}", path.display()))?))
            }
            None => Ok(self),
        }
    }

    /// Settings from the text of a file.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        // Not the error's own text: that quotes the line, which may be the one with the password.
        let readable = |error: toml::de::Error| {
            let line = error.span().map(|span| text[..span.start].lines().count().max(1));
            let line = line.map_or_else(String::new, |line| format!("line {line}: "));
            anyhow!("{line}{}", error.message())
        };
        let table: toml::Table = text.parse().map_err(readable).context("this isn't valid TOML")?;
        for key in table.keys() {
            if !keys().any(|known| known == key) {
                bail!("unknown key '{key}'{}", suggestion(key, &keys().collect::<Vec<_>>()));
            }
        }
        if table.get("rpc_password").is_some_and(|password| !password.is_str()) {
            bail!("rpc_password must be a text in quotes");
        }
        let settings: Self = toml::from_str(text).map_err(readable)?;
        let limits = [
            ("timeout", settings.timeout, 1..=3600),
            ("requests", settings.requests, 1..=256),
            ("threads", settings.threads, 0..=1024),
            ("card_memory", settings.card_memory, 0..=MAX_CARD_MEMORY),
        ];
        for (key, value, range) in limits {
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                bail!("{key} = {value} isn't within {} to {}", range.start(), range.end());
            }
        }
        Ok(settings)
    }

    /// These settings, and where they say nothing, the others.
    fn or(self, other: Self) -> Self {
        Self {
            network: self.network.or(other.network),
            datadir: self.datadir.or(other.datadir),
            node: self.node.or(other.node),
            bitcoin_datadir: self.bitcoin_datadir.or(other.bitcoin_datadir),
            cookie: self.cookie.or(other.cookie),
            rpc_user: self.rpc_user.or(other.rpc_user),
            rpc_password: self.rpc_password.or(other.rpc_password),
            source: self.source.or(other.source),
            timeout: self.timeout.or(other.timeout),
            requests: self.requests.or(other.requests),
            backend: self.backend.or(other.backend),
            cards: self.cards.or(other.cards),
            card_memory: self.card_memory.or(other.card_memory),
            cuda_arch: self.cuda_arch.or(other.cuda_arch),
            threads: self.threads.or(other.threads),
            serve: self.serve.or(other.serve),
        }
    }

    /// The network's name.
    pub fn network(&self) -> NetworkName {
        self.network.unwrap_or_default()
    }

    fn data_dir(&self) -> anyhow::Result<PathBuf> {
        match &self.datadir {
            Some(dir) => Ok(dir.clone()),
            None => match std::env::home_dir() {
                Some(home) => Ok(home.join(".peregrine")),
                None => bail!("there is no home directory; give --datadir DIR"),
            },
        }
    }

    /// Where everything of the network is.
    pub fn network_dir(&self) -> anyhow::Result<PathBuf> {
        Ok(self.data_dir()?.join(self.network().to_string()))
    }

    /// Where the tweak index of the network is.
    pub fn index_dir(&self) -> anyhow::Result<PathBuf> {
        Ok(self.network_dir()?.join("tweaks"))
    }

    /// How to reach the node.
    pub fn node(&self) -> NodeConfig {
        let default = NodeConfig::new(self.network().network());
        NodeConfig {
            url: self.node.clone(),
            data_dir: self.bitcoin_datadir.clone(),
            cookie: self.cookie.clone(),
            user: self.rpc_user.clone(),
            password: self.rpc_password.clone(),
            kind: match self.source {
                None | Some(SourceKind::Auto) => NodeKind::Auto,
                Some(SourceKind::Rest) => NodeKind::Rest,
                Some(SourceKind::Rpc) => NodeKind::Rpc,
            },
            timeout: self.timeout.map_or(default.timeout, Duration::from_secs),
            ..default
        }
    }

    /// How many blocks are fetched at once.
    pub fn requests(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.requests.map_or_else(|| (4 * cores).min(16), |requests| requests as usize)
    }

    /// The backend's name, or `auto`.
    pub fn backend(&self) -> &str {
        self.backend.as_deref().unwrap_or("auto")
    }

    /// Which graphics cards, and how much memory of each.
    pub fn cards(&self) -> Selection {
        Selection {
            names: self.cards.clone().unwrap_or_default(),
            budget: self.card_memory.map(|mebibytes| mebibytes << 20),
            cuda_arch: self.cuda_arch.clone(),
            notes: self.data_dir().ok().map(|dir| dir.join("cards.txt")),
            ..Selection::default()
        }
    }

    /// What scans: the backend, and the threads that run it.
    ///
    /// # Errors
    /// The backend isn't there, or the threads can't be started.
    pub fn engine(&self) -> anyhow::Result<Engine> {
        let engine = Engine::new(backend::choose_with(self.backend(), &self.cards())?, self.threads())?;
        for device in engine.devices() {
            tracing::info!(
                rows_per_second = device.rows_per_second as u64,
                memory_mib = device.budget_bytes >> 20,
                "scanning on {}",
                device.title
            );
        }
        Ok(engine)
    }

    /// Number of scan threads; 0 is one per core.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or(0) as usize
    }
}

/// Refuses variables that look like ours but aren't: a typing mistake would silently change nothing.
fn check_environment(names: impl IntoIterator<Item = OsString>) -> anyhow::Result<()> {
    let known: Vec<String> = keys()
        .map(|key| format!("{PREFIX}{}", key.to_uppercase()))
        .chain(OTHER_VARIABLES.map(str::to_owned))
        .collect();
    for name in names {
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && !known.iter().any(|known| *known == name) {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            bail!("unknown environment variable {name}{}", suggestion(&name, &known));
        }
    }
    Ok(())
}

/// `; did you mean 'x'?`, or nothing if no known name is near.
fn suggestion(name: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase()), known))
        .min();
    match nearest {
        Some((distance, known)) if distance <= 4.max(name.len() / 3) => format!("; did you mean '{known}'?"),
        _ => format!("; known are: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;

    #[test]
    fn every_key_is_a_flag_and_a_variable_and_documented_in_the_example() {
        let command = ServeSettings::augment_args(Settings::augment_args(Command::new("test")));
        let mut flags: Vec<String> = command.get_arguments().map(|arg| arg.get_id().to_string()).collect();
        for arg in command.get_arguments() {
            let key = arg.get_id().as_str();
            assert_eq!(arg.get_long(), Some(key.replace('_', "-").as_str()));
            assert_eq!(
                arg.get_env().unwrap().to_str(),
                Some(format!("{PREFIX}{}", key.to_uppercase()).as_str())
            );
        }
        flags.push("rpc_password".into());
        flags.sort();
        let mut keys: Vec<String> = keys().map(str::to_owned).collect();
        keys.sort();
        assert_eq!(flags, keys);

        // The example shows every key, commented out; without the comment signs it is a valid file.
        let example = include_str!("../../../docs/peregrine.example.toml");
        let uncommented: String = example
            .lines()
            .filter_map(|line| line.strip_prefix("#:"))
            .map(|line| format!("{line}\n"))
            .collect();
        let table: toml::Table = uncommented.parse().unwrap();
        let mut in_example: Vec<&String> = table.keys().collect();
        in_example.sort();
        assert_eq!(in_example, keys.iter().collect::<Vec<_>>());
        Settings::parse(&uncommented).unwrap();
        assert!(Settings::parse(example).is_ok());
    }

    #[test]
    fn flags_go_before_the_file() {
        let file = Settings::parse("network = 'signet'\nthreads = 3\nrpc_password = 'hush'").unwrap();
        let flags = Settings { threads: Some(7), ..Settings::default() };
        let settings = flags.or(file);
        assert_eq!((settings.network(), settings.threads()), (NetworkName::Signet, 7));
        assert!(!format!("{settings:?}").contains("hush"));
    }

    #[test]
    fn unknown_names_are_errors_that_name_the_nearest_known_one() {
        let error = |text| format!("{:#}", Settings::parse(text).unwrap_err());
        assert_eq!(error("netwrok = 'signet'"), "unknown key 'netwrok'; did you mean 'network'?");
        assert_eq!(error("rpcuser = 'me'"), "unknown key 'rpcuser'; did you mean 'rpc_user'?");
        assert!(error("[index]\nx = 1").starts_with("unknown key 'index'"));
        assert!(error("network = 'moon'").contains("moon"));
        assert!(error("threads = 5000").contains("0 to 1024"));
        assert!(error("network = ").contains("TOML"));
        let variable =
            |name: &str| check_environment([OsString::from(name)]).map_err(|error| error.to_string());
        assert_eq!(variable("PEREGRINE_THREADS"), Ok(()));
        assert_eq!(variable("PEREGRINE_SCAN_KEY"), Ok(()));
        assert_eq!(variable("HOME"), Ok(()));
        let wrong = variable("PEREGRINE_TREADS").unwrap_err();
        assert_eq!(wrong, "unknown environment variable PEREGRINE_TREADS; did you mean 'PEREGRINE_THREADS'?");
    }
}

//! Finds a Bitcoin Core of this machine by its data directory and `bitcoin.conf`.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use bitcoin::Network;
use zeroize::Zeroizing;

use super::auth::Credentials;
use super::secret::Secret;

/// Longer files are not read as configuration.
const MAX_CONF_LEN: u64 = 1 << 20;

/// What is known of a node of this machine without talking to it.
#[derive(Clone, Debug)]
pub struct LocalNode {
    /// Its data directory, without the folder of the network.
    pub data_dir: PathBuf,
    /// Port of JSON-RPC and REST on the loopback interface.
    pub port: u16,
    /// What `rest=` says in `bitcoin.conf`; `None` when nothing is said there, it may still be on the command line.
    pub rest: Option<bool>,
    /// `rpcuser` and `rpcpassword` when both are in `bitcoin.conf`: then the node writes no cookie. Otherwise the cookie
    /// file, whether it is there or not.
    pub credentials: Credentials,
}

/// The port on which Bitcoin Core serves JSON-RPC and REST when nothing else is set.
pub fn default_rpc_port(network: Network) -> u16 {
    match network {
        Network::Bitcoin => 8332,
        Network::Testnet => 18332,
        Network::Testnet4 => 48332,
        Network::Signet => 38332,
        Network::Regtest => 18443,
    }
}

/// Where Bitcoin Core keeps its data on this system when nothing else is set; `None` without a home directory.
pub fn default_data_dir() -> Option<PathBuf> {
    let dir = |variable: &str| std::env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
    if cfg!(windows) {
        // Since version 28 new installations use the local folder; earlier ones keep theirs.
        let old = dir("APPDATA").map(|d| d.join("Bitcoin"));
        let new = dir("LOCALAPPDATA").map(|d| d.join("Bitcoin"));
        match (old, new) {
            (Some(old), _) if old.exists() => Some(old),
            (old, new) => new.or(old),
        }
    } else if cfg!(target_os = "macos") {
        dir("HOME").map(|d| d.join("Library/Application Support/Bitcoin"))
    } else {
        dir("HOME").map(|d| d.join(".bitcoin"))
    }
}

/// Looks at `data_dir`, or at the default data directory, for the node of this network.
///
/// Reads `bitcoin.conf` there, with its sections; a missing or unreadable file counts as an empty one. Not followed are
/// `includeconf`, `settings.json` and what is on the node's command line. `None` only if there is no directory to look at.
pub fn find_local_node(network: Network, data_dir: Option<&Path>) -> Option<LocalNode> {
    let data_dir = data_dir.map(Path::to_owned).or_else(default_data_dir)?;
    let conf = Conf::read(&data_dir.join("bitcoin.conf"));
    Some(local_node(network, data_dir, &conf))
}

fn local_node(network: Network, data_dir: PathBuf, conf: &Conf) -> LocalNode {
    let get = |key: &str| conf.get(network, key);
    // The file can move the data elsewhere, but is itself only read here.
    let data_dir = get("datadir").filter(|dir| !dir.is_empty()).map_or(data_dir, PathBuf::from);
    let network_dir = match sub_folder(network) {
        Some(folder) => data_dir.join(folder),
        None => data_dir.clone(),
    };
    let credentials = match (get("rpcuser"), get("rpcpassword")) {
        (Some(user), Some(password)) if !password.is_empty() => {
            Credentials::User { user: user.to_owned(), password: Secret::new(password.to_owned()) }
        }
        // `join` leaves an absolute path as it is.
        _ => Credentials::CookieFile(
            network_dir.join(get("rpccookiefile").filter(|f| !f.is_empty()).unwrap_or(".cookie")),
        ),
    };
    LocalNode {
        port: get("rpcport")
            .and_then(|port| port.parse().ok())
            .filter(|&port| port != 0)
            .unwrap_or_else(|| default_rpc_port(network)),
        rest: get("rest").map(is_true),
        credentials,
        data_dir,
    }
}

/// The network's folder below the data directory; the main network has none.
fn sub_folder(network: Network) -> Option<&'static str> {
    match network {
        Network::Bitcoin => None,
        Network::Testnet => Some("testnet3"),
        Network::Testnet4 => Some("testnet4"),
        Network::Signet => Some("signet"),
        Network::Regtest => Some("regtest"),
    }
}

/// The network's name in `bitcoin.conf`.
fn section(network: Network) -> &'static str {
    match network {
        Network::Bitcoin => "main",
        Network::Testnet => "test",
        Network::Testnet4 => "testnet4",
        Network::Signet => "signet",
        Network::Regtest => "regtest",
    }
}

/// As Bitcoin Core reads a switch: nothing means yes, a number other than zero means yes.
fn is_true(value: &str) -> bool {
    value.is_empty() || value.parse::<i64>().is_ok_and(|number| number != 0)
}

/// `bitcoin.conf`: the first value of each `section.key`; keys before any section have none.
#[derive(Default)]
struct Conf(HashMap<String, Zeroizing<String>>);

impl Conf {
    fn read(path: &Path) -> Self {
        let mut bytes = Zeroizing::new(Vec::new());
        let read = fs::File::open(path).and_then(|file| file.take(MAX_CONF_LEN).read_to_end(&mut bytes));
        match read {
            Ok(_) => Self::parse(&Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned())),
            Err(_) => Self::default(),
        }
    }

    fn parse(text: &str) -> Self {
        let mut values = HashMap::new();
        let mut prefix = String::new();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                prefix = format!("{name}.");
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            let (key, value) = (key.trim(), value.trim());
            // `nokey=1` switches a key off, `nokey=0` is a roundabout way to switch it on.
            let (key, value) = match key.strip_prefix("no") {
                Some(key) => (key, if is_true(value) { "0" } else { "1" }),
                None => (key, value),
            };
            // In the file the first value wins, other than on the command line.
            values.entry(format!("{prefix}{key}")).or_insert_with(|| Zeroizing::new(value.to_owned()));
        }
        Self(values)
    }

    /// The value for this network: from its section, else from the part without one. A port there is meant for the main
    /// network only.
    fn get(&self, network: Network, key: &str) -> Option<&str> {
        let own = self.0.get(&format!("{}.{key}", section(network)));
        let shared = || match (network, key) {
            (Network::Bitcoin, _) => self.0.get(key),
            (_, "rpcport") => None,
            _ => self.0.get(key),
        };
        own.or_else(shared).map(|value| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(network: Network, conf: &str) -> LocalNode {
        local_node(network, PathBuf::from("/data"), &Conf::parse(conf))
    }

    fn cookie(node: &LocalNode) -> &Path {
        match &node.credentials {
            Credentials::CookieFile(path) => path,
            Credentials::User { .. } => panic!("a user instead of a cookie"),
        }
    }

    #[test]
    fn an_empty_file_gives_the_defaults() {
        for (network, port, path) in [
            (Network::Bitcoin, 8332, "/data/.cookie"),
            (Network::Testnet, 18332, "/data/testnet3/.cookie"),
            (Network::Testnet4, 48332, "/data/testnet4/.cookie"),
            (Network::Signet, 38332, "/data/signet/.cookie"),
            (Network::Regtest, 18443, "/data/regtest/.cookie"),
        ] {
            let node = node(network, "");
            assert_eq!((node.port, cookie(&node), node.rest), (port, Path::new(path), None));
        }
    }

    #[test]
    fn sections_apply_to_their_network_only() {
        let conf = "rest=1\nrpcport=1111 # main only\nrpcport=1112\n signet.rpcport = 3333\n\
                    [regtest]\nrpcport=2222\nrest=0\nrpccookiefile=/run/cookie\n[test]\nrpccookiefile=c\n";
        assert_eq!(node(Network::Bitcoin, conf).port, 1111);
        assert_eq!(node(Network::Signet, conf).port, 3333);
        assert_eq!(node(Network::Testnet4, conf).port, 48332);
        let regtest = node(Network::Regtest, conf);
        assert_eq!((regtest.port, regtest.rest), (2222, Some(false)));
        assert_eq!(cookie(&regtest), Path::new("/run/cookie"));
        assert_eq!(node(Network::Signet, conf).rest, Some(true));
        assert_eq!(cookie(&node(Network::Testnet, conf)), Path::new("/data/testnet3/c"));
    }

    #[test]
    fn user_and_password_replace_the_cookie_and_stay_hidden() {
        let node = node(Network::Bitcoin, "rpcuser=alice\nrpcpassword=hunter2\ndatadir=/other\n");
        match &node.credentials {
            Credentials::User { user, password } => {
                assert_eq!((user.as_str(), password.expose()), ("alice", "hunter2"))
            }
            Credentials::CookieFile(path) => panic!("{}", path.display()),
        }
        assert_eq!(node.data_dir, Path::new("/other"));
        assert!(!format!("{node:?}").contains("hunter2"));
    }

    #[test]
    fn odd_files_are_survived() {
        for conf in [
            "=",
            "[",
            "[]",
            "]\n[x",
            "rpcport",
            "rpcport=99999",
            "rpcport=0",
            "rpcport=\0",
            "norest",
            "#",
            "é=ü",
        ] {
            assert_eq!(node(Network::Bitcoin, conf).port, 8332, "{conf}");
        }
        assert_eq!(node(Network::Bitcoin, "norest=1").rest, Some(false));
        assert_eq!(node(Network::Bitcoin, "rest=").rest, Some(true));
    }
}

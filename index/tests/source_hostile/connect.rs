//! Settings, the choice of an interface and the check of the network.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bitcoin::Network;
use bitcoin::blockdata::constants::genesis_block;
use bitcoin::hashes::Hash;
use peregrine_index::source::{ChainSource, NodeConfig, NodeKind, Secret, connect};

use crate::mock::{Answer, Mock};
use crate::{TIMEOUT, refused, rpc_node, zero};

/// Settings for a node at this address, with a login.
fn config(mock: &Mock, kind: NodeKind) -> NodeConfig {
    NodeConfig {
        url: Some(mock.url()),
        user: Some("alice".into()),
        password: Some(Secret::new("hunter2".into())),
        kind,
        timeout: TIMEOUT,
        ..NodeConfig::new(Network::Regtest)
    }
}

/// A node on `network`: JSON-RPC, and REST as far as `rest` answers.
fn whole_node(network: Network, rest: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static) -> Mock {
    let rpc = rpc_node(vec![genesis_block(network)], |_| ());
    Mock::start(move |request| match request.path.as_str() {
        "/" => rpc(request),
        path => match rest(path) {
            Some(body) => Answer::Full(200, body),
            None => Answer::Full(404, Vec::new()),
        },
    })
}

fn genesis_bytes(network: Network) -> Vec<u8> {
    genesis_block(network).block_hash().to_byte_array().into()
}

#[test]
fn auto_prefers_rest_and_says_why_not() {
    let full = |path: &str| match path {
        "/rest/blockhashbyheight/0.bin" => Some(genesis_bytes(Network::Regtest)),
        path if path.starts_with("/rest/spenttxouts/") => Some(vec![1, 0]),
        _ => None,
    };
    let node = connect(&config(&whole_node(Network::Regtest, full), NodeKind::Auto)).unwrap();
    assert_eq!((node.kind(), node.fallback_reason()), (NodeKind::Rest, None));

    let old = move |path: &str| full(path).filter(|_| !path.contains("spenttxouts"));
    let mock = whole_node(Network::Regtest, old);
    let node = connect(&config(&mock, NodeKind::Auto)).unwrap();
    assert_eq!(node.kind(), NodeKind::Rpc);
    assert!(node.fallback_reason().unwrap().contains("Core 30"), "{node:?}");
    assert!(refused(connect(&config(&mock, NodeKind::Rest))).contains("Core 30"));

    let mock = whole_node(Network::Regtest, |_| None);
    let node = connect(&config(&mock, NodeKind::Auto)).unwrap();
    assert!(node.fallback_reason().unwrap().contains("rest=1"), "{node:?}");
    assert!(refused(connect(&config(&mock, NodeKind::Rest))).contains("rest=1"));
    assert_eq!(connect(&config(&mock, NodeKind::Rpc)).unwrap().fallback_reason(), None);
}

#[test]
fn a_refused_login_mentions_why_rest_was_not_used() {
    let mock = Mock::start(|request| match request.path.as_str() {
        "/" => Answer::Full(401, Vec::new()),
        _ => Answer::Full(404, Vec::new()),
    });
    let text = refused(connect(&config(&mock, NodeKind::Auto)));
    assert!(text.contains("rpcpassword") && text.contains("rest=1") && !text.contains("hunter2"), "{text}");
}

#[test]
fn the_wrong_network_is_refused_with_both_names() {
    let mock = whole_node(Network::Signet, |path| {
        (path == "/rest/blockhashbyheight/0.bin").then(|| genesis_bytes(Network::Signet))
    });
    for kind in [NodeKind::Auto, NodeKind::Rest, NodeKind::Rpc] {
        let text = refused(connect(&config(&mock, kind)));
        assert!(text.contains("signet") && text.contains("regtest"), "{text}");
    }
}

#[test]
fn a_node_of_another_network_at_the_same_address_is_no_reorganisation() {
    let swapped = Arc::new(AtomicBool::new(false));
    let state = swapped.clone();
    let mock = whole_node(Network::Regtest, move |path| {
        let network = if state.load(Ordering::SeqCst) { Network::Bitcoin } else { Network::Regtest };
        match path {
            "/rest/blockhashbyheight/0.bin" => Some(genesis_bytes(network)),
            path if path.starts_with("/rest/spenttxouts/") => Some(vec![1, 0]),
            _ => Some(Vec::new()),
        }
    });
    let node = connect(&config(&mock, NodeKind::Auto)).unwrap();
    assert_eq!(node.headers_after(zero(), 5, 9).unwrap(), None);
    swapped.store(true, Ordering::SeqCst);
    let text = refused(node.headers_after(zero(), 5, 9));
    assert!(text.contains("mainnet") && text.contains("regtest"), "{text}");
}

#[test]
fn settings_that_cannot_work_are_refused_without_repeating_secrets() {
    let base = NodeConfig::new(Network::Bitcoin);
    for url in [
        "https://127.0.0.1",
        "ftp://x",
        "",
        "http://",
        "http://a:b:c",
        "http://[::1",
        "127.0.0.1:0",
        "127.0.0.1:99999",
        "127.0.0.1:x",
        "http://127.0.0.1/path",
        "http://alice:hunter2@127.0.0.1",
        "hunter 2",
        "::1",
    ] {
        let text = refused(connect(&NodeConfig { url: Some(url.into()), ..base.clone() }));
        assert!(!text.contains("hunter"), "{text}");
    }
    refused(connect(&NodeConfig { user: Some("alice".into()), ..base.clone() }));
    refused(connect(&NodeConfig { password: Some(Secret::new("x".into())), ..base.clone() }));
    let config = NodeConfig {
        user: Some("alice".into()),
        password: Some(Secret::new("hunter2".into())),
        ..base.clone()
    };
    assert!(!format!("{config:?}").contains("hunter2"));
    for (url, shown) in [
        ("localhost", "localhost:8332"),
        ("HTTP://node.example:1/", "node.example:1"),
        ("[::1]", "[::1]:8332"),
        ("http://[::1]:18443", "[::1]:18443"),
    ] {
        let config = NodeConfig { url: Some(url.into()), ..base.clone() };
        assert_eq!(config.describe(), format!("Bitcoin Core at {shown}"));
    }
}

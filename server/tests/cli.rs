//! The program without a node: what it prints, its exit codes, and what it says to mistakes.

mod common;

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::atomic::AtomicBool;

use bitcoin::Network;
use bitcoin::hex::DisplayHex;
use common::{Program, output, output_with_input};
use peregrine_index::indexer::{self, Options};
use peregrine_index::store::{IndexParams, TweakIndexWriter};
use peregrine_index::synthetic::{Plan, SyntheticChain, Wallet};
use peregrine_scanner::backend;
use serde_json::Value;

/// A spend key that is valid: that of an address in the help.
const SPEND: &str = "025cc9856d6f8375350e123978daac200c260cb5b5ae83106cab90484dcd8fcf36";

/// A program on regtest with an index of a synthetic chain.
fn with_index() -> (Program, SyntheticChain) {
    let program = Program::new().env("PEREGRINE_NETWORK", "regtest");
    let plan = Plan { blocks: 30, reorg_depth: 0, seed: 5, transactions: 5, payment_every: 4 };
    let chain = SyntheticChain::generate(plan);
    let params = IndexParams::for_network(Network::Regtest);
    let mut writer = TweakIndexWriter::create(&program.index_dir(), &params).unwrap();
    indexer::run(&chain, &mut writer, Options::default(), &AtomicBool::new(false), &|_| ()).unwrap();
    (program, chain)
}

fn scan_key(wallet: &Wallet) -> String {
    wallet.scan.secret().to_secret_bytes().to_lower_hex_string()
}

fn spend_key(wallet: &Wallet) -> String {
    wallet.spend.public_key().to_string()
}

#[test]
fn demo_finds_exactly_what_was_planted() {
    let program = Program::new();
    let text = program.run(["demo", "--blocks", "150", "--seed", "7"]).good().stdout;
    let last = text.lines().last().unwrap();
    let planted: u32 = last.split([' ', ',']).nth(1).unwrap().parse().unwrap();
    assert!(planted > 0);
    assert_eq!(last, format!("planted {planted}, found {planted}, missed 0, false 0"));

    let json = program.json(["demo", "--blocks", "150", "--seed", "7", "--json"]);
    assert_eq!((&json["planted"], &json["found"]), (&planted.into(), &planted.into()));
    assert_eq!((&json["missed"], &json["false_positives"]), (&0.into(), &0.into()));
    assert!(json["rows"].as_u64().unwrap() > 500);
    assert!(json["rows_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(json["backend"], program.json(["demo", "--blocks", "1", "--json"])["backend"]);
    assert!(json["backend"].as_str().is_some_and(|name| !name.is_empty()));
    // Same seed, same chain: the table that the text shows is what the JSON lists.
    for payment in json["payments"].as_array().unwrap() {
        let txid = payment["txid"].as_str().unwrap();
        let line = text.lines().find(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(&payment["height"].to_string())
                && words.next() == Some(txid)
                && words.next() == Some(&payment["vout"].to_string())
        });
        assert!(line.is_some(), "{txid} isn't in the table");
    }
    let other = program.json(["demo", "--blocks", "150", "--seed", "8", "--json"]);
    assert_ne!(other["payments"], json["payments"]);
    // Nothing stays behind.
    assert_eq!(std::fs::read_dir(program.home()).unwrap().count(), 0);
}

#[test]
fn address_is_decoded_and_checked() {
    // The first test vector of BIP352.
    let address = "sp1qqgste7k9hx0qftg6qmwlkqtwuy6cycyavzmzj85c6qdfhjdpdjtdgqjuexzk6murw56suy3e0rd2cgqvycxttddwsvgxe2usfpxumr70xc9pkqwv";
    let scan = "0220bcfac5b99e04ad1a06ddfb016ee13582609d60b6291e98d01a9bc9a16c96d4";
    let program = Program::new();
    let text = program.run(["address", address]).good().stdout;
    assert!(text.contains("mainnet") && text.contains(scan) && text.contains(SPEND), "{text}");
    let json = program.json(["address", address, "--json"]);
    let expected =
        serde_json::json!({"network": "mainnet", "version": 0, "scan_key": scan, "spend_key": SPEND});
    assert_eq!(json, expected);

    let mistyped = address.replace("gste", "gsth");
    program.run(["address", &mistyped]).fails(1, ["error:", "Bech32m"]);
    program.run(["address", "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4"]).fails(1, ["error:"]);
    program.run(["address", ""]).fails(1, ["error:"]);
    program.run(["address"]).fails(2, ["<ADDRESS>"]);
}

#[test]
fn help_of_every_command_shows_an_example() {
    let program = Program::new();
    let help = program.run(["--help"]).good().stdout;
    let commands = ["demo", "index", "scan", "info", "verify", "address", "devices"];
    for command in commands {
        assert!(help.lines().any(|line| line.trim_start().starts_with(command)), "{help}");
        let help = program.run([command, "--help"]).good().stdout;
        let example = help.split_once("Example").unwrap().1;
        assert!(example.contains(&format!("  peregrine {command}")), "{help}");
    }
    assert!(program.run(["--version"]).good().stdout.starts_with("peregrine "));
}

#[test]
fn wrong_use_exits_with_2() {
    let program = Program::new();
    program.run([]).fails(2, ["Usage"]);
    program.run(["demoo"]).fails(2, ["'demo'"]);
    program.run(["demo", "--block", "3"]).fails(2, ["--blocks"]);
    program.run(["demo", "--blocks", "0"]).fails(2, ["--blocks"]);
    program.run(["index", "--network", "moon"]).fails(2, ["moon"]);
    program.run(["index", "--follow", "--to", "3"]).fails(2, ["--to"]);
    program.run(["verify", "--sample", "3"]).fails(2, ["--against-node"]);
    program.run(["scan", "--from", "0"]).fails(2, ["--spend-key"]);
    program.run(["scan", "--spend-key", SPEND]).fails(2, ["--from"]);
    program.run(["scan", "--spend-key", SPEND, "--from", "0", "--json", "--csv"]).fails(2, ["--csv"]);
    let range = |labels| program.run(["scan", "--spend-key", SPEND, "--from", "0", "--labels", labels]);
    range("1,x").fails(2, ["'x'", "label"]);
    range("9-5").fails(2, ["9-5", "backwards"]);
    range("0-4294967295").fails(2, ["too many labels"]);
    let date = |date| program.run(["scan", "--spend-key", SPEND, "--from", date]);
    date("2024-02-30").fails(2, ["2024-02-30"]);
    date("yesterday").fails(2, ["yesterday", "2024-01-31"]);
    date("-5").fails(2, ["-5"]);
}

#[test]
fn unknown_settings_name_the_nearest_known_one() {
    let program = Program::new();
    let file = program.file("own.toml", "netwrok = 'signet'\n");
    program.run(["info", "--config", &file]).fails(1, [&file, "'netwrok'", "'network'"]);
    program.file(".peregrine/peregrine.toml", "rpcuser = 'me'\n");
    program.run(["info"]).fails(1, ["peregrine.toml", "'rpcuser'", "'rpc_user'"]);
    program.run(["info", "--config", "missing.toml"]).fails(1, ["missing.toml"]);
    let program = Program::new().env("PEREGRINE_TREADS", 3);
    program.run(["info"]).fails(1, ["PEREGRINE_TREADS", "'PEREGRINE_THREADS'"]);
    let program = Program::new().env("PEREGRINE_THREADS", "many");
    program.run(["info"]).fails(2, ["many", "--threads"]);
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    // The missing index's name tells which network was meant.
    let program = Program::new();
    program.run(["info"]).fails(1, ["no readable index for mainnet"]);
    program.file(".peregrine/peregrine.toml", "network = 'signet'\n");
    program.run(["info"]).fails(1, ["no readable index for signet"]);
    let program = program.env("PEREGRINE_NETWORK", "testnet4");
    program.run(["info"]).fails(1, ["no readable index for testnet4"]);
    program.run(["info", "--network", "regtest"]).fails(1, ["no readable index for regtest"]);
    // A data directory from the environment has its own file.
    let other = program.file("other/peregrine.toml", "netwrok = 1\n");
    let dir = other.strip_suffix("/peregrine.toml").unwrap();
    program.run(["info", "--datadir", dir]).fails(1, [&other, "netwrok"]);
    let program = program.env("PEREGRINE_DATADIR", dir);
    program.run(["info"]).fails(1, [&other, "netwrok"]);
}

#[test]
fn without_an_index_the_command_to_make_one_is_named() {
    let program = Program::new();
    let advice = "peregrine index --network signet";
    program.run(["info", "--network", "signet"]).fails(1, [advice]);
    let key = program.file("key", &"11".repeat(32));
    program
        .run(["scan", "--network", "signet", "--spend-key", SPEND, "--scan-key-file", &key, "--from", "0"])
        .fails(1, [advice]);
    program.run(["verify", "--network", "signet"]).fails(1, ["there is no index in", "signet"]);
    // Asking makes nothing.
    assert!(!program.home().join(".peregrine").exists());
}

#[test]
fn an_unknown_backend_lists_the_known_ones() {
    let program = Program::new();
    for name in backend::names() {
        program.run(["demo", "--backend", "abacus"]).fails(1, ["'abacus'", name]);
        match backend::choose(name) {
            Ok(_) => {
                let json = program.json(["demo", "--blocks", "2", "--backend", name, "--json"]);
                assert_eq!(json["backend"], name);
            }
            Err(_) => {
                program.run(["demo", "--backend", name]).fails(1, [name, "can't run here: "]);
            }
        }
    }
}

#[test]
fn devices_are_listed_and_what_is_missing_is_said() {
    let program = Program::new();
    let text = program.run(["devices"]).good().stdout;
    let json = program.json(["devices", "--json"]);
    for name in backend::names() {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name)).expect(name);
        match backend::choose(name) {
            Ok(_) => assert!(line.contains(" usable"), "{line}"),
            Err(error) => {
                let (_, reason) = error.to_string().split_once("can't run here: ").map(own).unwrap();
                assert!(line.ends_with(&format!("not usable: {reason}")), "{line}");
            }
        }
    }
    let processors = json["processor"].as_array().unwrap();
    let best: Vec<&str> = processors
        .iter()
        .filter(|processor| processor["best"] == true)
        .map(|processor| processor["backend"].as_str().unwrap())
        .collect();
    // They are listed best first.
    let first = processors.iter().find(|processor| processor["available"] == true).unwrap();
    assert_eq!(best, [first["backend"].as_str().unwrap()]);
    let adapters = backend::wgpu::adapters();
    assert_eq!(json["wgpu"]["adapters"].as_array().unwrap().len(), adapters.len());
    assert_eq!(json["wgpu"]["available"], adapters.iter().any(|adapter| adapter.unusable.is_none()));
    for adapter in adapters {
        assert!(text.contains(&adapter.name), "{text}");
    }
    assert_eq!(json["cuda"]["available"], backend::choose("cuda").is_ok());
    assert_eq!(json["cuda"]["reason"].is_null(), backend::choose("cuda").is_ok());
}

fn own((before, behind): (&str, &str)) -> (String, String) {
    (before.to_owned(), behind.to_owned())
}

#[test]
fn a_reader_that_leaves_ends_the_program_quietly() {
    let program = Program::new();
    let mut command = program.command(["demo", "--blocks", "400"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (None, ""));
}

#[test]
fn bench_checks_every_backend_against_the_reference() {
    let program = Program::new();
    let args = [
        "bench",
        "--rows",
        "700",
        "--keys",
        "2",
        "--labels",
        "1",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--json",
    ];
    let json = program.json(args);
    assert_eq!(
        (&json["rows"], &json["keys"], &json["labels"], &json["threads"]),
        (&700.into(), &2.into(), &1.into(), &1.into())
    );
    assert!(json["cpu"].as_str().is_some_and(|cpu| !cpu.is_empty()));
    let results = json["results"].as_array().unwrap();
    let names: Vec<&str> = results.iter().map(|result| result["backend"].as_str().unwrap()).collect();
    let available: Vec<&str> = backend::available().iter().map(|backend| backend.name()).collect();
    assert_eq!(names, available);
    for result in results {
        assert_eq!(result["agrees"], true, "{result}");
        for key in ["rows_per_second", "ns_per_row", "ratio"] {
            assert!(result[key].as_f64().unwrap() > 0.0, "{result}");
        }
    }
}

#[test]
fn scan_without_a_node_gives_height_txid_and_tweak() {
    let (program, chain) = with_index();
    for (number, wallet) in chain.wallets().iter().enumerate() {
        let labels: Vec<String> = wallet.labels.iter().map(u32::to_string).collect();
        let key = program.file("key", &format!("{}\n", scan_key(wallet)));
        let json = program.json([
            "scan",
            "--spend-key",
            &spend_key(wallet),
            "--scan-key-file",
            &key,
            "--from",
            "0",
            "--labels",
            &labels.join(","),
            "--no-node",
            "--json",
        ]);
        let planted: BTreeSet<(u64, String)> = chain
            .planted()
            .iter()
            .filter(|planted| planted.wallet == number)
            .map(|planted| (planted.height.into(), planted.txid.to_string()))
            .collect();
        let payments = json["payments"].as_array().unwrap();
        let found: BTreeSet<(u64, String)> = payments
            .iter()
            .map(|p| (p["height"].as_u64().unwrap(), p["txid"].as_str().unwrap().to_owned()))
            .collect();
        assert!(!found.is_empty());
        assert_eq!((found, payments.len()), (planted.clone(), planted.len()));
        assert!(payments.iter().all(|p| p["outputs"].is_null() && p["tweak"].as_str().unwrap().len() == 66));
        assert_eq!((&json["from"], &json["to"], &json["blocks"]), (&0.into(), &30.into(), &31.into()));
    }
}

#[test]
fn a_scan_key_that_is_missing_or_wrong_is_explained() {
    let (program, chain) = with_index();
    let spend = spend_key(&chain.wallets()[0]);
    let key = scan_key(&chain.wallets()[0]);
    let scan = ["scan", "--spend-key", &spend, "--from", "0", "--no-node"];
    // Standard input is no terminal here.
    output(&mut program.command(scan)).fails(1, ["no scan key", "--scan-key-file", "PEREGRINE_SCAN_KEY"]);
    let from_file = |path: &str| output(program.command(scan).args(["--scan-key-file", path]));
    from_file("missing").fails(1, ["can't read the scan key from missing"]);
    let short = program.file("short", &key[2..]);
    from_file(&short).fails(1, [&short, "64 hexadecimal digits"]);
    let zero = program.file("zero", &"00".repeat(32));
    from_file(&zero).fails(1, [&zero, "zero"]);
    output(program.command(scan).env("PEREGRINE_SCAN_KEY", "hello"))
        .fails(1, ["PEREGRINE_SCAN_KEY", "64 hexadecimal digits"]);
    let mut command = program.command(scan);
    command.args(["--scan-key-file", "-"]);
    output_with_input(command, "").fails(1, ["64 hexadecimal digits"]);
    let mut command = program.command(scan);
    command.args(["--scan-key-file", "-"]);
    output_with_input(command, &key).good();
    // The other way round: the spend key is wrong.
    for wrong in ["", "02", &"02".repeat(33)[..64], &format!("05{}", &spend[2..])] {
        program.run(["scan", "--spend-key", wrong, "--from", "0"]).fails(1, ["spend public key"]);
    }
}

#[test]
fn a_range_that_the_index_does_not_have_is_said() {
    let (program, chain) = with_index();
    let spend = spend_key(&chain.wallets()[0]);
    let program = program.env("PEREGRINE_SCAN_KEY", scan_key(&chain.wallets()[0]));
    let scan = |from: &str, to: &str| {
        program.run(["scan", "--spend-key", &spend, "--no-node", "--json", "--from", from, "--to", to])
    };
    let beyond = scan("5", "40").good();
    assert!(beyond.stderr.contains("ends at height 30"), "{beyond:?}");
    assert_eq!((&beyond.json()["from"], &beyond.json()["to"]), (&5.into(), &30.into()));
    let after = scan("31", "40").good();
    assert!(after.stderr.contains("ends at height 30"), "{after:?}");
    assert_eq!(after.json()["to"], Value::Null);
    scan("9", "5").fails(1, ["empty", "9", "5"]);
    scan("0", "2010-01-01").fails(1, ["no block", "--to"]);
}

/// The mistakes that are likely with a secret at hand: none of them shows it.
#[test]
fn secrets_are_not_repeated_in_errors() {
    let (program, chain) = with_index();
    let spend = spend_key(&chain.wallets()[0]);
    let key = scan_key(&chain.wallets()[0]);
    let program = program.env("RUST_LOG", "trace").env("RUST_BACKTRACE", "full");
    let hush = |command: &mut std::process::Command, code: i32| {
        let output = output(command);
        assert_eq!(
            output.code,
            Some(code),
            "{}",
            output.stderr.replace(&key, "KEY").replace("hunter2", "PASSWORD")
        );
        let text = format!("{}{}", output.stdout, output.stderr).to_lowercase();
        for secret in [&key[..], &key[2..62], "hunter2", "20202020"] {
            assert!(!text.contains(secret), "{}", text.replace(secret, "SECRET"));
        }
    };
    let scan = |extra: &[&str]| {
        let args = ["scan", "--spend-key", &spend, "--from", "0", "--no-node"];
        program.command(args.iter().chain(extra))
    };
    let file = program.file("key", &key);
    hush(&mut scan(&["--scan-key-file", &file]), 0);
    hush(scan(&["--json"]).env("PEREGRINE_SCAN_KEY", &key), 0);
    // Too long, with a wrong digit, in a file with other things, not as text.
    for wrong in [format!("{key}00"), format!("{}x", &key[1..]), format!("scan = {key}")] {
        let file = program.file("wrong", &wrong);
        hush(&mut scan(&["--scan-key-file", &file]), 1);
        hush(scan(&[]).env("PEREGRINE_SCAN_KEY", &wrong), 1);
    }
    // The key itself where its file's name belongs, or the public key, or another option.
    hush(&mut scan(&["--scan-key-file", &key]), 1);
    hush(&mut program.command(["scan", "--spend-key", &key, "--from", "0"]), 1);
    hush(&mut scan(&["--scan-key", &key]), 2);
    hush(&mut scan(&[&format!("--scan-key={key}")]), 2);
    hush(&mut scan(&["--network", "signet", "--scan-key-file", &file]), 1);
    // A variable that doesn't exist.
    hush(scan(&[]).env("PEREGRINE_SCANKEY", &key), 1);

    for wrong in [
        "rpc_password = 'hunter2",
        "rpc_password = hunter2",
        "rpc_password = ['hunter2']",
        "rpc_password = 20202020",
        "rpc_pasword = 'hunter2'",
        "rpc_password = 'hunter2'\nthreads = 'x'",
        "rpc_password = 'hunter2'\nrpc_password = 'hunter2'",
        "node = 'http://me:hunter2@'",
    ] {
        let file = program.file("wrong.toml", wrong);
        hush(&mut program.command(["verify", "--against-node", "--config", &file]), 1);
    }
    hush(&mut program.command(["verify", "--against-node", "--node", "http://me:hunter2@127.0.0.1:1"]), 1);
}

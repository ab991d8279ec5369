//! The program beside a real Bitcoin Core on regtest. Every test is named `node_…`, so that they can be counted.

#[path = "../../index/tests/common/chain.rs"]
mod chain;
mod common;
#[path = "../../index/tests/common/index.rs"]
mod index;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bitcoin::block::Header;
use bitcoin::hex::DisplayHex;
use chain::ChainMaker;
use common::{Live, Program, output, output_with_input};
use peregrine_index::BlockRows;
use peregrine_index::source::{NodeKind, NodeSource, connect};
use peregrine_index::store::{TweakReader, verify};
use peregrine_index::synthetic::{Planted, Wallet};
use peregrine_index::testkit::TestNode;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// The program, told where the node is.
fn beside(node: &TestNode) -> Program {
    Program::new().env("PEREGRINE_NETWORK", "regtest").env("PEREGRINE_NODE", node.url())
}

fn rest(node: &TestNode) -> NodeSource {
    connect(&node.config(NodeKind::Rest)).unwrap()
}

fn scan_key(wallet: &Wallet) -> String {
    wallet.scan.secret().to_secret_bytes().to_lower_hex_string()
}

#[test]
fn node_cli_index_over_both_interfaces_and_info() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 10);
    maker.blocks(20, 4);
    let cookie = node.cookie_path().to_str().unwrap().to_owned();
    let clean = index::fresh_contents(&rest(&node));
    let outputs: u32 = maker.rows().iter().map(|row| row.outputs).sum();

    for source in [&["--source", "rest"][..], &["--source", "rpc", "--cookie", &cookie]] {
        let program = beside(&node);
        let index = |extra: &[&str]| output(program.command(["index"]).args(source).args(extra)).good();
        // In parts: the second run goes on where the first one ended.
        let first = index(&["--to", "100"]);
        assert!(first.stdout.contains("101 blocks") && first.stdout.contains("height 100"), "{first:?}");
        let second = index(&["--json"]);
        let events: Vec<Value> =
            second.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(events[0]["text"].as_str().unwrap().contains("after height 100"), "{events:?}");
        assert!(
            events.iter().any(|event| event["event"] == "progress" && event["goal"] == 130),
            "{events:?}"
        );
        let done = events.last().unwrap();
        assert_eq!(
            (&done["event"], &done["height"], &done["blocks"], &done["rows"], &done["interrupted"]),
            (&json!("done"), &json!(130), &json!(30), &json!(maker.rows().len()), &json!(false))
        );
        assert!(index::contents(&program.index_dir()) == clean, "{source:?}");

        let info = program.json(["info", "--json"]);
        let tip = node.call("getblockheader", json!([node.best_block().to_string()]));
        assert_eq!((&info["network"], &info["tip_height"]), (&json!("regtest"), &json!(130)));
        assert_eq!((&info["tip_hash"], &info["tip_time"]), (&tip["hash"], &tip["time"]));
        assert_eq!((&info["first_height"], &info["blocks"]), (&json!(0), &json!(131)));
        assert_eq!((&info["rows"], &info["outputs"]), (&json!(maker.rows().len()), &json!(outputs)));
        let text = program.run(["info"]).good().stdout;
        assert!(text.contains(&node.best_block().to_string()), "{text}");
    }
}

#[test]
fn node_cli_index_keeps_the_height_that_it_was_started_at() {
    let Some(node) = TestNode::start(&[]) else { return };
    node.generate_to_descriptor(40, chain::ANYONE);
    let program = beside(&node);
    program.run(["index", "--from", "15", "--to", "20"]).good();
    program.run(["index"]).good();
    let info = program.json(["info", "--json"]);
    assert_eq!((&info["first_height"], &info["tip_height"]), (&json!(15), &json!(40)));
    // Another start is another index.
    program.run(["index", "--from", "10"]).fails(1, ["15", "10"]);
    program.run(["index", "--to", "3"]).fails(1, ["before the first height, 15"]);
}

#[test]
fn node_cli_scan_shows_what_was_paid() {
    // Dates: one lot of blocks each day.
    const DAY: u32 = 86_400;
    const FIRST_OF_MARCH_2024: u32 = 1_709_251_200;
    let Some(node) = TestNode::start(&[]) else { return };
    let set_time = |time: u32| node.call("setmocktime", json!([time]));
    set_time(FIRST_OF_MARCH_2024);
    let mut maker = ChainMaker::new(&node, 11);
    let mut days = vec![0..=maker.height()];
    for day in 1..=4 {
        set_time(FIRST_OF_MARCH_2024 + day * DAY + DAY / 2);
        let before = maker.height();
        maker.blocks(5, 12);
        days.push(before + 1..=maker.height());
    }
    let program = beside(&node);
    program.run(["index"]).good();

    let scan = |number: usize, extra: &[&str]| {
        let wallet = &maker.wallets()[number];
        let mut command = program.command(["scan", "--spend-key", &wallet.spend.public_key().to_string()]);
        let labels: Vec<String> = wallet.labels.iter().map(u32::to_string).collect();
        command.args(["--labels", &labels.join(",")]).args(extra).env("PEREGRINE_SCAN_KEY", scan_key(wallet));
        command
    };
    let planted = |number: usize, wanted: &dyn Fn(&Planted) -> bool| -> Vec<Planted> {
        maker.planted().into_iter().filter(|planted| planted.wallet == number && wanted(planted)).collect()
    };
    let found = |json: &Value, number: usize| -> Vec<Planted> {
        let mut found = Vec::new();
        for payment in json["payments"].as_array().unwrap() {
            for output in payment["outputs"].as_array().unwrap() {
                let number_of = |value: &Value| value.as_u64().unwrap() as u32;
                found.push(Planted {
                    height: number_of(&payment["height"]),
                    txid: payment["txid"].as_str().unwrap().parse().unwrap(),
                    vout: number_of(&output["vout"]),
                    wallet: number,
                    label: output["label"].as_u64().map(|label| label as u32),
                    value: output["value"].as_u64().unwrap(),
                });
            }
        }
        found.sort();
        found
    };
    let all = |_: &Planted| true;

    // The key from the environment, from a file, from standard input; every wallet with its labels.
    for (number, wallet) in maker.wallets().iter().enumerate() {
        let json = output(&mut scan(number, &["--from", "0", "--json"])).good().json();
        assert!(!planted(number, &all).is_empty());
        assert_eq!(found(&json, number), planted(number, &all));
        assert_eq!((&json["from"], &json["to"]), (&json!(0), &json!(maker.height())));
        assert_eq!(json["rows"], json!(maker.rows().len()));
        let key = program.file("key", &scan_key(wallet));
        let mut command = scan(number, &["--from", "0", "--json", "--scan-key-file", &key]);
        let other = output(command.env_remove("PEREGRINE_SCAN_KEY")).good().json();
        assert_eq!(other["payments"], json["payments"]);
        let mut command = scan(number, &["--from", "0", "--json", "--scan-key-file", "-"]);
        command.env_remove("PEREGRINE_SCAN_KEY");
        let other = output_with_input(command, &format!(" {}\n", scan_key(wallet))).good().json();
        assert_eq!(other["payments"], json["payments"]);
    }

    // Ranges: by date, by time, by height.
    for (extra, heights) in [
        (["--from", "2024-03-03", "--to", "2024-03-04"], *days[2].start()..=*days[3].end()),
        (["--from", "2024-03-04T12:00:00Z", "--to", "9999"], *days[3].start()..=*days[4].end()),
        (["--from", "2024-03-04T12:30:00Z", "--to", "2024-03-05"], days[4].clone()),
        (["--from", "117", "--to", "2024-03-03"], 117..=*days[2].end()),
        (["--from", "113", "--to", "113"], 113..=113),
    ] {
        let json = output(scan(1, &extra).arg("--json")).good().json();
        assert_eq!(found(&json, 1), planted(1, &|p| heights.contains(&p.height)), "{extra:?}");
        assert_eq!((&json["from"], &json["to"]), (&json!(heights.start()), &json!(heights.end())));
    }

    // A filter takes whole transactions away, and leaves all outputs of those that stay.
    let min = 90_000;
    let large: BTreeSet<_> =
        maker.rows().into_iter().filter(|row| row.max_value >= min).map(|row| row.txid).collect();
    let json =
        output(&mut scan(0, &["--from", "0", "--min-output", &min.to_string(), "--json"])).good().json();
    assert_eq!(found(&json, 0), planted(0, &|p| large.contains(&p.txid)));
    assert_eq!(json["scanned_rows"], json!(large.len()));

    // One line per output, and a table with amounts and labels.
    let csv = output(&mut scan(1, &["--from", "0", "--csv"])).good();
    let mut lines = csv.stdout.lines();
    assert_eq!(lines.next(), Some("height,txid,tweak,vout,value,label,key"));
    let mut from_csv: Vec<Planted> = lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            Planted {
                height: fields[0].parse().unwrap(),
                txid: fields[1].parse().unwrap(),
                vout: fields[3].parse().unwrap(),
                wallet: 1,
                label: (!fields[5].is_empty()).then(|| fields[5].parse().unwrap()),
                value: fields[4].parse().unwrap(),
            }
        })
        .collect();
    from_csv.sort();
    assert_eq!(from_csv, planted(1, &all));
    let text = output(&mut scan(1, &["--from", "0"])).good().stdout;
    for planted in planted(1, &all) {
        let amount = if planted.value < 1000 {
            planted.value.to_string()
        } else {
            format!("{},{:03}", planted.value / 1000, planted.value % 1000)
        };
        let label =
            planted.label.map_or("-".into(), |m| if m == 0 { "change".into() } else { m.to_string() });
        let line = format!("    output {}: {amount} sat, label {label}\n", planted.vout);
        assert!(
            text.contains(&line) && text.contains(&planted.txid.to_string()),
            "{line} is missing: {text}"
        );
    }

    // Without a node, because it isn't wanted or isn't there, the transactions are shown all the same.
    for extra in [&["--no-node"][..], &["--node", "http://127.0.0.1:1"]] {
        let output = output(scan(1, &["--from", "0", "--json"]).args(extra)).good();
        assert_eq!(output.stderr.contains("127.0.0.1:1 isn't at hand"), extra.len() == 2, "{output:?}");
        let json = output.json();
        let payments = json["payments"].as_array().unwrap();
        let txids: BTreeSet<&str> =
            payments.iter().map(|payment| payment["txid"].as_str().unwrap()).collect();
        let wanted: BTreeSet<String> = planted(1, &all).iter().map(|p| p.txid.to_string()).collect();
        assert_eq!((txids, payments.len()), (wanted.iter().map(String::as_str).collect(), wanted.len()));
        assert!(payments.iter().all(|p| p["outputs"].is_null() && p["tweak"].is_string()));
    }
}

#[test]
fn node_cli_verify_notices_that_the_node_has_reorganised() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 12);
    maker.blocks(10, 3);
    let program = beside(&node);
    program.run(["index"]).good();
    let verify = ["verify", "--against-node", "--json"];
    let json = program.json(verify);
    assert_eq!((&json["ok"], &json["problems"]), (&json!(true), &json!([])));
    assert_eq!((&json["compared_hashes"], &json["recomputed_blocks"]), (&json!(121), &json!(100)));
    let text = program.run(["verify", "--against-node", "--sample", "121"]).good().stdout;
    assert!(text.contains("good: 121 blocks") && text.contains("121 blocks computed again"), "{text}");

    maker.reorganise(3);
    let output = program.run(verify);
    assert_eq!(output.code, Some(1));
    assert_eq!((&output.json()["ok"], &output.json()["problems"][0]["height"]), (&json!(false), &json!(118)));
    let text = program.run(["verify", "--against-node"]);
    assert!(text.code == Some(1) && text.stdout.contains("NOT GOOD"), "{text:?}");
    assert!(text.stdout.contains(&node.block_hash(118).to_string()), "{text:?}");
    // A node that has less than the index, and one that isn't there.
    node.invalidate(node.block_hash(118));
    program.run(verify).json()["problems"][0]["height"].as_u64().filter(|height| *height == 118).unwrap();
    program.run(["verify", "--against-node", "--node", "http://127.0.0.1:1"]).fails(1, ["127.0.0.1:1"]);
    // By itself the index is good, and the next run brings it to the node's chain.
    program.run(["verify"]).good();
    program.run(["index"]).good();
    assert_eq!(program.json(verify)["compared_hashes"], json!(118));
}

#[test]
fn node_cli_follow_goes_with_the_chain_until_it_is_told_to_end() {
    let Some(mut node) = TestNode::start(&[]) else { return };
    let program = beside(&node);
    node.generate_to_descriptor(20, chain::ANYONE);
    let mut follow = program.start(["index", "--follow", "--json"]);
    follow.at_tip(20);
    node.generate_to_descriptor(3, chain::ANYONE);
    follow.at_tip(23);
    // Others may read, nobody else may write.
    assert_eq!(program.json(["info", "--json"])["tip_hash"], node.best_block().to_string());
    program.run(["index"]).fails(1, ["another peregrine process is indexing into it", "stop that process"]);

    // To a branch of the same length, and to a longer one.
    for (length, descriptor) in [(5, "raw(5151)"), (6, "raw(515151)")] {
        node.invalidate(node.block_hash(19));
        node.generate_to_descriptor(length, descriptor);
        follow.event("reorganised", |event| event["to"] == 18);
        follow.at_tip(18 + length);
        assert_eq!(program.json(["info", "--json"])["tip_hash"], node.best_block().to_string());
    }

    node.stop();
    follow.event("waiting", |event| event["text"].as_str().unwrap().starts_with("waiting for Bitcoin Core"));
    node.launch();
    follow.event("waiting", |event| event["text"].as_str().unwrap().contains("answers again"));
    node.generate_to_descriptor(1, chain::ANYONE);
    follow.at_tip(25);

    follow.terminate();
    let done = follow.event("done", |_| true);
    assert_eq!((&done["height"], &done["interrupted"]), (&json!(25), &json!(true)));
    assert_eq!(follow.exit_code(), Some(0));
    assert!(index::contents(&program.index_dir()) == index::fresh_contents(&rest(&node)));
    program.run(["verify"]).good();
}

#[test]
fn node_cli_index_waits_for_a_node_that_is_not_up_yet() {
    let Some(mut node) = TestNode::start(&[]) else { return };
    node.generate_to_descriptor(10, chain::ANYONE);
    let cookie = node.cookie_path().to_str().unwrap().to_owned();
    node.stop();
    // In words over REST, as events over JSON-RPC, where the cookie is missing, too.
    let (words, events) = (beside(&node), beside(&node));
    let mut words_run = words.start(["index", "--source", "rest"]);
    let mut events_run = events.start(["index", "--json", "--source", "rpc", "--cookie", &cookie]);
    words_run.line(["waiting for Bitcoin Core at 127.0.0.1:", &node.port().to_string()]);
    events_run.event("waiting", |event| event["text"].as_str().unwrap().contains("no cookie file"));
    // One that is told to end meanwhile does.
    let interrupted = beside(&node);
    let mut interrupted_run = interrupted.start(["index"]);
    interrupted_run.line(["waiting for Bitcoin Core"]);
    interrupted_run.terminate();
    assert_eq!(interrupted_run.exit_code(), Some(130));

    node.launch();
    words_run.line(["answers again"]);
    words_run.line(["the index reaches height 10"]);
    assert_eq!(words_run.exit_code(), Some(0));
    events_run.event("done", |event| event["height"] == 10);
    assert_eq!(events_run.exit_code(), Some(0));
    for program in [words, events] {
        assert_eq!(program.json(["info", "--json"])["tip_hash"], node.best_block().to_string());
    }
}

#[test]
fn node_cli_shows_neither_scan_key_nor_password() {
    // HMAC-SHA256 of "hunter2" under the salt.
    let auth = "-rpcauth=alice:a1b2c3d4$73598f4ec81af9fc80649ef93a32c7b18e6a5c45dd481c7e5dfb1778d904979d";
    let Some(node) = TestNode::start(&[auth]) else { return };
    let mut maker = ChainMaker::new(&node, 13);
    maker.blocks(10, 10);
    let wallet = &maker.wallets()[0];
    let key = scan_key(wallet);
    let cookie = std::fs::read_to_string(node.cookie_path()).unwrap();
    let program = beside(&node)
        .env("RUST_LOG", "trace")
        .env("RUST_BACKTRACE", "full")
        .env("PEREGRINE_SOURCE", "rpc")
        .env("PEREGRINE_RPC_USER", "alice")
        .env("PEREGRINE_SCAN_KEY", &key);
    let spend = wallet.spend.public_key().to_string();
    let scan = ["scan", "--spend-key", &spend, "--from", "0"];
    let run = |args: &[&str], password: &str, code: i32| {
        let output = output(program.command(args).env("PEREGRINE_RPC_PASSWORD", password));
        let text = format!("{}{}", output.stdout, output.stderr);
        for secret in [&key, password, cookie.trim(), &key.to_uppercase()] {
            assert!(!text.contains(secret), "{}", text.replace(secret, "SECRET"));
        }
        assert_eq!(output.code, Some(code), "{text}");
        text
    };
    run(&["index", "--json"], "hunter2", 0);
    let text = run(&scan, "hunter2", 0);
    assert!(text.contains("output "), "{text}");
    run(&[&scan[..], &["--json"]].concat(), "hunter2", 0);
    run(&["verify", "--against-node"], "hunter2", 0);
    // A password that the node refuses, a node that isn't there, an index that isn't there, a key that isn't right.
    let text = run(&scan, "swordfish", 0);
    assert!(text.contains("doesn't accept user \"alice\""), "{text}");
    run(&["verify", "--against-node"], "swordfish", 1);
    run(&[&scan[..], &["--node", "http://127.0.0.1:1"]].concat(), "hunter2", 0);
    run(&["verify", "--against-node", "--node", "http://127.0.0.1:1"], "hunter2", 1);
    run(&[&scan[..], &["--network", "signet"]].concat(), "hunter2", 1);
    run(&["scan", "--spend-key", &spend[2..], "--from", "0"], "hunter2", 1);
    // While it waits because of a refused password.
    let mut command = program.command(["index", "--json"]);
    command.env("PEREGRINE_RPC_PASSWORD", "swordfish");
    let mut waiting = Live::new(command);
    let text = waiting.event("waiting", |_| true).to_string();
    assert!(text.contains("alice") && !text.contains("swordfish"), "{text}");
}

type Contents = Vec<(Header, BlockRows)>;

/// What an index holds whose writer was just killed: nothing before its files are complete.
///
/// Often the next writer is the program that goes on; with `reopen` it is one that checks first that there is nothing to
/// repair. (A process that ends in the middle of taking blocks back leaves it to the next one to write that down.)
fn contents_after_kill(dir: &Path, reopen: bool) -> Contents {
    if TweakReader::open(dir).is_err() {
        assert!(!dir.join("format").exists(), "the index can't be read");
        return vec![];
    }
    let contents = index::contents(dir);
    if reopen {
        let recovery = index::writer(dir).recovery().clone();
        assert_eq!((recovery.blocks as usize, recovery.dropped), (contents.len(), 0), "{recovery:?}");
        let checked = verify(dir, |_| ());
        assert!(checked.is_ok(), "{:?}", checked.problems);
        assert!(index::contents(dir) == contents);
    }
    contents
}

#[test]
fn node_cli_index_survives_50_kills() {
    const KILLS: u32 = 50;
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 14);
    for _ in 0..30 {
        maker.blocks(4, 5);
        maker.empty_blocks(90);
    }
    let clean = index::fresh_contents(&rest(&node));
    assert_eq!(clean.len() as u32, maker.height() + 1);
    let program = beside(&node);
    let dir = program.index_dir();
    let mut rng = StdRng::seed_from_u64(14);

    let (mut kills, mut had) = (0, 0);
    while kills < KILLS {
        let mut run = program.start(["index", "--json", "--source", "rest"]);
        // Two of three are killed in the middle of the work, others while they open or make the index.
        let mut least = had;
        if kills % 3 != 0 {
            let progress = run.find_event("progress", |_| true);
            least = progress.map_or(had, |progress| progress["height"].as_u64().unwrap() as usize + 1);
        }
        std::thread::sleep(Duration::from_micros(rng.random_range(1..60_000)));
        let ended = run.kill();
        let contents = contents_after_kill(&dir, rng.random());
        assert!(contents[..] == clean[..contents.len()], "after kill {kills}");
        assert!(contents.len() >= least, "{least} blocks were there, {} are left", contents.len());
        had = contents.len();
        if let Some(status) = ended {
            assert!(status.success() && had == clean.len(), "{status:?}");
        }
        if had == clean.len() {
            // It had nothing left to do, so that this was no kill in the middle; from the start again.
            std::fs::remove_dir_all(&dir).unwrap();
            had = 0;
        } else {
            kills += 1;
        }
    }
    // One that is asked to end does so in order, and says that it isn't done.
    let mut run = program.start(["index", "--json", "--source", "rest", "--requests", "1"]);
    run.event("progress", |_| true);
    run.terminate();
    let done = run.event("done", |_| true);
    let interrupted = done["interrupted"] == true;
    assert_eq!(run.exit_code(), Some(if interrupted { 130 } else { 0 }));
    assert_eq!(done["height"] != maker.height(), interrupted, "{done}");

    program.run(["index"]).good();
    assert!(index::contents(&dir) == clean);
    let text = program.run(["verify", "--against-node"]).good().stdout;
    assert!(!text.contains("left over"), "{text}");
}

#[test]
fn node_cli_index_survives_kills_around_a_reorganisation() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 15);
    maker.blocks(40, 3);
    let source = rest(&node);
    let program = beside(&node);
    let dir = program.index_dir();
    let mut rng = StdRng::seed_from_u64(15);
    let mut new = index::fresh_contents(&source);
    program.run(["index"]).good();
    for round in 0..12 {
        let old = new;
        maker.reorganise(30);
        new = index::fresh_contents(&source);
        for kill in 0..2 {
            let run = program.start(["index", "--json", "--source", "rest"]);
            std::thread::sleep(Duration::from_micros(rng.random_range(1..50_000)));
            run.kill();
            let contents = contents_after_kill(&dir, rng.random());
            let prefix = |whole: &Contents| whole.get(..contents.len()) == Some(&contents[..]);
            assert!(prefix(&old) || prefix(&new), "after kill {kill} of round {round}");
            assert!(contents.len() + 30 >= old.len());
        }
        program.run(["index"]).good();
        assert!(index::contents(&dir) == new, "round {round}");
    }
    program.run(["verify", "--against-node"]).good();
    assert_eq!(index::found(&dir, &source, maker.wallets()), maker.planted());
}

//! REST: statuses and bodies.

use bitcoin::consensus::serialize;
use peregrine_index::source::{BlockWithPrevouts, ChainSource, SourceError, encode_spent_outputs};

use crate::mock::{Answer, Mock, Request};
use crate::sample::sample_block;
use crate::{always, invalid, refused, rest_source, unavailable, zero};

/// Serves one block over REST.
fn rest_node(sample: BlockWithPrevouts) -> impl Fn(&Request) -> Answer + Send + Sync {
    move |request| {
        let hash = sample.block.block_hash();
        if request.path == format!("/rest/block/{hash}.bin") {
            Answer::Full(200, serialize(&sample.block))
        } else if request.path == format!("/rest/spenttxouts/{hash}.bin") {
            Answer::Full(200, encode_spent_outputs(&sample.prevouts))
        } else {
            Answer::Full(404, format!("{} not found\r\n", request.path).into_bytes())
        }
    }
}

#[test]
fn rest_reads_a_block_over_one_connection() {
    let sample = sample_block(zero(), 1);
    let mock = Mock::start(rest_node(sample.clone()));
    let source = rest_source(&mock);
    assert_eq!(source.block(sample.block.block_hash()).unwrap(), sample);
    assert!(matches!(source.block(zero()), Err(SourceError::UnknownBlock(hash)) if hash == zero()));
    assert_eq!(
        source.describe(),
        format!("Bitcoin Core REST at {}", mock.url().trim_start_matches("http://"))
    );
}

#[test]
fn rest_follows_statuses() {
    let answer = |status, body: &'static str| {
        let mock = always(move || Answer::Full(status, body.into()));
        rest_source(&mock).block(zero())
    };
    let text = unavailable(answer(503, "Service temporarily unavailable: Loading block index…\r\n"));
    assert!(text.contains("Loading block index"), "{text}");
    assert!(unavailable(answer(503, "Work queue depth exceeded")).contains("Work queue"));
    assert!(unavailable(answer(503, "")).contains("503"));
    assert!(unavailable(answer(500, "I/O error reading 00")).contains("I/O error"));
    assert!(refused(answer(404, "")).contains("rest=1"));
    assert!(refused(answer(404, "<html>nothing here</html>")).contains("rest=1"));
    assert!(refused(answer(404, "00 not available (pruned data)\r\n")).contains("isn't pruned"));
    unavailable(answer(404, "00 not available (not fully downloaded)\r\n"));
    unavailable(answer(404, "00 undo not available\r\n"));
    assert!(refused(answer(403, "")).contains("rpcallowip"));
    refused(answer(401, ""));
    refused(answer(400, "Invalid hash"));
    assert!(matches!(answer(404, "00 not found\r\n"), Err(SourceError::UnknownBlock(_))));
}

#[test]
fn the_wrong_block_is_invalid() {
    let (wanted, other) = (sample_block(zero(), 1), sample_block(zero(), 2));
    let bytes = serialize(&other.block);
    let mock = Mock::start(move |_| Answer::Full(200, bytes.clone()));
    let text = invalid(rest_source(&mock).block(wanted.block.block_hash()));
    assert!(text.contains("instead"), "{text}");
}

#[test]
fn more_spent_outputs_than_a_block_can_have_are_not_downloaded() {
    let sample = sample_block(zero(), 1);
    let hash = sample.block.block_hash();
    let block = serialize(&sample.block);
    let mock = Mock::start(move |request| match request.path.starts_with("/rest/block/") {
        true => Answer::Full(200, block.clone()),
        false => Answer::Endless(b"HTTP/1.1 200 OK\r\n\r\n ".into()),
    });
    assert!(invalid(rest_source(&mock).block(hash)).contains("an answer of more than"));
}

#[test]
fn rest_headers_must_follow() {
    let first = sample_block(zero(), 1).block;
    let second = sample_block(first.block_hash(), 2).block;
    let third = sample_block(second.block_hash(), 3).block;
    let headers = |body: Vec<u8>| {
        let mock = Mock::start(move |_| Answer::Full(200, body.clone()));
        rest_source(&mock).headers_after(first.block_hash(), 1, 2)
    };
    let bytes = |blocks: &[&bitcoin::Block]| {
        blocks.iter().flat_map(|block| serialize(&block.header)).collect::<Vec<u8>>()
    };
    assert_eq!(headers(bytes(&[&first, &second, &third])).unwrap(), Some(vec![second.header, third.header]));
    assert_eq!(headers(bytes(&[&first])).unwrap(), Some(Vec::new()));
    assert_eq!(headers(Vec::new()).unwrap(), None);
    invalid(headers(bytes(&[&second])));
    invalid(headers(bytes(&[&first, &third])));
    invalid(headers(bytes(&[&first, &first])));
    invalid(headers(bytes(&[&first])[..79].to_vec()));
    invalid(headers(bytes(&[&first, &second, &third, &third])));
}

#[test]
fn rest_json_and_hashes_are_checked() {
    let body = |body: &'static [u8]| {
        let mock = always(move || Answer::Full(200, body.into()));
        (rest_source(&mock).tip(), rest_source(&mock).hash_at(3))
    };
    for text in [&b"{}"[..], b"", b"null", b"\xff", b"{\"blocks\":-1,\"bestblockhash\":\"00\"}"] {
        let (tip, hash) = body(text);
        invalid(tip);
        invalid(hash);
    }
}

//! What is wrong below both interfaces, and waiting for it to end.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bitcoin::Network;
use bitcoin::hashes::Hash;
use peregrine_index::source::{ChainSource, RestSource, RpcSource, Waiter};

use crate::mock::{Answer, Mock};
use crate::{TIMEOUT, always, invalid, refused, rest_source, rpc_source, unavailable, user, zero};

#[test]
fn rest_does_not_follow_redirects() {
    let mock = Mock::start(|request| match request.path.as_str() {
        "/elsewhere" => Answer::Full(200, Vec::new()),
        _ => Answer::Raw(b"HTTP/1.1 302 X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n".into()),
    });
    refused(rest_source(&mock).tip());
    assert_eq!(mock.requests().len(), 1);
}

#[test]
fn a_node_that_is_away_is_unavailable() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Accepts (the kernel does), but never answers.
    let source = RestSource::new(&url, Network::Regtest, Duration::from_millis(200)).unwrap();
    assert!(unavailable(source.tip()).contains("0.2 s"));
    drop(listener);
    assert_eq!(unavailable(source.tip()), "connection refused");
    let source = RpcSource::new(&url, Network::Regtest, user(), TIMEOUT).unwrap();
    assert_eq!(unavailable(source.tip()), "connection refused");
}

#[test]
fn broken_http_is_an_error() {
    let answer = |bytes: &'static [u8]| {
        let mock = always(move || Answer::Raw(bytes.into()));
        let (over_rest, over_rpc) = (rest_source(&mock).tip(), rpc_source(&mock).tip());
        assert_eq!(
            std::mem::discriminant(&over_rest.unwrap_err()),
            std::mem::discriminant(over_rpc.as_ref().unwrap_err())
        );
        over_rpc
    };
    assert_eq!(unavailable(answer(b"")), "the node closed the connection");
    assert_eq!(unavailable(answer(b"HTTP/1.1 200 OK\r\nContent-Le")), "the node closed the connection");
    unavailable(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc"));
    invalid(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{\"result\":1}"));
    invalid(answer(b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n{}"));
    invalid(answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}"));
    invalid(answer(b"SSH-2.0-OpenSSH_9.2p1\r\n"));
    invalid(answer(b"\x15\x03\x03\x00\x02\x02\x28"));
    invalid(answer(b"HTTP/1.1 200 OK\r\n\r\n"));
    invalid(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\x00{"));
}

#[test]
fn answers_without_end_are_cut_off() {
    let start = Instant::now();
    let mock = always(|| Answer::Endless(b"HTTP/1.1 200 OK\r\n\r\n ".into()));
    let source = RestSource::new(&mock.url(), Network::Regtest, Duration::from_secs(30)).unwrap();
    assert!(invalid(source.block(zero())).contains("more than 4000000 bytes"));
    invalid(source.tip());
    let mock = always(|| Answer::Endless(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n ".into()));
    let source = RpcSource::new(&mock.url(), Network::Regtest, user(), Duration::from_secs(30)).unwrap();
    invalid(source.tip());
    let mock = always(|| Answer::Endless(b"HTTP/1.1 200 OK\r\nX: a".into()));
    let source = RestSource::new(&mock.url(), Network::Regtest, Duration::from_secs(30)).unwrap();
    invalid(source.tip());
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn slow_answers_time_out() {
    let mock = always(|| Answer::Silence(Duration::from_secs(3)));
    let start = Instant::now();
    assert!(unavailable(rest_source(&mock).tip()).contains("0.5 s"));
    assert!(unavailable(rpc_source(&mock).tip()).contains("0.5 s"));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn a_kept_connection_that_is_closed_is_opened_again() {
    // The client only learns on its next request that the connection is gone.
    let mock = always(|| Answer::FullThenClose(200, zero().to_byte_array().into()));
    let source = rest_source(&mock);
    for _ in 0..20 {
        assert_eq!(source.hash_at(0).unwrap(), Some(zero()));
    }
}

#[test]
fn waiting_ends_when_the_node_is_there() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let mock = always(move || match counter.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Answer::Full(503, b"Service temporarily unavailable: Verifying blocks".into()),
        2 => Answer::Raw(Vec::new()),
        _ => Answer::Full(200, zero().to_byte_array().into()),
    });
    let source = rest_source(&mock);
    let (cancel, told) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let waiter = Waiter::new(&cancel, |event| told.lock().unwrap().push(event.to_string()));
    assert_eq!(waiter.run(&source.describe(), || source.hash_at(0)).unwrap(), Some(zero()));
    let told = told.lock().unwrap();
    assert!(told[0].contains("waiting for Bitcoin Core REST at 127.0.0.1:"), "{told:?}");
    assert!(told[0].ends_with("Verifying blocks"), "{told:?}");
    assert!(told.last().unwrap().contains("answers again"), "{told:?}");
}

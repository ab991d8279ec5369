//! Random transactions: tweaks and found outputs agree with the crates `bdk_sp` and `silentpayments`.

use bitcoin::hashes::Hash;
use bitcoin::{Amount, OutPoint, ScriptBuf, Transaction, TxOut, Txid};
use peregrine_kernels::Isa;
use peregrine_scanner::batch::{TweakMethod, transaction_tweaks};
use peregrine_scanner::receive::find_outputs;
use peregrine_scanner::synthetic::{Coin, InputKind, spend};
use peregrine_scanner::{
    Address, AddressNetwork, Label, ScanKey, ScanTarget, SpendKey, Tweak, input, send, transaction_tweak,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use secp256k1::SecretKey;

fn random_key(rng: &mut StdRng) -> SecretKey {
    SecretKey::from_secret_bytes(rng.random()).expect("a random number is below n")
}

fn random_coins(rng: &mut StdRng, kinds: &[InputKind]) -> Vec<Coin> {
    (0..rng.random_range(1..=5))
        .map(|_| Coin {
            kind: *kinds.choose(rng).unwrap(),
            key: random_key(rng),
            outpoint: OutPoint::new(Txid::from_byte_array(rng.random()), rng.random_range(0..70_000)),
            value: rng.random_range(1_000..1_000_000),
        })
        .collect()
}

fn taproot_output(key: &[u8; 32]) -> TxOut {
    TxOut {
        value: Amount::from_sat(700),
        script_pubkey: ScriptBuf::from_bytes([&[0x51, 0x20], &key[..]].concat()),
    }
}

/// A receiver with some labels and everything that other crates need of it.
struct Receiver {
    scan: ScanKey,
    spend: SpendKey,
    labels: Vec<u32>,
    target: ScanTarget,
}

impl Receiver {
    fn random(rng: &mut StdRng) -> Self {
        let scan = ScanKey::from_bytes(rng.random()).unwrap();
        let spend = SpendKey::from_bytes(rng.random()).unwrap();
        let labels: Vec<u32> = (0..rng.random_range(0..4)).map(|_| rng.random_range(1..100)).collect();
        let target = ScanTarget::new(scan.clone(), spend.public_key(), labels.clone()).unwrap();
        Self { scan, spend, labels, target }
    }

    fn address(&self, rng: &mut StdRng) -> Address {
        let all: Vec<Option<u32>> =
            self.target.labels().iter().map(|label| Some(label.m())).chain([None, None]).collect();
        let spend = match all.choose(rng).unwrap() {
            None => self.spend.public_key(),
            Some(m) => Label::new(&self.scan, *m).unwrap().apply(&self.spend.public_key()).unwrap(),
        };
        Address::new(AddressNetwork::Mainnet, self.scan.public_key(), spend)
    }
}

/// A transaction that pays the receiver `count` times, and others too. Returns it with its prevouts.
fn random_payment(
    rng: &mut StdRng,
    coins: &[Coin],
    receiver: &Receiver,
    count: usize,
) -> (Transaction, Vec<TxOut>, Vec<[u8; 32]>) {
    let keys: Vec<_> = coins.iter().filter_map(Coin::input_key).collect();
    let recipients: Vec<Address> = (0..count).map(|_| receiver.address(rng)).collect();
    let paid = send::output_keys(&keys, coins.iter().map(|coin| coin.outpoint), &recipients).unwrap();
    let mut outputs = paid.clone();
    for _ in 0..rng.random_range(if count == 0 { 1..3 } else { 0..3 }) {
        // Half of these aren't points on the curve.
        let at = rng.random_range(0..=outputs.len());
        outputs.insert(at, rng.random());
    }
    let prevouts = coins.iter().map(Coin::output).collect();
    (spend(coins, outputs.iter().map(taproot_output).collect()), prevouts, paid)
}

fn taproot_keys(transaction: &Transaction) -> Vec<[u8; 32]> {
    transaction
        .output
        .iter()
        .filter_map(|out| peregrine_scanner::tweak::taproot_key(&out.script_pubkey))
        .collect()
}

/// Tweak by the crate `silentpayments`; it leaves the rule about future witness versions to its caller.
fn tweak_by_silentpayments(transaction: &Transaction, prevouts: &[TxOut]) -> Option<[u8; 33]> {
    use ::silentpayments::utils::receiving::{calculate_tweak_data, get_pubkey_from_input};
    let keys: Vec<_> = transaction
        .input
        .iter()
        .zip(prevouts)
        .filter_map(|(txin, prevout)| {
            let witness: Vec<Vec<u8>> = txin.witness.iter().map(<[u8]>::to_vec).collect();
            get_pubkey_from_input(txin.script_sig.as_bytes(), &witness, prevout.script_pubkey.as_bytes())
                .ok()?
        })
        .collect();
    let outpoints: Vec<_> = transaction
        .input
        .iter()
        .map(|txin| {
            ::silentpayments::utils::OutPoint::from_txid_bytes_and_vout(
                txin.previous_output.txid.to_byte_array(),
                txin.previous_output.vout,
            )
        })
        .collect();
    if keys.is_empty() {
        return None;
    }
    calculate_tweak_data(&keys.iter().collect::<Vec<_>>(), &outpoints).ok().map(|key| key.serialize())
}

#[test]
fn tweaks_agree() {
    let mut rng = StdRng::seed_from_u64(352);
    let (mut with_tweak, mut without) = (0, 0);
    for round in 0..1500 {
        let kinds: &[InputKind] = if round % 3 == 0 { &InputKind::ALL } else { &InputKind::ALL[..14] };
        let coins = random_coins(&mut rng, kinds);
        let transaction = spend(&coins, vec![taproot_output(&rng.random())]);
        let prevouts: Vec<TxOut> = coins.iter().map(Coin::output).collect();
        let ours = transaction_tweak(&transaction, &prevouts).map(|tweak| tweak.serialize());
        let kinds: Vec<InputKind> = coins.iter().map(|coin| coin.kind).collect();
        if kinds.contains(&InputKind::FutureWitness) {
            assert_eq!(ours, None, "{kinds:?}");
            without += 1;
            continue;
        }
        for (coin, (txin, prevout)) in coins.iter().zip(transaction.input.iter().zip(&prevouts)) {
            let key = input::public_key(txin, &prevout.script_pubkey);
            assert_eq!(key.is_some(), coin.kind.gives_key(), "{:?}", coin.kind);
        }
        assert_eq!(ours.is_some(), kinds.iter().any(|kind| kind.gives_key()), "{kinds:?}");
        assert_eq!(ours, tweak_by_silentpayments(&transaction, &prevouts), "{kinds:?}");
        // bdk_sp takes the key of a script path with H where an annex follows the control block.
        if !kinds.contains(&InputKind::TaprootNumsAnnex) {
            let theirs =
                bdk_sp::receive::compute_tweak_data(&transaction, &prevouts).ok().map(|key| key.serialize());
            assert_eq!(ours, theirs, "{kinds:?}");
        }
        if ours.is_some() { with_tweak += 1 } else { without += 1 }
    }
    assert!(with_tweak > 900 && without > 100, "{with_tweak} {without}");
}

#[test]
fn tweaks_of_many_transactions_at_once_are_those_of_each() {
    let mut rng = StdRng::seed_from_u64(356);
    let mut transactions: Vec<(Transaction, Vec<TxOut>)> = Vec::new();
    for round in 0..600 {
        let mut coins = random_coins(&mut rng, &InputKind::ALL[..if round % 4 == 0 { 15 } else { 14 }]);
        if round % 10 == 0 {
            // Keys that cancel: with nothing else the sum is infinity, else only an intermediate sum is.
            let opposite = coins[0].key.negate();
            coins[0].kind = InputKind::P2wpkh;
            let outpoint = OutPoint::new(Txid::from_byte_array(rng.random()), 0);
            coins.insert(1, Coin { kind: InputKind::P2pkh, key: opposite, outpoint, value: 5000 });
            coins.truncate(if round % 20 == 0 { 2 } else { 9 });
        }
        let outputs = if round % 7 == 0 { vec![] } else { vec![taproot_output(&rng.random())] };
        let mut transaction = spend(&coins, outputs);
        if round % 30 == 1 {
            // A key that isn't on the curve, which no valid block has.
            transaction.input[0].witness = bitcoin::Witness::from_slice(&[[2; 71].as_slice(), &[3; 33]]);
        }
        transactions.push((transaction, coins.iter().map(Coin::output).collect()));
    }
    let pairs: Vec<(&Transaction, &[TxOut])> =
        transactions.iter().map(|(tx, prevouts)| (tx, &prevouts[..])).collect();
    let wanted: Vec<(usize, Tweak)> = pairs
        .iter()
        .enumerate()
        .filter_map(|(position, (tx, prevouts))| Some((position, transaction_tweak(tx, prevouts)?)))
        .collect();
    assert!(wanted.len() > 300);
    assert_eq!(transaction_tweaks(TweakMethod::Plain, &pairs), wanted);
    for isa in Isa::ALL.iter().filter(|isa| isa.is_available()) {
        for size in [1, 15, 16, 17, 40, 100, 600] {
            let mut found = Vec::new();
            for (number, part) in pairs.chunks(size).enumerate() {
                let tweaks = transaction_tweaks(TweakMethod::Lanes(*isa), part);
                found.extend(tweaks.into_iter().map(|(position, tweak)| (number * size + position, tweak)));
            }
            assert_eq!(found, wanted, "{isa}, {size} at once");
        }
    }
    assert_eq!(TweakMethod::choose("auto"), Ok(TweakMethod::Lanes(Isa::detect())));
    assert_eq!(TweakMethod::choose("libsecp256k1"), Ok(TweakMethod::Plain));
}

#[test]
fn found_outputs_agree() {
    let mut rng = StdRng::seed_from_u64(353);
    let eligible: Vec<InputKind> = InputKind::ALL.into_iter().filter(|kind| kind.gives_key()).collect();
    let mut payments = 0;
    for _ in 0..300 {
        let receiver = Receiver::random(&mut rng);
        let coins = random_coins(&mut rng, &eligible);
        let count = rng.random_range(0..6);
        let (transaction, prevouts, paid) = random_payment(&mut rng, &coins, &receiver, count);
        let tweak = transaction_tweak(&transaction, &prevouts).unwrap();
        let keys = taproot_keys(&transaction);
        let found = find_outputs(&receiver.target, &tweak, &keys);

        // What was paid is what is found, in the order of k.
        let by_k: Vec<[u8; 32]> = found.iter().map(|output| keys[output.index]).collect();
        assert_eq!(by_k, paid);
        payments += paid.len();
        for output in &found {
            let opens = receiver.spend.output_key(&output.tweak).unwrap().public_key().x_only_public_key().0;
            assert_eq!(opens.to_byte_array(), keys[output.index]);
        }

        // bdk_sp finds the same outputs, labels and tweaks.
        let theirs = found_by_bdk(&receiver, &transaction, &tweak);
        let mut ours: Vec<_> =
            found.iter().map(|output| (keys[output.index], output.label, *output.tweak.as_bytes())).collect();
        ours.sort();
        assert_eq!(ours, theirs);
    }
    assert!(payments > 500, "{payments}");
}

/// (key, label, tweak) by the crate `bdk_sp`, sorted.
fn found_by_bdk(
    receiver: &Receiver,
    transaction: &Transaction,
    tweak: &Tweak,
) -> Vec<([u8; 32], Option<u32>, [u8; 32])> {
    use bitcoin::secp256k1::{PublicKey, Secp256k1, SecretKey};
    let secp = Secp256k1::new();
    let scan = SecretKey::from_slice(receiver.scan.secret().as_secret_bytes()).unwrap();
    let spend = PublicKey::from_slice(&receiver.spend.public_key().serialize()).unwrap();
    let labels = [0].iter().chain(&receiver.labels).map(|m| {
        let scalar = bdk_sp::hashes::get_label_tweak(scan, *m);
        let point = SecretKey::from_slice(&scalar.to_be_bytes()).unwrap().public_key(&secp);
        (point, (scalar, *m))
    });
    let shared = bdk_sp::compute_shared_secret(&scan, &PublicKey::from_slice(&tweak.serialize()).unwrap());
    let found = bdk_sp::receive::scan_txouts(spend, &labels.collect(), transaction, shared).unwrap();
    let mut found: Vec<_> = found
        .into_iter()
        .map(|out| {
            let key = peregrine_scanner::tweak::taproot_key(&out.script_pubkey).unwrap();
            (key, out.label, out.tweak.secret_bytes())
        })
        .collect();
    found.sort();
    found
}

#[test]
fn one_key_in_several_outputs_is_reported_for_each() {
    let mut rng = StdRng::seed_from_u64(354);
    let receiver = Receiver::random(&mut rng);
    let coins = random_coins(&mut rng, &[InputKind::P2wpkh]);
    let (transaction, prevouts, paid) = random_payment(&mut rng, &coins, &receiver, 3);
    let tweak = transaction_tweak(&transaction, &prevouts).unwrap();
    let keys = [paid[1], paid[0], [0xff; 32], paid[2], paid[0], paid[1]];
    let found: Vec<(usize, u32)> =
        find_outputs(&receiver.target, &tweak, &keys).iter().map(|out| (out.index, out.k)).collect();
    assert_eq!(found, [(1, 0), (4, 0), (0, 1), (5, 1), (3, 2)]);

    // Without the first key nobody can know of the others.
    assert!(find_outputs(&receiver.target, &tweak, &[paid[1], paid[2]]).is_empty());
}

#[test]
fn one_k_with_and_without_a_label_is_reported_for_both() {
    let mut rng = StdRng::seed_from_u64(355);
    let receiver = Receiver::random(&mut rng);
    let coins = random_coins(&mut rng, &[InputKind::TaprootKeyPath]);
    let input_keys: Vec<_> = coins.iter().filter_map(Coin::input_key).collect();
    let outpoints = || coins.iter().map(|coin| coin.outpoint);
    let spend = receiver.spend.public_key();
    let change = Label::new(&receiver.scan, 0).unwrap().apply(&spend).unwrap();
    // Two senders' computations for the same transaction, each thinking that it makes k = 0.
    let key_for = |spend| {
        let address = Address::new(AddressNetwork::Mainnet, receiver.scan.public_key(), spend);
        send::output_keys(&input_keys, outpoints(), &[address]).unwrap()[0]
    };
    let keys = [key_for(change), key_for(spend)];
    let transaction = peregrine_scanner::synthetic::spend(&coins, keys.iter().map(taproot_output).collect());
    let prevouts: Vec<TxOut> = coins.iter().map(Coin::output).collect();
    let tweak = transaction_tweak(&transaction, &prevouts).unwrap();
    let found = find_outputs(&receiver.target, &tweak, &keys);
    let found: Vec<_> = found.iter().map(|out| (out.index, out.k, out.label)).collect();
    assert_eq!(found, [(1, 0, None), (0, 0, Some(0))]);
}

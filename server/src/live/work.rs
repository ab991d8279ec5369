//! How much of the indexing is done, and how long the rest takes.

use bitcoin::Network;

/// Transactions of the main chain up to a height, in millions, roughly: blocks of the first years are nearly empty, so a
/// share of heights would say nothing about time.
const MAINNET: [(u32, f64); 13] = [
    (0, 0.0),
    (100_000, 0.22),
    (150_000, 1.7),
    (200_000, 7.3),
    (250_000, 21.0),
    (300_000, 38.0),
    (350_000, 65.0),
    (400_000, 112.0),
    (500_000, 283.0),
    (600_000, 466.0),
    (700_000, 669.0),
    (800_000, 870.0),
    (900_000, 1190.0),
];

/// Work for all blocks up to a height, in a unit of its own: never falling, 0 at genesis.
pub(super) fn done(network: Network, height: u32) -> u64 {
    if network != Network::Bitcoin {
        return u64::from(height);
    }
    let (mut from, mut to) = (MAINNET[MAINNET.len() - 2], MAINNET[MAINNET.len() - 1]);
    if let Some(pair) = MAINNET.windows(2).find(|pair| height < pair[1].0) {
        (from, to) = (pair[0], pair[1]);
    }
    // Beyond the table it goes on as steeply as at its end. A block costs something even when it is empty.
    let slope = (to.1 - from.1) / f64::from(to.0 - from.0);
    let millions = from.1 + slope * (f64::from(height) - f64::from(from.0));
    (millions * 1000.0) as u64 + u64::from(height) / 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_with_height_and_mostly_late() {
        let work = |height| done(Network::Bitcoin, height);
        assert_eq!((work(0), done(Network::Regtest, 7)), (0, 7));
        let heights: Vec<u32> = (0..1_200_000).step_by(1000).collect();
        assert!(heights.windows(2).all(|pair| work(pair[0]) < work(pair[1])));
        assert!(work(250_000) * 20 < work(1_000_000), "the first years are small");
        assert!(work(1_000_000) > work(900_000) + 200_000, "it goes on beyond the table");
    }
}

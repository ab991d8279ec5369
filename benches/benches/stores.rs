//! Which embedded store fits the script-hash index: `fjall` and `redb` under the load that the index makes.
//!
//! ```text
//! cargo bench -p peregrine-benches --bench stores [-- ENTRIES [DIRECTORY]]
//! ```
//!
//! Entries are like those of the index: three in four are history rows (16 bytes of a script hash and a 5-byte
//! transaction number, 8 bytes of value; two rows per script, one script with 100,000), one in four leads from 8 bytes of
//! a txid to its number. They are committed in batches of 100,000, each batch atomic and sorted, as the initial sync
//! does. Then come lookups of single txids that are there and that aren't, short histories, the long one, and a process
//! that is killed ten times while it writes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Entries per commit.
const BATCH: u64 = 100_000;
/// Rows of the one long history.
const LONG: u64 = 100_000;
/// Lookups of each kind.
const LOOKUPS: u64 = 200_000;
const KILLS: u32 = 10;
const CHILD: &str = "PEREGRINE_STORES_CHILD";

type Failure = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Failure>;
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// What the index asks of a store.
trait Store: Sized {
    const NAME: &'static str;
    fn open(dir: &Path) -> Result<Self>;
    /// Adds history rows, txids and the number of the batch, all or nothing.
    fn commit(&self, number: u64, history: &Pairs, txids: &Pairs, durable: bool) -> Result<()>;
    fn batches(&self) -> Result<u64>;
    fn get(&self, txid: &[u8]) -> Result<Option<u64>>;
    /// Number of history rows whose key begins with `prefix`.
    fn count(&self, prefix: &[u8]) -> Result<u64>;
    /// Number of all rows, by reading them.
    fn len(&self) -> Result<u64>;
}

struct Fjall {
    db: fjall::Database,
    history: fjall::Keyspace,
    txids: fjall::Keyspace,
    meta: fjall::Keyspace,
}

impl Store for Fjall {
    const NAME: &'static str = "fjall 3.1.13";

    fn open(dir: &Path) -> Result<Self> {
        let db = fjall::Database::builder(dir)
            .cache_size(256 << 20)
            .max_journaling_size(256 << 20)
            .manual_journal_persist(true)
            .open()?;
        let keyspace = |name| db.keyspace(name, fjall::KeyspaceCreateOptions::default);
        let (history, txids, meta) = (keyspace("history")?, keyspace("txids")?, keyspace("meta")?);
        Ok(Self { db, history, txids, meta })
    }

    fn commit(&self, number: u64, history: &Pairs, txids: &Pairs, durable: bool) -> Result<()> {
        let mode = if durable { fjall::PersistMode::SyncAll } else { fjall::PersistMode::Buffer };
        let mut batch = self.db.batch().durability(Some(mode));
        for (key, value) in history {
            batch.insert(&self.history, &key[..], &value[..]);
        }
        for (key, value) in txids {
            batch.insert(&self.txids, &key[..], &value[..]);
        }
        batch.insert(&self.meta, "batches", number.to_be_bytes());
        Ok(batch.commit()?)
    }

    fn batches(&self) -> Result<u64> {
        Ok(self.meta.get("batches")?.map_or(0, |value| be(&value)))
    }

    fn get(&self, txid: &[u8]) -> Result<Option<u64>> {
        Ok(self.txids.get(txid)?.map(|value| be(&value)))
    }

    fn count(&self, prefix: &[u8]) -> Result<u64> {
        let mut count = 0;
        for row in self.history.prefix(prefix) {
            let (key, value) = row.into_inner()?;
            count += u64::from(key.len() + value.len() == 29);
        }
        Ok(count)
    }

    fn len(&self) -> Result<u64> {
        Ok((self.history.len()? + self.txids.len()?) as u64)
    }
}

struct Redb(redb::Database);

const HISTORY: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("history");
const TXIDS: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("txids");
const META: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("meta");

impl Store for Redb {
    const NAME: &'static str = "redb 4.6.0";

    fn open(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let db = redb::Builder::new().set_cache_size(256 << 20).create(dir.join("db"))?;
        let write = db.begin_write()?;
        write.open_table(HISTORY)?;
        write.open_table(TXIDS)?;
        write.open_table(META)?;
        write.commit()?;
        Ok(Self(db))
    }

    fn commit(&self, number: u64, history: &Pairs, txids: &Pairs, durable: bool) -> Result<()> {
        let mut write = self.0.begin_write()?;
        write.set_durability(if durable { redb::Durability::Immediate } else { redb::Durability::None })?;
        {
            let mut table = write.open_table(HISTORY)?;
            for (key, value) in history {
                table.insert(&key[..], &value[..])?;
            }
            let mut table = write.open_table(TXIDS)?;
            for (key, value) in txids {
                table.insert(&key[..], &value[..])?;
            }
            write.open_table(META)?.insert("batches", number)?;
        }
        Ok(write.commit()?)
    }

    fn batches(&self) -> Result<u64> {
        use redb::ReadableDatabase;
        let meta = self.0.begin_read()?.open_table(META)?;
        Ok(meta.get("batches")?.map_or(0, |value| value.value()))
    }

    fn get(&self, txid: &[u8]) -> Result<Option<u64>> {
        use redb::ReadableDatabase;
        let table = self.0.begin_read()?.open_table(TXIDS)?;
        Ok(table.get(txid)?.map(|value| be(value.value())))
    }

    fn count(&self, prefix: &[u8]) -> Result<u64> {
        use redb::ReadableDatabase;
        let table = self.0.begin_read()?.open_table(HISTORY)?;
        let end = [prefix, &[0xff; 5]].concat();
        let mut count = 0;
        for row in table.range(prefix..=&end[..])? {
            let (key, value) = row?;
            count += u64::from(key.value().len() + value.value().len() == 29);
        }
        Ok(count)
    }

    fn len(&self) -> Result<u64> {
        use redb::{ReadableDatabase, ReadableTableMetadata};
        let read = self.0.begin_read()?;
        Ok(read.open_table(HISTORY)?.len()? + read.open_table(TXIDS)?.len()?)
    }
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// SplitMix64's last step: a good hash of a number.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn script(number: u64) -> Vec<u8> {
    [mix(number).to_be_bytes(), mix(!number).to_be_bytes()].concat()
}

fn txid(number: u64) -> Vec<u8> {
    mix(number ^ 1 << 63).to_be_bytes().to_vec()
}

/// Scripts that have a short history by batch `batches`.
fn scripts(batches: u64) -> u64 {
    batches * BATCH * 3 / 8
}

/// The entries of a batch, sorted; `long_every` entries there is one for the long history.
fn entries(batch: u64, long_every: u64) -> (Pairs, Pairs) {
    let (mut history, mut txids) = (Vec::new(), Vec::new());
    for entry in batch * BATCH..(batch + 1) * BATCH {
        // One transaction in four entries.
        let number = (entry / 4).to_be_bytes()[3..].to_vec();
        if entry % 4 == 3 {
            txids.push((txid(entry / 4), number));
        } else if entry % long_every == 0 {
            history.push(([script(u64::MAX), entry.to_be_bytes()[3..].to_vec()].concat(), vec![1; 8]));
        } else {
            // The second row of a script comes much later than the first.
            let row = entry / 4 * 3 + entry % 4;
            let script = script(if row % 2 == 0 { row / 2 } else { row / 4 });
            history.push((
                [script, entry.to_be_bytes()[3..].to_vec()].concat(),
                mix(entry).to_be_bytes().to_vec(),
            ));
        }
    }
    history.sort();
    txids.sort();
    (history, txids)
}

fn size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => size(&entry.path()),
            // What is allocated, not what a sparse file claims.
            Ok(meta) => std::os::unix::fs::MetadataExt::blocks(&meta) * 512,
            Err(_) => 0,
        })
        .sum()
}

fn per_second(count: u64, time: Duration) -> String {
    format!("{:.0} k/s", count as f64 / time.as_secs_f64() / 1e3)
}

fn measure<S: Store>(dir: &Path, total: u64) -> Result<()> {
    println!("== {}", S::NAME);
    let _ = fs::remove_dir_all(dir);
    let batches = total / BATCH;
    // A multiple of 4, so that these are no txids.
    let long_every = (total / LONG).div_ceil(4).max(1) * 4;
    let store = S::open(dir)?;
    let mut writing = Duration::ZERO;
    let mut slowest = Duration::ZERO;
    for batch in 0..batches {
        let (history, txids) = entries(batch, long_every);
        let started = Instant::now();
        store.commit(batch + 1, &history, &txids, batch % 10 == 9 || batch + 1 == batches)?;
        writing += started.elapsed();
        slowest = slowest.max(started.elapsed());
    }
    println!("bulk build: {} in {writing:.1?}, slowest commit {slowest:.1?}", per_second(total, writing));
    println!(
        "disk size: {:.0} MB, {:.1} bytes per entry",
        size(dir) as f64 / 1e6,
        size(dir) as f64 / total as f64
    );
    let started = Instant::now();
    drop(store);
    let closing = started.elapsed();
    let started = Instant::now();
    let store = S::open(dir)?;
    println!("close {closing:.1?}, open {:.1?}", started.elapsed());
    let transactions = total / 4;
    for (what, offset) in [("found", 0), ("missing", transactions)] {
        let started = Instant::now();
        for lookup in 0..LOOKUPS {
            let number = mix(lookup) % transactions + offset;
            assert_eq!(store.get(&txid(number))?, (offset == 0).then_some(number));
        }
        println!("txids {what}: {}", per_second(LOOKUPS, started.elapsed()));
    }
    let started = Instant::now();
    let mut rows = 0;
    for lookup in 0..LOOKUPS {
        rows += store.count(&script(mix(lookup) % scripts(batches)))?;
    }
    println!("short histories: {} ({rows} rows)", per_second(LOOKUPS, started.elapsed()));
    let started = Instant::now();
    let long = store.count(&script(u64::MAX))?;
    println!("long history: {long} rows in {:.1?}", started.elapsed());
    println!("disk size at the end: {:.0} MB", size(dir) as f64 / 1e6);
    drop(store);
    fs::remove_dir_all(dir)?;

    let mut opening = Duration::ZERO;
    let mut lost = 0;
    for round in 0..KILLS {
        let mut child = Command::new(env::current_exe()?)
            .env(CHILD, format!("{}={}", S::NAME, dir.display()))
            .stdout(Stdio::piped())
            .spawn()?;
        thread::sleep(Duration::from_millis(700 + u64::from(round) * 173));
        child.kill()?;
        let output = child.wait_with_output()?;
        // One byte per finished commit of this and earlier rounds.
        let told = output.stdout.len() as u64;
        let started = Instant::now();
        let store = S::open(dir)?;
        opening = opening.max(started.elapsed());
        let batches = store.batches()?;
        if batches < told {
            lost += 1;
        }
        assert_eq!(store.len()?, batches * BATCH, "a batch is there in part");
    }
    println!(
        "SIGKILL: {KILLS} times, longest opening {opening:.1?}, {lost} times a finished commit was lost"
    );
    fs::remove_dir_all(dir)?;
    Ok(())
}

/// Writes until it is killed.
fn child<S: Store>(dir: &Path) -> Result<()> {
    use std::io::Write;
    let store = S::open(dir)?;
    let mut batch = store.batches()?;
    let mut out = std::io::stdout();
    out.write_all(&vec![b'.'; batch as usize])?;
    out.flush()?;
    loop {
        let (history, txids) = entries(batch, 100);
        batch += 1;
        store.commit(batch, &history, &txids, batch % 10 == 0)?;
        out.write_all(b".")?;
        out.flush()?;
    }
}

fn main() -> Result<()> {
    if let Ok(what) = env::var(CHILD) {
        let (name, dir) = what.split_once('=').ok_or("STORE=DIRECTORY")?;
        return if name == Fjall::NAME {
            child::<Fjall>(Path::new(dir))
        } else {
            child::<Redb>(Path::new(dir))
        };
    }
    let mut args = env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    // `cargo test` runs this, too, and only wants to know that it works.
    let usual = if env::args().any(|arg| arg == "--bench") { 10_000_000 } else { 200_000 };
    let total = args.next().map_or(Ok(usual), |total| total.parse())?;
    let dir =
        args.next().map_or_else(env::temp_dir, PathBuf::from).join(format!("stores-{}", std::process::id()));
    measure::<Fjall>(&dir, total)?;
    measure::<Redb>(&dir, total)
}

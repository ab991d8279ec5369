//! One card: the kernels, and running them.

use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use peregrine_kernels::gpu::{DeviceKey, PTX, generator_table};

use super::super::graphics::device::{self, Failure, Part, ROWS_PER_THREAD, Step, report_room};
use super::super::{PATIENCE, RowBatch, Selection};
use super::memory::{Context, Memory, Pinned};
use super::native;

/// Threads of a block, as the kernels are compiled for.
const BLOCK: u32 = 128;
/// The most rows of a part.
const MAX_ROWS: usize = 1 << 22;
/// Reports that are read at once; more are hardly ever there.
const FEW: usize = 64;
/// Bytes in front of the reports, where their number is.
const COUNT: usize = 16;
/// How often the card is asked whether it is done.
const ASK: Duration = Duration::from_micros(20);

/// Says at what an error of the driver happened.
pub(super) trait Doing<T> {
    fn while_doing(self, what: &'static str) -> Result<T, Failure>;
}

impl<T> Doing<T> for Result<T, DriverError> {
    fn while_doing(self, what: &'static str) -> Result<T, Failure> {
        self.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Failure::Memory,
            // The text comes from the driver, too.
            _ => Failure::Driver { what, error: format!("{error:?}") },
        })
    }
}

fn missing(text: &str) -> Failure {
    Failure::Missing(text.to_owned())
}

/// Looks for the driver. The library panics where it finds none, and where a function is missing.
pub(super) fn with_driver<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // SAFETY: loading a library runs its initialisers; this is the system's driver, found where the system looks for it.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing("there is no NVIDIA driver (libcuda) on this machine"));
    }
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(missing("the NVIDIA driver is too old: it lacks a function that is needed")))
}

/// A card as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardInfo {
    /// Its name.
    pub name: String,
    /// Compute capability, as in sm_90.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// Bytes of memory.
    pub memory: u64,
}

/// All cards that the driver finds, or why there is none.
///
/// # Errors
/// In words.
pub fn cards() -> Result<Vec<CardInfo>, String> {
    let list = || {
        result::init().while_doing("starting the driver")?;
        let count = result::device::get_count().while_doing("counting cards")?;
        (0..count)
            .map(|number| describe(result::device::get(number).while_doing("finding a card")?))
            .collect()
    };
    with_driver(list).map_err(|failure| failure.to_string())
}

fn describe(device: sys::CUdevice) -> Result<CardInfo, Failure> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as COUNT,
    };
    let attribute = |which| {
        // SAFETY: the device comes from the driver.
        unsafe { result::device::get_attribute(device, which) }.while_doing("asking a card what it can")
    };
    Ok(CardInfo {
        name: result::device::get_name(device).while_doing("asking a card for its name")?,
        capability: (attribute(MAJOR)?, attribute(MINOR)?),
        multiprocessors: attribute(COUNT)?,
        // SAFETY: the device comes from the driver.
        memory: unsafe { result::device::total_mem(device) }.while_doing("asking for a card's memory")?
            as u64,
    })
}

/// `Scan` of `scan.cuh`.
#[repr(C)]
struct Arguments {
    points: u64,
    output_ends: u64,
    outputs: u64,
    outputs_base: u32,
    rows: u32,
    threads: u32,
    schedule: u64,
    top: u64,
    labels: u64,
    operations: u32,
    label_count: u32,
    key: u32,
    table: u64,
    sums: u64,
    products: u64,
    reports: u64,
    report_count: u64,
    report_room: u32,
}

/// A card that is open.
pub(in super::super) struct Cuda {
    context: Arc<Context>,
    module: sys::CUmodule,
    ladder: sys::CUfunction,
    comb: sys::CUfunction,
    matching: sys::CUfunction,
    table: Memory,
    budget: u64,
    patience: Duration,
}

// SAFETY: the driver's handles may be used by any thread in which the context is current, which every method sees to.
unsafe impl Send for Cuda {}
// SAFETY: as above, and by several at once.
unsafe impl Sync for Cuda {}

/// Keys on the card.
pub(in super::super) struct Keys(Vec<Key>);

struct Key {
    schedule: Memory,
    top: Memory,
    labels: Memory,
    operations: u32,
}

/// Rows on the card.
pub(in super::super) struct Tile {
    points: Memory,
    ends: Memory,
    outputs: Memory,
    outputs_base: u32,
}

/// A stream of work and the memory that it needs.
pub(in super::super) struct Lane {
    context: Arc<Context>,
    stream: sys::CUstream,
    event: sys::CUevent,
    /// Rows on their way to the card.
    stage: Pinned,
    rows: Tile,
    sums: Memory,
    products: Memory,
    /// Their number, then the reports.
    reports: Memory,
    few: Pinned,
}

// SAFETY: as for the card; and a lane is used by one thread at a time, since using it takes `&mut`.
unsafe impl Send for Lane {}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.context.enter().is_ok() && !self.context.abandoned.load(Ordering::Relaxed) {
            // SAFETY: both were made with the lane, and nothing is started in them any more.
            let ended = unsafe {
                result::stream::synchronize(self.stream)
                    .and(result::event::destroy(self.event))
                    .and(result::stream::destroy(self.stream))
            };
            if let Err(error) = ended {
                tracing::debug!("ending a stream of work: error {}", error.0 as u32);
            }
        }
    }
}

impl Cuda {
    /// Opens a card, loads the kernels, and fills their table.
    pub(super) fn open(number: usize, selection: &Selection) -> Result<Self, Failure> {
        with_driver(|| Self::open_present(number, selection))
    }

    fn open_present(number: usize, selection: &Selection) -> Result<Self, Failure> {
        result::init().while_doing("starting the driver")?;
        let device = result::device::get(number as i32).while_doing("finding the card")?;
        let context = Arc::new(Context::new(device)?);
        let table: Vec<u8> = generator_table().flatten().collect();
        let table = Memory::holding(&context, &table)?;
        let mut card = Self {
            context,
            module: std::ptr::null_mut(),
            ladder: std::ptr::null_mut(),
            comb: std::ptr::null_mut(),
            matching: std::ptr::null_mut(),
            table,
            budget: 0,
            patience: selection.patience.unwrap_or(PATIENCE),
        };
        let mut image = match selection.cuda_arch.as_deref() {
            None => PTX.as_bytes().to_vec(),
            Some("native") => {
                let (major, minor) = describe(device)?.capability;
                native::compile(&format!("sm_{major}{minor}"))?
            }
            Some(architecture) => native::compile(architecture)?,
        };
        // PTX is a text that ends with it; a cubin knows its own length.
        image.push(0);
        // SAFETY: the image is PTX or a cubin, ends with a zero, and is only read during the call.
        card.module =
            unsafe { result::module::load_data(image.as_ptr().cast()) }.while_doing("loading the kernels")?;
        let module = card.module;
        let function = |name: &str| {
            let name = CString::new(name).map_err(|_| Failure::Nonsense)?;
            // SAFETY: the module was just loaded.
            unsafe { result::module::get_function(module, name) }.while_doing("finding a kernel")
        };
        card.ladder = function("peregrine_ladder")?;
        card.comb = function("peregrine_comb")?;
        card.matching = function("peregrine_match")?;
        // Something has to be left for what is computed, and for others.
        let (free, _) = result::mem_get_info().while_doing("asking how much memory is free")?;
        card.budget = selection.budget.unwrap_or(free as u64 / 10 * 8);
        Ok(card)
    }

    fn launch(
        &self,
        lane: &Lane,
        kernel: sys::CUfunction,
        threads: u32,
        arguments: &mut Arguments,
    ) -> Result<(), Failure> {
        let blocks = threads.div_ceil(BLOCK);
        let mut list = [std::ptr::from_mut(arguments).cast::<c_void>()];
        let (grid, block) = ((blocks, 1, 1), (BLOCK, 1, 1));
        // SAFETY: the kernels take one argument, the structure that this one is laid out like, which is copied by the call. Its
        // pointers are memory of this card, as large as its counts say, which lives until the kernels are done: all callers
        // wait for that.
        unsafe { result::launch_kernel(kernel, grid, block, 0, lane.stream, &mut list) }
            .while_doing("starting a kernel")
    }

    /// Until all is done that was started in the lane.
    fn wait(&self, lane: &Lane) -> Result<(), Failure> {
        // SAFETY: the event and the stream live as long as the lane.
        unsafe { result::event::record(lane.event, lane.stream) }.while_doing("waiting for the card")?;
        let started = Instant::now();
        loop {
            // SAFETY: as above.
            match unsafe { result::event::query(lane.event) } {
                Ok(()) => return Ok(()),
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => {}
                other => return other.while_doing("waiting for the card"),
            }
            if started.elapsed() > self.patience {
                return Err(Failure::Hangs(self.patience));
            }
            std::thread::sleep(ASK);
        }
    }

    /// Copies rows by way of memory that the card can read while others compute.
    fn bring(&self, lane: &mut Lane, batch: RowBatch<'_>, tile: &Tile) -> Result<(), Failure> {
        let ends: Vec<u8> = batch.output_ends.iter().flat_map(|end| end.to_le_bytes()).collect();
        let columns = [
            (&tile.points, batch.points.as_flattened()),
            (&tile.ends, &ends),
            (&tile.outputs, batch.outputs.as_flattened()),
        ];
        // What was started before may still read it.
        self.wait(lane)?;
        lane.stage.fill(&self.context, columns.iter().map(|(_, data)| *data))?;
        let mut from = 0;
        for (memory, data) in columns {
            memory.write_later(&lane.stage, from, data.len(), lane.stream)?;
            from += data.len();
        }
        Ok(())
    }
}

impl Tile {
    fn new(context: &Arc<Context>, batch: Option<RowBatch<'_>>) -> Result<Self, Failure> {
        let (rows, outputs) = batch.map_or((0, 0), |batch| (batch.len(), batch.outputs.len()));
        Ok(Self {
            points: Memory::new(context, rows * 64)?,
            ends: Memory::new(context, rows * 4)?,
            outputs: Memory::new(context, outputs * 8)?,
            outputs_base: batch.map_or(0, |batch| batch.outputs_base),
        })
    }
}

impl device::Device for Cuda {
    type Keys = Keys;
    type Tile = Tile;
    type Lane = Lane;

    fn max_rows(&self) -> usize {
        MAX_ROWS
    }

    fn budget(&self) -> u64 {
        self.budget
    }

    fn lane(&self) -> Result<Lane, Failure> {
        self.context.enter()?;
        let context = &self.context;
        let (rows, sums) = (Tile::new(context, None)?, Memory::secret(context, 0)?);
        let (products, reports) = (Memory::secret(context, 0)?, Memory::secret(context, 0)?);
        let (stage, few) = (Pinned::new(context, 0)?, Pinned::new(context, COUNT + 12 * FEW)?);
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = result::event::create(flags).while_doing("making an event")?;
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = result::stream::create(kind).while_doing("making a stream")?;
        Ok(Lane { context: Arc::clone(context), stream, event, stage, rows, sums, products, reports, few })
    }

    fn load(&self, keys: &[DeviceKey]) -> Result<Keys, Failure> {
        self.context.enter()?;
        let load = |key: &DeviceKey| {
            Ok(Key {
                schedule: Memory::holding_secret(&self.context, &key.schedule)?,
                top: Memory::holding_secret(&self.context, key.top.as_flattened())?,
                labels: Memory::holding_secret(&self.context, key.labels.as_flattened())?,
                operations: key.schedule.len() as u32,
            })
        };
        Ok(Keys(keys.iter().map(load).collect::<Result<_, Failure>>()?))
    }

    fn unload(&self, keys: Keys) -> Result<(), Failure> {
        self.context.enter()?;
        keys.0.iter().flat_map(|key| [&key.schedule, &key.top, &key.labels]).try_for_each(Memory::overwrite)
    }

    fn upload(&self, lane: &mut Lane, batch: RowBatch<'_>) -> Result<Tile, Failure> {
        self.context.enter()?;
        let tile = Tile::new(&self.context, Some(batch))?;
        self.bring(lane, batch, &tile)?;
        // The other lane may use it at once.
        self.wait(lane)?;
        Ok(tile)
    }

    fn begin(&self, lane: &mut Lane, part: &Part<'_, Tile>, labels: u32) -> Result<(), Failure> {
        self.context.enter()?;
        let rows = part.batch.len();
        if part.tile.is_none() {
            lane.rows.points.grow(rows * 64)?;
            lane.rows.ends.grow(rows * 4)?;
            lane.rows.outputs.grow(part.batch.outputs.len() * 8)?;
            lane.rows.outputs_base = part.batch.outputs_base;
            let own = std::mem::replace(&mut lane.rows, Tile::new(&self.context, None)?);
            let brought = self.bring(lane, part.batch, &own);
            lane.rows = own;
            brought?;
        }
        lane.sums.grow(rows * 96)?;
        lane.products.grow(rows * 32)?;
        lane.reports.grow(COUNT + 12 * report_room(rows, labels).max(FEW))
    }

    fn step(
        &self,
        lane: &mut Lane,
        part: &Part<'_, Tile>,
        keys: &Keys,
        step: Step,
    ) -> Result<Vec<[u32; 3]>, Failure> {
        self.context.enter()?;
        let key = keys.0.get(step.key as usize).ok_or(Failure::Nonsense)?;
        let rows = u32::try_from(part.batch.len()).map_err(|_| Failure::Nonsense)?;
        let room = report_room(part.batch.len(), step.labels);
        let threads = rows.div_ceil(ROWS_PER_THREAD);
        let (tile, before) = part.tile.unwrap_or((&lane.rows, 0));
        let outputs_before = u64::from(part.batch.outputs_base - tile.outputs_base);
        let mut arguments = Arguments {
            points: tile.points.at() + 64 * u64::from(before),
            output_ends: tile.ends.at() + 4 * u64::from(before),
            outputs: tile.outputs.at() + 8 * outputs_before,
            outputs_base: part.batch.outputs_base,
            rows,
            // Whole blocks, as many as are started.
            threads: threads.next_multiple_of(BLOCK),
            schedule: key.schedule.at(),
            top: key.top.at(),
            labels: key.labels.at() + 64 * u64::from(step.first_label),
            operations: key.operations,
            label_count: step.labels,
            key: step.key,
            table: self.table.at(),
            sums: lane.sums.at(),
            products: lane.products.at(),
            reports: lane.reports.at() + COUNT as u64,
            report_count: lane.reports.at(),
            report_room: u32::try_from(room).unwrap_or(u32::MAX),
        };
        lane.reports.clear_later(COUNT, lane.stream)?;
        if step.compute {
            self.launch(lane, self.ladder, rows, &mut arguments)?;
            self.launch(lane, self.comb, threads, &mut arguments)?;
        }
        self.launch(lane, self.matching, threads, &mut arguments)?;
        let stream = lane.stream;
        lane.reports.read_later(&mut lane.few, COUNT + 12 * FEW, stream)?;
        self.wait(lane)?;
        let count = lane.few.words(1)[0] as usize;
        if count > room {
            return Err(Failure::Nonsense);
        }
        if count > FEW {
            let mut all = Pinned::new(&self.context, COUNT + 12 * count)?;
            lane.reports.read_later(&mut all, COUNT + 12 * count, stream)?;
            self.wait(lane)?;
            return Ok(reports(&all, count));
        }
        Ok(reports(&lane.few, count))
    }

    fn wipe(&self, lane: &mut Lane) -> Result<(), Failure> {
        self.context.enter()?;
        lane.few.overwrite();
        [&lane.sums, &lane.products, &lane.reports].into_iter().try_for_each(Memory::overwrite)?;
        result::ctx::synchronize().while_doing("waiting for the card")
    }

    fn abandon(&self) {
        self.context.abandoned.store(true, Ordering::Relaxed);
    }
}

fn reports(read: &Pinned, count: usize) -> Vec<[u32; 3]> {
    let words = read.words(COUNT / 4 + 3 * count);
    words[COUNT / 4..].as_chunks().0.to_vec()
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.module.is_null()
            || self.context.abandoned.load(Ordering::Relaxed)
            || self.context.enter().is_err()
        {
            return;
        }
        // SAFETY: it was loaded in this context, and no kernel of it runs: every step waits for its kernels.
        if let Err(error) = unsafe { result::module::unload(self.module) } {
            tracing::debug!("unloading the kernels: error {}", error.0 as u32);
        }
    }
}

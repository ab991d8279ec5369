//! One card: its context in the driver, the kernels, memory, and running them.

use std::ffi::{CString, c_void};
use std::mem::size_of_val;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use peregrine_kernels::gpu::{DeviceKey, MAX_LABELS, PTX, generator_table};

use super::super::{Candidate, RowBatch};

/// Threads of a block, as the kernels are compiled for.
const BLOCK: u32 = 128;
/// Rows of a thread in the steps that share an inversion.
const ROWS_PER_THREAD: u32 = 8;
/// Slot of a report that says that the row has to be done otherwise.
const REDO: u32 = u32::MAX;

/// Why a card can't be used, or not any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// No library of the driver.
    #[error("there is no NVIDIA driver (libcuda) on this machine")]
    NoDriver,
    /// The library is there, but not what it should be.
    #[error("the NVIDIA driver is too old: it lacks a function that is needed")]
    OldDriver,
    /// No card, or none of this number.
    #[error("the NVIDIA driver finds {0} cards")]
    NoCard(i32),
    /// Whatever the driver says.
    #[error("{what}: {error}")]
    Driver { what: &'static str, error: String },
    /// Results that can't be.
    #[error("its answers contradict themselves")]
    Nonsense,
}

trait Context<T> {
    fn while_doing(self, what: &'static str) -> Result<T, Failure>;
}

impl<T> Context<T> for Result<T, DriverError> {
    fn while_doing(self, what: &'static str) -> Result<T, Failure> {
        // The text comes from the driver, too.
        self.map_err(|error| Failure::Driver { what, error: format!("{error:?}") })
    }
}

/// Looks for the driver. The library panics where it finds none, and where a function is missing.
pub(super) fn with_driver<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // SAFETY: loading a library runs its initialisers; this is the system's driver, found where the system looks for it.
    if !unsafe { sys::is_culib_present() } {
        return Err(Failure::NoDriver);
    }
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failure::OldDriver))
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

/// Memory on the card.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    at: sys::CUdeviceptr,
    bytes: usize,
}

impl Memory {
    /// The card's context must be current, here and below.
    fn new(bytes: usize) -> Result<Self, Failure> {
        // SAFETY: a context is current.
        let at = unsafe { result::malloc_sync(bytes.max(16)) }.while_doing("allocating memory")?;
        Ok(Self { at, bytes: bytes.max(16) })
    }

    fn holding<T: Copy>(data: &[T]) -> Result<Self, Failure> {
        let memory = Self::new(size_of_val(data))?;
        memory.write(data)?;
        Ok(memory)
    }

    fn write<T: Copy>(&self, data: &[T]) -> Result<(), Failure> {
        if size_of_val(data) > self.bytes {
            return Err(Failure::Nonsense);
        }
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: the memory is ours and large enough, and the call returns when the data is copied.
        unsafe { result::memcpy_htod_sync(self.at, data) }.while_doing("copying to the card")
    }

    fn read(&self, data: &mut [u32]) -> Result<(), Failure> {
        if size_of_val(data) > self.bytes {
            return Err(Failure::Nonsense);
        }
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: as above; every bit pattern is a number.
        unsafe { result::memcpy_dtoh_sync(data, self.at) }.while_doing("copying from the card")
    }

    fn overwrite(&self) -> Result<(), Failure> {
        // SAFETY: the memory is ours and has so many bytes.
        unsafe { result::memset_d8_sync(self.at, 0, self.bytes) }.while_doing("overwriting memory")
    }

    fn free(self) -> Result<(), Failure> {
        // SAFETY: it was allocated here and isn't used any more: whoever calls this drops it.
        unsafe { result::free_sync(self.at) }.while_doing("freeing memory")
    }

    /// Makes room for so many bytes; what was there is lost.
    fn grow(&mut self, bytes: usize) -> Result<(), Failure> {
        if self.bytes < bytes {
            if self.bytes > 0 {
                self.overwrite()?;
                std::mem::take(self).free()?;
            }
            *self = Self::new(bytes)?;
        }
        Ok(())
    }
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

/// Keys on the card.
pub(super) struct Loaded {
    /// Which opening of the card they belong to.
    opening: u64,
    keys: Vec<LoadedKey>,
}

struct LoadedKey {
    schedule: Memory,
    top: Memory,
    labels: Memory,
    operations: u32,
    label_count: usize,
}

/// Memory for rows and what is computed for them.
#[derive(Default)]
struct Scratch {
    points: Memory,
    output_ends: Memory,
    outputs: Memory,
    sums: Memory,
    products: Memory,
    reports: Memory,
    report_count: Memory,
}

impl Scratch {
    /// What comes from keys.
    fn secret(&self) -> [Memory; 3] {
        [self.sums, self.products, self.reports]
    }

    fn all(&self) -> [Memory; 7] {
        [
            self.points,
            self.output_ends,
            self.outputs,
            self.sums,
            self.products,
            self.reports,
            self.report_count,
        ]
    }
}

/// A card that is open.
pub(super) struct Card {
    device: sys::CUdevice,
    context: sys::CUcontext,
    module: sys::CUmodule,
    ladder: sys::CUfunction,
    comb: sys::CUfunction,
    matching: sys::CUfunction,
    table: Memory,
    scratch: Scratch,
    /// Keys that are on the card.
    secrets: Vec<Memory>,
    opening: u64,
}

// SAFETY: the driver's handles may be used by any thread in which the context is current, which every method sees to; and a
// card is used by one thread at a time, since using it takes `&mut`.
unsafe impl Send for Card {}

impl Card {
    /// Opens a card, loads the kernels, and fills their table.
    pub(super) fn open(number: i32) -> Result<Self, Failure> {
        with_driver(|| Self::open_present(number))
    }

    fn open_present(number: i32) -> Result<Self, Failure> {
        static OPENINGS: AtomicU64 = AtomicU64::new(0);
        result::init().while_doing("starting the driver")?;
        let count = result::device::get_count().while_doing("counting cards")?;
        if number >= count {
            return Err(Failure::NoCard(count));
        }
        let device = result::device::get(number).while_doing("finding the card")?;
        // SAFETY: the device comes from the driver; the context is released when the card is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.while_doing("making a context")?;
        let mut card = Self {
            device,
            context,
            module: std::ptr::null_mut(),
            ladder: std::ptr::null_mut(),
            comb: std::ptr::null_mut(),
            matching: std::ptr::null_mut(),
            table: Memory::default(),
            scratch: Scratch::default(),
            secrets: Vec::new(),
            opening: OPENINGS.fetch_add(1, Ordering::Relaxed),
        };
        card.enter()?;
        let ptx = CString::new(PTX).map_err(|_| Failure::Nonsense)?;
        // SAFETY: the image is PTX, ends with a zero, and is only read during the call.
        card.module =
            unsafe { result::module::load_data(ptx.as_ptr().cast()) }.while_doing("loading the kernels")?;
        let module = card.module;
        let function = |name: &str| {
            let name = CString::new(name).map_err(|_| Failure::Nonsense)?;
            // SAFETY: the module was just loaded.
            unsafe { result::module::get_function(module, name) }.while_doing("finding a kernel")
        };
        card.ladder = function("peregrine_ladder")?;
        card.comb = function("peregrine_comb")?;
        card.matching = function("peregrine_match")?;
        let table: Vec<[u8; 64]> = generator_table().collect();
        card.table = Memory::holding(&table)?;
        Ok(card)
    }

    /// Makes the context current in this thread.
    fn enter(&self) -> Result<(), Failure> {
        // SAFETY: the context is held until the card is dropped.
        unsafe { result::ctx::set_current(self.context) }.while_doing("using the context")
    }

    /// Whether these keys are on the card.
    pub(super) fn holds(&self, loaded: &Loaded) -> bool {
        loaded.opening == self.opening
    }

    pub(super) fn load(&mut self, keys: &[DeviceKey]) -> Result<Loaded, Failure> {
        self.enter()?;
        let mut hold = |memory: Result<Memory, Failure>| {
            let memory = memory?;
            self.secrets.push(memory);
            Ok::<_, Failure>(memory)
        };
        let load = |key: &DeviceKey| {
            Ok(LoadedKey {
                schedule: hold(Memory::holding(&key.schedule))?,
                top: hold(Memory::holding(&key.top))?,
                labels: hold(Memory::holding(&key.labels))?,
                operations: key.schedule.len() as u32,
                label_count: key.labels.len(),
            })
        };
        // If that fails the context goes, and the memory with it.
        let keys = keys.iter().map(load).collect::<Result<_, Failure>>()?;
        Ok(Loaded { opening: self.opening, keys })
    }

    /// Overwrites everything that comes from the keys.
    pub(super) fn unload(&mut self, loaded: Loaded) -> Result<(), Failure> {
        self.enter()?;
        for key in loaded.keys {
            for memory in [key.schedule, key.top, key.labels] {
                memory.overwrite()?;
                self.secrets.retain(|secret| secret.at != memory.at);
                memory.free()?;
            }
        }
        for memory in self.scratch.secret() {
            if memory.bytes > 0 {
                memory.overwrite()?;
            }
        }
        self.synchronize()
    }

    fn synchronize(&self) -> Result<(), Failure> {
        result::ctx::synchronize().while_doing("waiting for the card")
    }

    fn launch(
        &self,
        kernel: sys::CUfunction,
        threads: u32,
        arguments: &mut Arguments,
    ) -> Result<(), Failure> {
        let blocks = threads.div_ceil(BLOCK);
        let mut list = [std::ptr::from_mut(arguments).cast::<c_void>()];
        let (grid, block) = ((blocks, 1, 1), (BLOCK, 1, 1));
        // SAFETY: the kernels take one argument, the structure that this one is laid out like. Its pointers are memory of this
        // card, as large as its counts say, which lives until the kernels are done: all callers wait for that.
        unsafe { result::launch_kernel(kernel, grid, block, 0, std::ptr::null_mut(), &mut list) }
            .while_doing("starting a kernel")
    }

    /// Candidates, and rows that have to be done otherwise (in any order, and some twice).
    pub(super) fn scan(
        &mut self,
        loaded: &Loaded,
        batch: RowBatch<'_>,
    ) -> Result<(Vec<Candidate>, Vec<u32>), Failure> {
        self.enter()?;
        let rows = batch.len();
        let count = u32::try_from(rows).map_err(|_| Failure::Nonsense)?;
        // A row reports every slot at most once, and that it has to be done otherwise at most twice.
        let labels = loaded.keys.iter().map(|key| key.label_count.min(MAX_LABELS)).max().unwrap_or(0);
        let room = rows * (labels + 3);
        let s = &mut self.scratch;
        s.points.grow(rows * 64)?;
        s.output_ends.grow(rows * 4)?;
        s.outputs.grow(batch.outputs.len() * 8)?;
        s.sums.grow(rows * 96)?;
        s.products.grow(rows * 32)?;
        s.reports.grow(room * 12)?;
        s.report_count.grow(4)?;
        s.points.write(batch.points)?;
        s.output_ends.write(batch.output_ends)?;
        s.outputs.write(batch.outputs)?;
        let threads = count.div_ceil(ROWS_PER_THREAD);
        let (mut found, mut redo) = (Vec::new(), Vec::new());
        for (number, key) in (0..).zip(&loaded.keys) {
            let mut arguments = Arguments {
                points: self.scratch.points.at,
                output_ends: self.scratch.output_ends.at,
                outputs: self.scratch.outputs.at,
                outputs_base: batch.outputs_base,
                rows: count,
                // Whole blocks, as many as are started.
                threads: threads.next_multiple_of(BLOCK),
                schedule: key.schedule.at,
                top: key.top.at,
                labels: key.labels.at,
                operations: key.operations,
                label_count: 0,
                key: number,
                table: self.table.at,
                sums: self.scratch.sums.at,
                products: self.scratch.products.at,
                reports: self.scratch.reports.at,
                report_count: self.scratch.report_count.at,
                report_room: u32::try_from(room).unwrap_or(u32::MAX),
            };
            self.scratch.report_count.write(&[0u32])?;
            self.launch(self.ladder, count, &mut arguments)?;
            self.launch(self.comb, threads, &mut arguments)?;
            // So many labels at once; without any, once.
            for first in (0..key.label_count.max(1)).step_by(MAX_LABELS) {
                let labels = key.label_count.saturating_sub(first).min(MAX_LABELS);
                arguments.labels = key.labels.at + 64 * first as u64;
                arguments.label_count = labels as u32;
                self.launch(self.matching, threads, &mut arguments)?;
                self.synchronize()?;
                for [row, target, slot] in self.reports(room)? {
                    if row >= count || target != number || (slot != REDO && slot as usize > labels) {
                        return Err(Failure::Nonsense);
                    }
                    match slot {
                        REDO => redo.push(row),
                        // Without a label it is looked for every time.
                        0 if first > 0 => {}
                        0 => found.push(Candidate { row, target, slot }),
                        slot => found.push(Candidate { row, target, slot: slot + first as u32 }),
                    }
                }
                self.scratch.report_count.write(&[0u32])?;
            }
        }
        Ok((found, redo))
    }

    fn reports(&self, room: usize) -> Result<Vec<[u32; 3]>, Failure> {
        let mut count = [0];
        self.scratch.report_count.read(&mut count)?;
        let count = count[0] as usize;
        if count > room {
            return Err(Failure::Nonsense);
        }
        let mut words = vec![0; 3 * count];
        self.scratch.reports.read(&mut words)?;
        Ok(words.as_chunks().0.to_vec())
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // After a failure nothing of this may work; then the context's memory goes with the context.
        let mut close = || -> Result<(), Failure> {
            self.enter()?;
            for memory in self.scratch.secret().iter().chain(&self.secrets) {
                if memory.bytes > 0 {
                    memory.overwrite()?;
                }
            }
            for memory in self.scratch.all().into_iter().chain([self.table]).chain(self.secrets.drain(..)) {
                if memory.bytes > 0 {
                    memory.free()?;
                }
            }
            if !self.module.is_null() {
                // SAFETY: it was loaded in this context, and no kernel of it runs: every scan waits for its kernels.
                unsafe { result::module::unload(self.module) }.while_doing("unloading the kernels")?;
            }
            Ok(())
        };
        if let Err(failure) = close() {
            tracing::debug!("closing the graphics card: {failure}");
        }
        // SAFETY: it was retained once, on opening.
        if let Err(error) = unsafe { result::primary_ctx::release(self.device) } {
            tracing::debug!("releasing the context: error {}", error.0 as u32);
        }
    }
}

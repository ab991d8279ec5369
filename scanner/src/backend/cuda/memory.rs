//! A card's context in the driver, and memory that goes with it.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{result, sys};

use super::super::graphics::device::Failure;
use super::device::Doing;

/// A card's context, which all that lies on the card keeps.
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// The card hangs: no call to the driver would return.
    pub(super) abandoned: AtomicBool,
}

// SAFETY: a context may be made current in any thread, and in several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Makes it current, too.
    pub(super) fn new(device: sys::CUdevice) -> Result<Self, Failure> {
        // SAFETY: the device comes from the driver; the context is released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.while_doing("making a context")?;
        let context = Self { device, context, abandoned: AtomicBool::new(false) };
        context.enter()?;
        Ok(context)
    }

    /// Makes it current in this thread.
    pub(super) fn enter(&self) -> Result<(), Failure> {
        // SAFETY: the context is held until this is dropped.
        unsafe { result::ctx::set_current(self.context) }.while_doing("using the context")
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.abandoned.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: it was retained once.
        if let Err(error) = unsafe { result::primary_ctx::release(self.device) } {
            tracing::debug!("releasing the context: error {}", error.0 as u32);
        }
    }
}

/// Memory on the card. The context has to be current in calls, except for dropping.
pub(super) struct Memory {
    context: Arc<Context>,
    at: sys::CUdeviceptr,
    bytes: usize,
    /// Overwritten before it is given back.
    secret: bool,
}

impl Memory {
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Failure> {
        // Nothing is allocated for nothing.
        let bytes = bytes.max(16);
        // SAFETY: a context is current.
        let at = unsafe { result::malloc_sync(bytes) }.while_doing("allocating memory")?;
        Ok(Self { context: Arc::clone(context), at, bytes, secret: false })
    }

    pub(super) fn secret(context: &Arc<Context>, bytes: usize) -> Result<Self, Failure> {
        let mut memory = Self::new(context, bytes)?;
        memory.secret = true;
        Ok(memory)
    }

    pub(super) fn holding(context: &Arc<Context>, data: &[u8]) -> Result<Self, Failure> {
        let memory = Self::new(context, data.len())?;
        memory.write(data)?;
        Ok(memory)
    }

    pub(super) fn holding_secret(context: &Arc<Context>, data: &[u8]) -> Result<Self, Failure> {
        let memory = Self::secret(context, data.len())?;
        memory.write(data)?;
        Ok(memory)
    }

    /// Where it lies.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    fn has(&self, bytes: usize) -> Result<(), Failure> {
        if bytes > self.bytes { Err(Failure::Nonsense) } else { Ok(()) }
    }

    fn write(&self, data: &[u8]) -> Result<(), Failure> {
        self.has(data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: the memory is ours and large enough, and the call returns when the data is copied.
        unsafe { result::memcpy_htod_sync(self.at, data) }.while_doing("copying to the card")
    }

    /// Starts to copy a part of what is pinned; it must not be changed until the stream was waited for.
    pub(super) fn write_later(
        &self,
        from: &Pinned,
        first: usize,
        bytes: usize,
        stream: sys::CUstream,
    ) -> Result<(), Failure> {
        self.has(bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let data = &from.bytes()[first..first + bytes];
        // SAFETY: the memory is ours and large enough. The source is pinned and lives as long as the lane, which waits for
        // its stream before it fills it again or ends.
        unsafe { result::memcpy_htod_async(self.at, data, stream) }.while_doing("copying to the card")
    }

    /// Starts to copy so many bytes from the start; they are there when the stream was waited for.
    pub(super) fn read_later(
        &self,
        to: &mut Pinned,
        bytes: usize,
        stream: sys::CUstream,
    ) -> Result<(), Failure> {
        self.has(bytes)?;
        let Some(data) = to.bytes_mut().get_mut(..bytes) else { return Err(Failure::Nonsense) };
        // SAFETY: as for writing; every bit pattern is a byte, and the caller waits before it reads them.
        unsafe { result::memcpy_dtoh_async(data, self.at, stream) }.while_doing("copying from the card")
    }

    /// Starts to fill so many bytes from the start with zeros.
    pub(super) fn clear_later(&self, bytes: usize, stream: sys::CUstream) -> Result<(), Failure> {
        self.has(bytes)?;
        // SAFETY: the memory is ours and has so many bytes.
        unsafe { result::memset_d8_async(self.at, 0, bytes, stream) }.while_doing("overwriting memory")
    }

    pub(super) fn overwrite(&self) -> Result<(), Failure> {
        // SAFETY: the memory is ours and has so many bytes.
        unsafe { result::memset_d8_sync(self.at, 0, self.bytes) }.while_doing("overwriting memory")
    }

    /// Makes room for so many bytes; what was there is lost.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Failure> {
        if self.bytes < bytes {
            let context = Arc::clone(&self.context);
            *self = if self.secret { Self::secret(&context, bytes)? } else { Self::new(&context, bytes)? };
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // After a failure nothing of this may work; then the memory goes with the context.
        if self.context.abandoned.load(Ordering::Relaxed) || self.context.enter().is_err() {
            return;
        }
        let overwritten = if self.secret { self.overwrite() } else { Ok(()) };
        // SAFETY: it was allocated here, and nothing uses it any more: every step waits for its kernels.
        let freed = unsafe { result::free_sync(self.at) }.while_doing("freeing memory");
        if let Err(failure) = overwritten.and(freed) {
            tracing::debug!("{failure}");
        }
    }
}

/// Memory of the host that stays where it is, so that the card reads and writes it by itself.
pub(super) struct Pinned {
    context: Arc<Context>,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory that belongs to this value alone.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Failure> {
        let bytes = bytes.max(16).next_multiple_of(4);
        // SAFETY: a context is current.
        let at: *mut c_void = unsafe { result::malloc_host(bytes, 0) }.while_doing("allocating memory")?;
        let at = NonNull::new(at.cast::<u8>()).ok_or(Failure::Nonsense)?;
        // SAFETY: so many bytes were just allocated there.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Self { context: Arc::clone(context), at, bytes })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes lie there, all written once, and they belong to this value.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }

    /// Puts these one behind the other; makes room for them if there is too little.
    pub(super) fn fill<'a>(
        &mut self,
        context: &Arc<Context>,
        data: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<(), Failure> {
        let bytes = data.clone().map(<[u8]>::len).sum();
        if self.bytes < bytes {
            *self = Self::new(context, bytes)?;
        }
        let mut rest = self.bytes_mut();
        for data in data {
            let (here, behind) = rest.split_at_mut(data.len());
            here.copy_from_slice(data);
            rest = behind;
        }
        Ok(())
    }

    /// The first so many words.
    pub(super) fn words(&self, count: usize) -> Vec<u32> {
        self.bytes().as_chunks::<4>().0.iter().take(count).map(|word| u32::from_le_bytes(*word)).collect()
    }

    pub(super) fn overwrite(&mut self) {
        zeroize::Zeroize::zeroize(self.bytes_mut());
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.abandoned.load(Ordering::Relaxed) {
            return;
        }
        self.overwrite();
        if self.context.enter().is_err() {
            return;
        }
        // SAFETY: it was allocated here, and nothing uses it any more: every step waits for its copies.
        let freed = unsafe { result::free_host(self.at.as_ptr().cast()) };
        if let Err(failure) = freed.while_doing("freeing memory") {
            tracing::debug!("{failure}");
        }
    }
}

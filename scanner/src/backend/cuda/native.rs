//! The kernels compiled for one architecture on this machine, by NVRTC of the CUDA toolkit, instead of by the driver from PTX.

use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;
use peregrine_kernels::gpu::cuda_source;

use super::super::graphics::device::Failure;

fn failed(error: NvrtcError) -> Failure {
    Failure::Driver { what: "compiling the kernels", error: format!("{error:?}") }
}

/// A cubin for an architecture, as in `sm_90`.
pub(super) fn compile(architecture: &str) -> Result<Vec<u8>, Failure> {
    // SAFETY: loading a library runs its initialisers; this is the toolkit's, found where the system looks for it.
    if !unsafe { sys::is_culib_present() } {
        let text = "there is no NVRTC library (libnvrtc, of the CUDA toolkit) on this machine; without --cuda-arch none is needed";
        return Err(Failure::Missing(text.to_owned()));
    }
    // The library's wrapper panics where a function is missing.
    catch_unwind(AssertUnwindSafe(|| compile_present(architecture)))
        .unwrap_or_else(|_| Err(Failure::Missing("the NVRTC library is too old".to_owned())))
}

fn compile_present(architecture: &str) -> Result<Vec<u8>, Failure> {
    let source = CString::new(cuda_source()).map_err(|_| Failure::Nonsense)?;
    let program = result::create_program(&source, Some(c"scan.cu")).map_err(failed)?;
    let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()];
    // SAFETY: the program was just made, and so was the text that it refers to.
    let compiled = unsafe { result::compile_program(program, &options) };
    let cubin = compiled.map_err(|error| {
        // SAFETY: as above.
        let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
        let bytes: Vec<u8> =
            log.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect();
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        let error = if text.is_empty() { format!("{error:?}") } else { text };
        Failure::Driver { what: "compiling the kernels", error }
    });
    let cubin = cubin.and_then(|()| cubin_of(program));
    // SAFETY: nothing refers to it any more.
    unsafe { result::destroy_program(program) }.map_err(failed)?;
    cubin
}

fn cubin_of(program: sys::nvrtcProgram) -> Result<Vec<u8>, Failure> {
    let mut size = 0;
    // SAFETY: the program was compiled, and the size is written to a number of ours.
    unsafe { sys::nvrtcGetCUBINSize(program, &mut size) }.result().map_err(failed)?;
    let mut cubin = vec![0u8; size];
    // SAFETY: as above; there is room for as many bytes as it says.
    unsafe { sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast::<c_char>()) }.result().map_err(failed)?;
    // One for a virtual architecture is empty.
    if cubin.is_empty() {
        Err(Failure::Missing("that isn't an architecture of cards, as sm_90 is".to_owned()))
    } else {
        Ok(cubin)
    }
}

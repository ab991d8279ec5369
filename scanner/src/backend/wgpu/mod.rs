//! The backend for graphics cards of any maker: the kernels of `peregrine-kernels` in WGSL, through Vulkan, Metal, DirectX 12
//! or OpenGL, whichever the machine has. Building needs none of them.

mod device;
mod tuning;

use wgpu::{AdapterInfo, Backend as Api, Backends, DeviceType, Instance, InstanceDescriptor};

use super::graphics::device::{Device, Failure};
use super::graphics::trial;
use super::graphics::{Graphics, MAX_ROWS};
use super::{Backend, BackendError, REST, Selection};
use device::{BUFFERS, Gpu, wide_integers};
use tuning::Tuning;

/// The name that `--backend` takes.
pub const NAME: &str = "wgpu";

/// What is said if there is nothing.
pub const NO_DEVICE: &str =
    "there is no Vulkan, Metal, DirectX 12 or OpenGL driver with a device on this machine";

/// An adapter as it describes itself: a card, or a program that does as if it were one, by way of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// Vulkan, Metal, DirectX 12 or OpenGL.
    pub api: &'static str,
    /// What kind of device, in words.
    pub kind: &'static str,
    /// Its driver and the driver's version, as far as they are told.
    pub driver: String,
    /// Whether the kernels use 64-bit integers there.
    pub wide_integers: bool,
    /// Whether it computes on the processor: slower than the processor's own backends, for tests only.
    pub software: bool,
    /// Why it can't be used.
    pub unusable: Option<String>,
}

/// What is looked at first.
const CARDS: Backends = Backends::VULKAN.union(Backends::METAL).union(Backends::DX12);

fn enumerate(backends: Backends) -> Vec<wgpu::Adapter> {
    let instance =
        Instance::new(InstanceDescriptor { backends, ..InstanceDescriptor::new_without_display_handle() });
    pollster::block_on(instance.enumerate_adapters(backends))
}

/// OpenGL is asked only if there is no card otherwise: its libraries look for a screen, and say so if there is none.
fn found() -> Vec<wgpu::Adapter> {
    let mut adapters = enumerate(CARDS);
    if !adapters.iter().any(|adapter| is_card(&describe(adapter))) {
        adapters.extend(enumerate(Backends::GL));
    }
    adapters
}

fn is_card(adapter: &Adapter) -> bool {
    !adapter.software && adapter.unusable.is_none()
}

/// Whether there is a card, OpenGL left aside.
pub fn has_card() -> bool {
    // Drivers take their time to find nothing, and some complain that there is no screen.
    let impossible = cfg!(target_os = "linux") && !has_device_file();
    !impossible && enumerate(CARDS).iter().any(|adapter| is_card(&describe(adapter)))
}

/// Whether the kernel offers a card to programs: without that no driver finds one.
fn has_device_file() -> bool {
    let dri = std::fs::read_dir("/dev/dri").into_iter().flatten().flatten();
    let mut render = dri.filter(|entry| entry.file_name().to_string_lossy().starts_with("renderD"));
    // Under Windows' own Linux it is called otherwise.
    render.next().is_some()
        || ["/dev/nvidia0", "/dev/dxg", "/dev/kgsl-3d0"]
            .iter()
            .any(|file| std::path::Path::new(file).exists())
}

fn api(info: &AdapterInfo) -> &'static str {
    match info.backend {
        Api::Vulkan => "Vulkan",
        Api::Metal => "Metal",
        Api::Dx12 => "DirectX 12",
        Api::Gl => "OpenGL",
        _ => "another interface",
    }
}

fn describe(adapter: &wgpu::Adapter) -> Adapter {
    let info = adapter.get_info();
    let limits = adapter.limits();
    let unusable = if limits.max_storage_buffers_per_shader_stage < BUFFERS {
        Some(format!(
            "it binds {} buffers at once, and {BUFFERS} are needed",
            limits.max_storage_buffers_per_shader_stage
        ))
    } else if !adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS) {
        Some("it has no compute shaders".to_owned())
    } else {
        None
    };
    Adapter {
        api: api(&info),
        kind: match info.device_type {
            DeviceType::DiscreteGpu => "a card of its own",
            DeviceType::IntegratedGpu => "part of the processor's chip",
            DeviceType::VirtualGpu => "a virtual card",
            DeviceType::Cpu => "a program that computes on the processor",
            DeviceType::Other => "of unknown kind",
        },
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        wide_integers: wide_integers(adapter.features()),
        software: info.device_type == DeviceType::Cpu,
        unusable,
        name: info.name,
    }
}

/// All adapters, in the order in which a [`Selection`] counts them.
pub fn adapters() -> Vec<Adapter> {
    found().iter().map(describe).collect()
}

/// Where a card that is there by way of several interfaces is taken: the first of these.
fn preference(api: &str) -> usize {
    ["Vulkan", "Metal", "DirectX 12", "OpenGL"].iter().position(|known| *known == api).unwrap_or(usize::MAX)
}

/// Which adapters are used: those that are selected, or else all cards, each once; only if there is none, a program.
fn pick(adapters: &[Adapter], selection: &Selection) -> Result<Vec<usize>, String> {
    if !selection.names.is_empty() {
        return selection.pick(adapters.iter().map(|adapter| adapter.name.as_str()));
    }
    let usable = |software: bool| {
        let mut numbers: Vec<usize> = (0..adapters.len())
            .filter(|number| adapters[*number].unusable.is_none() && adapters[*number].software == software)
            .collect();
        numbers.sort_by_key(|number| preference(adapters[*number].api));
        // Two equal cards have one interface; one card with two interfaces counts once.
        let first = numbers.first().map(|number| adapters[*number].api);
        numbers.retain(|number| Some(adapters[*number].api) == first);
        numbers
    };
    let mut numbers = usable(false);
    if numbers.is_empty() {
        numbers = usable(true);
        numbers.truncate(1);
    }
    if numbers.is_empty() {
        return Err(match adapters.iter().find_map(|adapter| adapter.unusable.as_ref()) {
            Some(reason) => reason.clone(),
            None => NO_DEVICE.to_owned(),
        });
    }
    Ok(numbers)
}

/// The adapters that are selected.
///
/// # Errors
/// [`BackendError::Unavailable`] with what is missing.
pub fn choose(selection: &Selection) -> Result<Box<dyn Backend>, BackendError> {
    Ok(Box::new(open(selection)?))
}

/// A program isn't worth it.
fn tune(adapter: &wgpu::Adapter, what: &Adapter, selection: &Selection) -> Result<Tuning, Failure> {
    if what.software {
        return Ok(tuning::PLAIN);
    }
    let device =
        format!("{}, {}, {}, kernels {}", what.name, what.api, what.driver, env!("CARGO_PKG_VERSION"));
    tuning::find(selection.notes.as_deref(), &device, |tuning| {
        let device = Gpu::open(adapter, tuning, selection)?;
        Ok(trial::run(&device, &mut device.lane()?, device.max_rows().min(MAX_ROWS as usize))?.rate)
    })
}

pub(super) fn open(selection: &Selection) -> Result<Graphics<Gpu>, BackendError> {
    let unavailable = |reason| BackendError::Unavailable { name: NAME.to_owned(), reason };
    let adapters = adapters();
    let numbers = pick(&adapters, selection).map_err(unavailable)?;
    let openers = numbers.into_iter().map(|number| {
        let wanted = adapters[number].clone();
        let title = format!("{} by way of {}", wanted.name, wanted.api);
        let selection = selection.clone();
        let opener = move || {
            // Looked for anew: one that was lost has to be.
            let adapters = found();
            let same = |adapter: &&wgpu::Adapter| describe(adapter) == wanted;
            let adapter = adapters.get(number).filter(same).or_else(|| adapters.iter().find(same));
            let adapter = adapter.ok_or_else(|| Failure::Missing("it isn't there any more".to_owned()))?;
            Gpu::open(adapter, tune(adapter, &wanted, &selection)?, &selection)
        };
        (title, Box::new(opener) as Box<dyn Fn() -> _ + Send + Sync>)
    });
    Graphics::new(NAME, openers.collect(), selection.rest.unwrap_or(REST))
}

//! One adapter of Vulkan, Metal, DirectX or OpenGL: its buffers and pipelines, and running them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use peregrine_kernels::gpu::{DeviceKey, generator_table, wgsl};
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, Buffer, BufferDescriptor, BufferUsages, CommandEncoder,
    ComputePipeline, Device, Features, Limits, MapMode, PollType, Queue,
};

use super::super::graphics::device::{self, Failure, Part, ROWS_PER_THREAD, Step, report_room};
use super::super::{PATIENCE, RowBatch, Selection};
use super::tuning::Tuning;

/// Buffers that the kernels bind.
pub(super) const BUFFERS: u32 = 7;
/// Bytes of `scratch` for a row.
const SCRATCH: u64 = 128;
/// Bytes of `Scan` in `scan.wgsl`, rounded up to what a uniform buffer has to have.
const PARAMETERS: u64 = 48;
/// Reports that are read at once; more are hardly ever there.
const FEW: u64 = 64;

/// Bytes of rows on an adapter: they don't tell how much memory they have.
const DEFAULT_BUDGET: u64 = 2 << 30;

pub(in super::super) struct Gpu {
    device: Device,
    queue: Queue,
    ladder: ComputePipeline,
    comb: ComputePipeline,
    compare: ComputePipeline,
    generator: Buffer,
    group: u32,
    budget: u64,
    patience: Duration,
    max_rows: usize,
    trouble: Arc<Mutex<Option<String>>>,
}

/// Keys on the device.
pub(in super::super) struct Keys {
    keys: Vec<Key>,
}

struct Key {
    buffer: Buffer,
    operations: u32,
    /// Words before the top table, and before the labels.
    top: u32,
    labels: u32,
}

/// Rows on the device.
pub(in super::super) struct Tile {
    points: Buffer,
    ends: Buffer,
    outputs: Buffer,
    outputs_base: u32,
}

pub(in super::super) struct Lane {
    parameters: Buffer,
    points: Buffer,
    ends: Buffer,
    outputs: Buffer,
    scratch: Buffer,
    reports: Buffer,
    few: Buffer,
}

/// Which form of the kernels an adapter gets.
pub(super) fn wide_integers(features: Features) -> bool {
    features.contains(Features::SHADER_INT64)
}

fn driver(what: &'static str, error: impl ToString) -> Failure {
    Failure::Driver { what, error: error.to_string() }
}

impl Gpu {
    pub(super) fn open(
        adapter: &wgpu::Adapter,
        tuning: Tuning,
        selection: &Selection,
    ) -> Result<Self, Failure> {
        let wide = wide_integers(adapter.features());
        let limits: Limits = adapter.limits();
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("peregrine"),
            required_features: if wide { Features::SHADER_INT64 } else { Features::empty() },
            required_limits: limits.clone(),
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|error| driver("opening the device", error))?;
        let trouble = Arc::new(Mutex::new(None));
        let note = |trouble: &Arc<Mutex<Option<String>>>, text: String| {
            trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
        };
        device.on_uncaptured_error({
            let trouble = Arc::clone(&trouble);
            Arc::new(move |error: wgpu::Error| note(&trouble, error.to_string()))
        });
        device.set_device_lost_callback({
            let trouble = Arc::clone(&trouble);
            move |reason, text| {
                if reason != wgpu::DeviceLostReason::Destroyed {
                    note(&trouble, format!("the device was lost: {text}"));
                }
            }
        });
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("scan"),
            source: wgpu::ShaderSource::Wgsl(wgsl(wide).into()),
        });
        let layout = bind_group_layout(&device);
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = |entry: &'static str| {
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(entry),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some(entry),
                compilation_options: wgpu::PipelineCompilationOptions {
                    constants: &[("group_size", f64::from(tuning.group))],
                    zero_initialize_workgroup_memory: false,
                },
                cache: None,
            })
        };
        let (ladder, comb, compare) = (pipeline("ladder"), pipeline("comb"), pipeline("compare"));
        let table: Vec<u8> = generator_table().flatten().collect();
        let generator = buffer(&device, table.len() as u64, BufferUsages::STORAGE | BufferUsages::COPY_DST);
        queue.write_buffer(&generator, 0, &table);
        let most = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size) / SCRATCH;
        let gpu = Self {
            device,
            queue,
            ladder,
            comb,
            compare,
            generator,
            group: tuning.group,
            budget: selection.budget.unwrap_or(DEFAULT_BUDGET),
            patience: selection.patience.unwrap_or(PATIENCE),
            max_rows: usize::try_from(most).unwrap_or(usize::MAX),
            trouble,
        };
        gpu.check("making the kernels ready")?;
        Ok(gpu)
    }

    /// What went wrong since the device was opened. Errors don't come back from where they happen.
    fn check(&self, what: &'static str) -> Result<(), Failure> {
        match &*self.trouble.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(driver(what, error)),
            None => Ok(()),
        }
    }

    fn buffer(&self, bytes: u64, usage: BufferUsages) -> Buffer {
        buffer(&self.device, bytes, usage)
    }

    /// Makes room for so many bytes; what was there is lost.
    fn grow(&self, buffer: &mut Buffer, bytes: u64) {
        if buffer.size() < bytes {
            let larger = self.buffer(bytes, buffer.usage());
            self.clear(&[buffer]);
            *buffer = larger;
        }
    }

    fn encoder(&self) -> CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: None })
    }

    fn clear(&self, buffers: &[&Buffer]) {
        let mut encoder = self.encoder();
        for buffer in buffers {
            encoder.clear_buffer(buffer, 0, None);
        }
        self.queue.submit([encoder.finish()]);
    }

    /// Until all that was submitted is done.
    fn wait(&self) -> Result<(), Failure> {
        match self.device.poll(PollType::Wait { submission_index: None, timeout: Some(self.patience) }) {
            Ok(_) => self.check("waiting for the device"),
            Err(wgpu::PollError::Timeout) => Err(Failure::Hangs(self.patience)),
            Err(error) => Err(driver("waiting for the device", error)),
        }
    }

    /// Reads so many bytes from the start of a buffer that can be mapped, once all that was submitted is done.
    fn take(&self, buffer: &Buffer, bytes: u64) -> Result<Vec<u32>, Failure> {
        let slice = buffer.slice(..bytes);
        slice.map_async(MapMode::Read, |_| {});
        self.wait()?;
        let view = slice.get_mapped_range().map_err(|error| driver("reading from the device", error))?;
        let words = view.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        drop(view);
        buffer.unmap();
        Ok(words)
    }

    fn write(&self, buffer: &Buffer, data: &[u8]) {
        // Lengths are multiples of four: all columns are.
        self.queue.write_buffer(buffer, 0, data);
    }

    fn bind(&self, lane: &Lane, part: &Part<'_, Tile>, key: &Key) -> BindGroup {
        let (points, ends, outputs) = match part.tile {
            Some((tile, _)) => (&tile.points, &tile.ends, &tile.outputs),
            None => (&lane.points, &lane.ends, &lane.outputs),
        };
        let buffers = [
            &lane.parameters,
            points,
            ends,
            outputs,
            &key.buffer,
            &self.generator,
            &lane.scratch,
            &lane.reports,
        ];
        let entries: Vec<BindGroupEntry<'_>> = (0..)
            .zip(buffers)
            .map(|(binding, buffer)| BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        self.device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout: &self.ladder.get_bind_group_layout(0),
            entries: &entries,
        })
    }
}

fn buffer(device: &Device, bytes: u64, usage: BufferUsages) -> Buffer {
    let size = bytes.max(16).next_multiple_of(4);
    device.create_buffer(&BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
}

fn bind_group_layout(device: &Device) -> wgpu::BindGroupLayout {
    let entry = |binding, ty| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    };
    let storage = |binding, read_only| entry(binding, wgpu::BufferBindingType::Storage { read_only });
    let mut entries = vec![entry(0, wgpu::BufferBindingType::Uniform)];
    entries.extend((1..=5).map(|binding| storage(binding, true)));
    entries.extend((6..=BUFFERS).map(|binding| storage(binding, false)));
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
}

const READ: BufferUsages = BufferUsages::STORAGE.union(BufferUsages::COPY_DST);
const WRITTEN: BufferUsages = READ.union(BufferUsages::COPY_SRC);

/// Output ends as bytes.
fn ends(batch: RowBatch<'_>) -> Vec<u8> {
    batch.output_ends.iter().flat_map(|end| end.to_le_bytes()).collect()
}

impl device::Device for Gpu {
    type Keys = Keys;
    type Tile = Tile;
    type Lane = Lane;

    fn max_rows(&self) -> usize {
        self.max_rows
    }

    fn budget(&self) -> u64 {
        self.budget
    }

    fn lane(&self) -> Result<Lane, Failure> {
        let lane = Lane {
            parameters: self.buffer(PARAMETERS, BufferUsages::UNIFORM | BufferUsages::COPY_DST),
            points: self.buffer(0, READ),
            ends: self.buffer(0, READ),
            outputs: self.buffer(0, READ),
            scratch: self.buffer(0, WRITTEN),
            reports: self.buffer(4 + 12 * FEW, WRITTEN),
            few: self.buffer(4 + 12 * FEW, BufferUsages::MAP_READ | BufferUsages::COPY_DST),
        };
        self.check("allocating memory")?;
        Ok(lane)
    }

    fn load(&self, keys: &[DeviceKey]) -> Result<Keys, Failure> {
        let load = |key: &DeviceKey| {
            let schedule = key.schedule.len().next_multiple_of(4);
            let bytes = schedule + 64 * (key.top.len() + key.labels.len());
            let buffer = self.buffer(bytes as u64, READ);
            // A buffer of our own on the way there, so that it can be overwritten.
            let stage = self.device.create_buffer(&BufferDescriptor {
                label: None,
                size: buffer.size(),
                usage: BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            });
            let mut view = stage
                .slice(..)
                .get_mapped_range_mut()
                .map_err(|error| driver("writing to the device", error))?;
            let mut fill =
                |from: usize, data: &[u8]| view.slice(from..from + data.len()).copy_from_slice(data);
            fill(0, &key.schedule);
            for (number, point) in key.top.iter().chain(&key.labels).enumerate() {
                fill(schedule + 64 * number, point);
            }
            drop(view);
            stage.unmap();
            let mut encoder = self.encoder();
            encoder.copy_buffer_to_buffer(&stage, 0, &buffer, 0, buffer.size());
            self.queue.submit([encoder.finish()]);
            let all = stage.slice(..);
            all.map_async(MapMode::Write, |_| {});
            self.wait()?;
            let mut view = all.get_mapped_range_mut().map_err(|error| driver("overwriting memory", error))?;
            view.copy_from_slice(&vec![0; bytes]);
            drop(view);
            stage.unmap();
            Ok(Key {
                buffer,
                operations: key.schedule.len() as u32,
                top: schedule as u32 / 4,
                labels: (schedule + 64 * key.top.len()) as u32 / 4,
            })
        };
        let keys = keys.iter().map(load).collect::<Result<_, _>>()?;
        self.check("copying keys to the device")?;
        Ok(Keys { keys })
    }

    fn unload(&self, keys: Keys) -> Result<(), Failure> {
        self.clear(&keys.keys.iter().map(|key| &key.buffer).collect::<Vec<_>>());
        self.wait()
    }

    fn upload(&self, _: &mut Lane, batch: RowBatch<'_>) -> Result<Tile, Failure> {
        // Without room for it an error is told here, not to the handler.
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let tile = Tile {
            points: self.buffer(batch.len() as u64 * 64, READ),
            ends: self.buffer(batch.len() as u64 * 4, READ),
            outputs: self.buffer(batch.outputs.len() as u64 * 8, READ),
            outputs_base: batch.outputs_base,
        };
        if pollster::block_on(scope.pop()).is_some() {
            return Err(Failure::Memory);
        }
        self.write(&tile.points, batch.points.as_flattened());
        self.write(&tile.ends, &ends(batch));
        self.write(&tile.outputs, batch.outputs.as_flattened());
        self.check("copying rows to the device")?;
        Ok(tile)
    }

    fn begin(&self, lane: &mut Lane, part: &Part<'_, Tile>, labels: u32) -> Result<(), Failure> {
        let rows = part.batch.len();
        if part.tile.is_none() {
            self.grow(&mut lane.points, rows as u64 * 64);
            self.grow(&mut lane.ends, rows as u64 * 4);
            self.grow(&mut lane.outputs, part.batch.outputs.len() as u64 * 8);
            self.write(&lane.points, part.batch.points.as_flattened());
            self.write(&lane.ends, &ends(part.batch));
            self.write(&lane.outputs, part.batch.outputs.as_flattened());
        }
        self.grow(&mut lane.scratch, rows as u64 * SCRATCH);
        self.grow(&mut lane.reports, 4 + 12 * report_room(rows, labels) as u64);
        self.check("allocating memory")
    }

    fn step(
        &self,
        lane: &mut Lane,
        part: &Part<'_, Tile>,
        keys: &Keys,
        step: Step,
    ) -> Result<Vec<[u32; 3]>, Failure> {
        let key = keys.keys.get(step.key as usize).ok_or(Failure::Nonsense)?;
        let rows = u32::try_from(part.batch.len()).map_err(|_| Failure::Nonsense)?;
        let room = report_room(part.batch.len(), step.labels);
        let (first, outputs_base) = match part.tile {
            Some((tile, before)) => (before, tile.outputs_base),
            None => (0, part.batch.outputs_base),
        };
        let groups = rows.div_ceil(ROWS_PER_THREAD).div_ceil(self.group);
        let parameters = [
            first,
            rows,
            outputs_base,
            // Whole groups, as many as are started.
            groups * self.group,
            key.operations,
            key.top,
            key.labels + 16 * step.first_label,
            step.labels,
            step.key,
            u32::try_from(room).unwrap_or(u32::MAX),
        ];
        let bytes: Vec<u8> = parameters.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.write(&lane.parameters, &bytes);
        let bound = self.bind(lane, part, key);
        let mut encoder = self.encoder();
        encoder.clear_buffer(&lane.reports, 0, Some(4));
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_bind_group(0, &bound, &[]);
            if step.compute {
                pass.set_pipeline(&self.ladder);
                pass.dispatch_workgroups(rows.div_ceil(self.group), 1, 1);
                pass.set_pipeline(&self.comb);
                pass.dispatch_workgroups(groups, 1, 1);
            }
            pass.set_pipeline(&self.compare);
            pass.dispatch_workgroups(groups, 1, 1);
        }
        encoder.copy_buffer_to_buffer(&lane.reports, 0, &lane.few, 0, lane.few.size());
        self.queue.submit([encoder.finish()]);
        let mut words = self.take(&lane.few, lane.few.size())?;
        let count = words[0] as usize;
        if count > room {
            return Err(Failure::Nonsense);
        }
        if count as u64 > FEW {
            let bytes = 4 + 12 * count as u64;
            let all = self.buffer(bytes, lane.few.usage());
            let mut encoder = self.encoder();
            encoder.copy_buffer_to_buffer(&lane.reports, 0, &all, 0, bytes);
            self.queue.submit([encoder.finish()]);
            words = self.take(&all, bytes)?;
            self.clear(&[&all]);
        }
        Ok(words[1..1 + 3 * count].as_chunks().0.to_vec())
    }

    fn wipe(&self, lane: &mut Lane) -> Result<(), Failure> {
        self.clear(&[&lane.scratch, &lane.reports, &lane.few]);
        self.wait()
    }
}

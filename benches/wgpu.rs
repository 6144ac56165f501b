//! Products on a GPU, in Brigade's tiles and naively, side by side.
//!
//! `cargo bench --features wgpu --bench wgpu [-- WORD..]` prints, for the shapes whose name contains a
//! word, GFLOP/s of the median round on the first adapter that computes and how many times as fast as
//! the naive kernel that is: one thread for each element of the output, in groups of 16 by 16. The
//! kernels take turns, and what they give is compared. Without an adapter it says so and ends.

#![allow(clippy::print_stdout)]

#[allow(dead_code)]
mod measure;

use brigade::DType;
use brigade::gpu::{Lowered, LoweringOptions, Tiling};
use brigade::ops::builder::GraphBuilder;
use brigade::ops::{OpRegistry, infer_graph};
use measure::numbers;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Rounds of each kernel.
const ROUNDS: usize = 5;

/// One thread for each element. The words are m, n, k.
const NAIVE: &str = "
@group(0) @binding(0) var<uniform> p: vec4<u32>;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(16, 16, 1)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.y >= p.x || at.x >= p.y) {
    return;
  }
  var sum = 0.0;
  for (var i = 0u; i < p.z; i++) {
    sum += a[at.y * p.z + i] * b[i * p.y + at.x];
  }
  y[at.y * p.y + at.x] = sum;
}
";

/// The output of a future that waits for nothing, as those of native back ends.
fn now<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
}

/// A kernel with its buffers, ready to run.
struct Launch {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
    output: wgpu::Buffer,
    groups: [u32; 3],
}

impl Gpu {
    /// The first adapter that computes.
    fn open() -> Option<(Self, String)> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle_from_env();
        descriptor.backends &= wgpu::Backends::PRIMARY;
        let instance = wgpu::Instance::new(descriptor);
        let adapter = now(instance.enumerate_adapters(wgpu::Backends::PRIMARY))
            .into_iter()
            .find(|a| a.get_info().device_type != wgpu::DeviceType::Other)?;
        let descriptor = wgpu::DeviceDescriptor {
            required_limits: adapter.limits(),
            ..wgpu::DeviceDescriptor::default()
        };
        let (device, queue) = now(adapter.request_device(&descriptor)).ok()?;
        Some((Self { device, queue }, adapter.get_info().name))
    }

    fn buffer(&self, bytes: usize, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes as u64,
            usage,
            mapped_at_creation: false,
        })
    }

    fn filled(&self, bytes: &[u8], usage: wgpu::BufferUsages) -> wgpu::Buffer {
        let buffer = self.buffer(bytes.len(), usage | wgpu::BufferUsages::COPY_DST);
        self.queue.write_buffer(&buffer, 0, bytes);
        buffer
    }

    fn launch(
        &self,
        text: &str,
        words: &[u32],
        groups: [u32; 3],
        reads: &[&wgpu::Buffer],
        bytes: usize,
    ) -> Launch {
        use wgpu::BufferUsages as Use;
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(text.into()),
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let uniforms = self.filled(bytemuck::cast_slice(words), Use::UNIFORM);
        let output = self.buffer(bytes, Use::STORAGE | Use::COPY_SRC);
        let buffers = [&uniforms].into_iter().chain(reads.iter().copied()).chain([&output]);
        let entries: Vec<wgpu::BindGroupEntry<'_>> = buffers
            .zip(0..)
            .map(|(buffer, binding)| wgpu::BindGroupEntry {
                binding,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        let bindings = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        Launch { pipeline, bindings, output, groups }
    }

    fn wait(&self) {
        self.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device is there");
    }

    /// Seconds of one run.
    fn run(&self, launch: &Launch) -> f64 {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&launch.pipeline);
        pass.set_bind_group(0, &launch.bindings, &[]);
        let [x, y, z] = launch.groups;
        pass.dispatch_workgroups(x, y, z);
        drop(pass);
        let commands = encoder.finish();
        let start = Instant::now();
        self.queue.submit([commands]);
        self.wait();
        start.elapsed().as_secs_f64()
    }

    fn read(&self, launch: &Launch) -> Vec<f32> {
        use wgpu::BufferUsages as Use;
        let size = launch.output.size();
        let bytes = usize::try_from(size).expect("it fits memory");
        let back = self.buffer(bytes, Use::MAP_READ | Use::COPY_DST);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&launch.output, 0, &back, 0, size);
        self.queue.submit([encoder.finish()]);
        back.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("it is read back"));
        self.wait();
        let view = back.get_mapped_range(..).expect("it is mapped");
        bytemuck::pod_collect_to_vec(&view)
    }
}

/// The launch of a product of `m` by `k` with `k` by `n`.
fn lowered(m: usize, k: usize, n: usize, tiling: Tiling) -> brigade::Result<Lowered> {
    let mut g = GraphBuilder::new("product");
    let a = g.input("a", DType::F32, [m.into(), k.into()])?;
    let b = g.input("b", DType::F32, [k.into(), n.into()])?;
    let y = g.matmul(a, b)?;
    let mut graph = g.finish([("y", y)])?;
    let known = infer_graph(&mut graph, &OpRegistry::default())?;
    let options = LoweringOptions { tiling, ..LoweringOptions::default() };
    Lowered::new(&graph, &known, options)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let Some((gpu, name)) = Gpu::open() else {
        println!("no graphics driver was found: nothing is measured");
        return;
    };
    println!("{name}");
    for (m, k, n) in [(128, 384, 1536), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024)] {
        let shape = format!("{m}x{k}x{n}");
        if !words.is_empty() && !words.iter().any(|w| shape.contains(w.as_str())) {
            continue;
        }
        let a = gpu.filled(bytemuck::cast_slice(&numbers(m * k)), wgpu::BufferUsages::STORAGE);
        let b = gpu.filled(bytemuck::cast_slice(&numbers(k * n)), wgpu::BufferUsages::STORAGE);
        let extents = [m, n, k, 0].map(|e| u32::try_from(e).expect("it is small"));
        let over = |e: usize| u32::try_from(e.div_ceil(16)).expect("it is small");
        let groups = [over(n), over(m), 1];
        let bytes = m * n * 4;
        let mut launches = vec![gpu.launch(NAIVE, &extents, groups, &[&a, &b], bytes)];
        for tiling in [Tiling::Registers, Tiling::Groups] {
            let lowered = lowered(m, k, n, tiling).expect("a product is lowered");
            assert_eq!(lowered.launches.len(), 1, "a product is one launch");
            let launch = &lowered.launches[0];
            let text = launch.kernel.wgsl();
            launches.push(gpu.launch(&text, &launch.words, launch.groups, &[&a, &b], bytes));
        }
        let mut seconds = vec![Vec::new(); launches.len()];
        for round in 0..=ROUNDS {
            for (launch, seconds) in launches.iter().zip(&mut seconds) {
                let took = gpu.run(launch);
                // The first round compiles.
                if round > 0 {
                    seconds.push(took);
                }
            }
        }
        let expected = gpu.read(&launches[0]);
        let medians: Vec<f64> = seconds
            .iter_mut()
            .map(|s| {
                s.sort_by(f64::total_cmp);
                s[s.len() / 2]
            })
            .collect();
        let flops = 2.0 * (m * k * n) as f64;
        for ((kind, launch), median) in
            ["naive", "tiles in registers", "tiles in groups"].iter().zip(&launches).zip(&medians)
        {
            let made = gpu.read(launch);
            // A NaN is not near anything.
            let far = made
                .iter()
                .zip(&expected)
                .find(|(a, b)| (*a - *b).abs().is_nan() || (*a - *b).abs() >= 1e-3);
            assert_eq!(far, None, "{shape} {kind}: beside the naive kernel");
            let (rate, times) = (flops / median / 1e9, medians[0] / median);
            println!("{shape:15} {kind:20} {rate:8.2} GFLOP/s {times:6.1} x");
        }
    }
}

//! `brigade kernels`: compile what a model runs on a GPU that is not here.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args as ClapArgs;
use serde_json::json;

use super::console::Console;
use super::failure::Outcome;
use super::items::Source;
use super::placing::{Keep, Placing};
use crate::device::{CudaKernels, cuda_capability};
use crate::error::{Result, bail};

/// Arguments of `kernels`.
#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("items").required(true).args(["input", "generate"]))]
pub(super) struct Args {
    /// The model file
    model: PathBuf,
    /// The GPU's compute capability, such as 9.0 or sm_90
    #[arg(long, value_name = "M.N", value_parser = cuda_capability)]
    gpu: (u32, u32),
    /// Keep the compiled kernels in this folder, for BRIGADE_CUDA_CACHE of a host with that GPU
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    placing: Placing,
}

/// Most GPUs that a placement names.
const MOST_GPUS: u32 = 8;

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    let mut placing = args.placing.clone();
    let mut devices = Vec::new();
    for number in 0..MOST_GPUS {
        let ops = placing.registry.ops().clone();
        let device = Arc::new(CudaKernels::new(number, args.gpu, &args.output, ops)?);
        placing.registry = placing.registry.with_device(Arc::clone(&device) as _);
        devices.push(device);
    }
    let mut placed = placing.load(&args.model, console)?;
    let (items, notices) = args.source.open(&placed)?;
    for notice in notices {
        console.notice(&format!("notice: {notice}"));
    }
    let executable = placed.sequential(Keep::Graph)?;
    for item in items.iter() {
        let inputs = item.inputs.map_err(|e| e.within(&format!("item `{}`", item.stem)))?;
        executable.run_values(inputs)?;
    }
    let count = met(&devices)?;
    let (major, minor) = args.gpu;
    let folder = args.output.display();
    let document = json!({
        "model": args.model.display().to_string(),
        "gpu": format!("sm_{major}{minor}"),
        "folder": folder.to_string(),
        "kernels": count,
    });
    console.result(&document, &format!("{count} kernels for sm_{major}{minor} in {folder}\n"))
}

/// How many kernels the devices met.
fn met(devices: &[Arc<CudaKernels>]) -> Result<usize> {
    let count = devices.iter().map(|d| d.count()).max().unwrap_or(0);
    if count == 0 {
        bail!(Usage, "nothing of the model is placed on a `cuda` device; say --device cuda:0")
    }
    Ok(count)
}

//! `brigade stage`: a stage spec, readable; and the specs of a plan's segments.

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;

use super::console::Console;
use super::failure::Outcome;
use super::placing::Placed;
use crate::cluster::{MAX_SPEC_BYTES, StageSpec};
use crate::device::DeviceId;
use crate::error::{Result, err};
use crate::import;
use crate::ops::Precision;

/// Arguments of `stage`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// A stage spec, as `brigade plan MODEL --stages K --specs DIR` writes them
    file: PathBuf,
}

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    let spec = read(&args.file).map_err(|e| e.within(&format!("`{}`", args.file.display())))?;
    // A spec goes to any worker: it names a device there, and not whose.
    let mut text = match spec.wanted_device() {
        "auto" => format!("stage `{}` for the device that its worker chooses\n", spec.name()),
        device => {
            format!("stage `{}` for {device} of the worker that it is shipped to\n", spec.name())
        }
    };
    if let Some(id) = spec.wanted_stage() {
        text += &format!("fixed datapath `{id}`\n");
    }
    let precision = spec.compile_options().precision;
    if precision != Precision::F32 {
        text += &format!("products in {precision}\n");
    }
    text += &format!("sha256 {}\n", spec.hash()?);
    for (what, all) in [("input", spec.inputs()), ("output", spec.outputs())] {
        for (name, fact) in all {
            text += &format!("{what} `{name}` {fact}\n");
        }
    }
    for (op, count) in spec.graph().op_counts() {
        text += &format!("{count:5} {op}\n");
    }
    for weight in spec.weights().iter().chain(spec.constants()) {
        text += &format!("weight `{}` {}\n", weight.name, weight.uri);
    }
    console.result(&spec, &text)
}

fn read(path: &Path) -> Result<StageSpec> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    import::open_file(path)?.take(MAX_SPEC_BYTES + 1).read_to_end(&mut bytes)?;
    StageSpec::decode(&bytes)
}

/// Writes the spec of each segment of a placed model into a folder, as `stage-N.brgs`; gives each file
/// with the device that the placement has for it.
///
/// # Errors
/// If a segment holds weights that lie in no file below `roots`, or a file cannot be written.
pub(super) fn write(
    placed: &Placed,
    roots: &[PathBuf],
    folder: &Path,
) -> Result<Vec<(PathBuf, DeviceId)>> {
    std::fs::create_dir_all(folder)
        .map_err(|e| err!(Io, "cannot make the folder `{}`", folder.display()).with_source(e))?;
    let mut written = Vec::new();
    for segment in placed.split()?.segments() {
        let mut options = placed.options_of(&segment.device);
        options.stage_id.clone_from(&segment.stage_id);
        let spec = StageSpec::of_segment(segment.graph.clone(), &[], &options, roots)
            .and_then(|spec| spec.device_of_worker(&segment.device).encode())
            .map_err(|e| e.within(&format!("segment {}", segment.index)))?;
        let path = folder.join(format!("stage-{}.brgs", segment.index));
        std::fs::write(&path, spec)
            .map_err(|e| err!(Io, "cannot write `{}`", path.display()).with_source(e))?;
        written.push((path, segment.device.clone()));
    }
    Ok(written)
}

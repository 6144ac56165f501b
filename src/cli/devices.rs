//! `brigade devices`: what there is to compute on.

use clap::Args as ClapArgs;
use serde::Serialize;

use super::console::Console;
use super::failure::Outcome;
use super::table::{bytes, table};
use crate::bench::Peaks;
use crate::device::{DeviceInfo, FAMILIES, LEFT_OUT};
use crate::registry::Registry;

/// Arguments of `devices`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Measure the peaks of one CPU thread: multiply-adds in registers, and reading memory
    #[arg(long)]
    measure: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    device: String,
    summary: &'static str,
    available: bool,
    /// Why it cannot be used here, if so.
    reason: Option<String>,
    info: Option<DeviceInfo>,
}

#[derive(Debug, Serialize)]
struct Document {
    devices: Vec<Row>,
    measured: Option<Peaks>,
}

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    let registry = Registry::default();
    let mut devices = Vec::new();
    for id in registry.devices() {
        let summary = FAMILIES.iter().find(|f| f.kind == id.kind()).map_or("", |f| f.summary);
        let (info, reason) = match registry.device(&id) {
            Ok(device) => match device.probe() {
                Ok(info) => (Some(info), None),
                Err(why) => (None, Some(why.reason)),
            },
            Err(e) => (None, Some(e.message().to_owned())),
        };
        let available = info.is_some();
        devices.push(Row { device: id.to_string(), summary, available, reason, info });
    }
    // Those that are worth most come first, those that cannot be used last.
    devices.sort_by_key(|row| {
        let kind = row.device.split(':').next().unwrap_or("");
        row.info.as_ref().map_or(u8::MAX, |info| info.rank(kind))
    });
    let measured = args.measure.then(|| Peaks::measure(1)).transpose()?;
    let document = Document { devices, measured };
    console.result(&document, &text(&document))
}

fn text(d: &Document) -> String {
    let head = ["device", "lanes", "cores", "memory", "what"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for row in &d.devices {
        rows.push(match (&row.info, &row.reason) {
            (Some(i), _) => vec![
                row.device.clone(),
                i.lanes.to_string(),
                i.cores.map_or_else(|| "-".to_owned(), |n| n.to_string()),
                bytes(i.memory_bytes),
                format!("{}{} {}", software(i), i.name, i.features.join(" ")).trim_end().to_owned(),
            ],
            (None, reason) => {
                let reason = reason.as_deref().unwrap_or("no reason given");
                let dash = || "-".to_owned();
                vec![row.device.clone(), dash(), dash(), dash(), format!("unavailable: {reason}")]
            }
        });
    }
    let mut out = table(&rows);
    for family in FAMILIES {
        out += &format!("{}: {}\n", family.kind, family.summary);
    }
    for (kind, feature) in LEFT_OUT {
        out += &format!("{kind}: not in this build; `--features {feature}` brings it\n");
    }
    if let Some(p) = &d.measured {
        out += &format!(
            "one CPU thread: {:.1} GFLOP/s multiply-add ({}), {:.1} GB/s reading memory\n",
            p.gflops, p.isa, p.read_gb_per_s
        );
    }
    out
}

fn software(info: &DeviceInfo) -> &'static str {
    if info.software { "software, slower than the CPU device: " } else { "" }
}

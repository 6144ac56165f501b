//! `brigade worker`: serves stages of other machines' pipelines.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use serde_json::json;

use super::console::{Console, write_all};
use super::failure::Outcome;
use super::signals::Signals;
use super::workers::{Secured, seconds};
use crate::cluster::Worker;
use crate::device::DeviceId;
use crate::error::{Result, err};
use crate::import::WeightCache;

/// Arguments of `worker`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Where to listen; port 0 takes a free one, which is printed
    #[arg(long, value_name = "HOST:PORT", value_parser = listened)]
    listen: String,
    /// A folder that models and weights are read below, and nowhere else (repeatable)
    #[arg(long, value_name = "DIR", required = true)]
    weights_root: Vec<PathBuf>,
    /// The devices that are offered (all that there are, unless told)
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    device: Vec<DeviceId>,
    /// The worker's name, that of its certificate
    #[arg(long, value_name = "NAME", default_value = "worker")]
    name: String,
    /// The coordinators that may use it, by the names of their certificates (every one that the
    /// authority knows, unless told)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allow: Vec<String>,
    /// The most memory of one coordinator's stages and tensors, such as 8G
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    quota: Option<u64>,
    /// Seconds to finish what is under way after SIGTERM, SIGINT or SIGHUP (unless `nohup` is in front)
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    drain: Duration,
    #[command(flatten)]
    secured: Secured,
}

fn listened(text: &str) -> Result<String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err(err!(Usage, "write it as HOST:PORT, such as 127.0.0.1:7000 or 0.0.0.0:7000")),
    }
}

fn memory(text: &str) -> Result<u64> {
    let units = [("T", 1_u64 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1)];
    let found = units.iter().find_map(|(unit, factor)| {
        let digits = text.strip_suffix(unit)?;
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| digits.parse::<u64>().ok()?.checked_mul(*factor))
    });
    match found {
        Some(Some(bytes)) => Ok(bytes),
        Some(None) => Err(err!(Usage, "it is more than {} bytes, which no machine has", u64::MAX)
            .with_help("leave it out for all of the memory, or say a number such as 8G")),
        None => Err(err!(Usage, "it must be a number of bytes, such as 8G")),
    }
}

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    // It is the name of a place, as others see it.
    DeviceId::cpu(0).at(&args.name)?;
    // From here on a signal ends it in order.
    let mut signals = Signals::new()?;
    let mut weights = WeightCache::new();
    for root in &args.weights_root {
        weights = weights.with_root(root)?;
    }
    let transport = args.secured.open(
        &args.name,
        std::iter::once(args.listen.as_str()),
        Duration::from_secs(5),
    )?;
    let mut worker =
        Worker::new(args.name.as_str()).weights(weights).allow(args.allow.iter().cloned());
    for device in &args.device {
        worker = worker.device(device.clone());
    }
    if let Some(quota) = args.quota {
        worker = worker.quota(quota);
    }
    let serving = worker.serve(transport, &args.listen)?;
    let address = serving.address().to_owned();
    // On a line of its own, at once, so that whoever started it can read the port.
    write_all(format!("listening on {address}\n").as_bytes())?;
    signals.wait()?;
    console.notice("finishing what is under way");
    let stats = serving.stats();
    let clean = serving.drain(args.drain);
    if !clean {
        console.notice("notice: some coordinators were still there at the end");
    }
    let document = json!({
        "address": address, "sessions": stats.sessions, "stages": stats.stages,
        "firings": stats.firings, "weight_bytes_read": stats.weight_bytes_read,
    });
    console.result(&document, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_units() {
        assert_eq!(memory("8G").unwrap(), 8 << 30);
        assert_eq!(memory("512").unwrap(), 512);
        for text in ["", "G", "-1", "+1", "8 G", "8Q"] {
            assert!(memory(text).unwrap_err().message().contains("such as 8G"), "{text}");
        }
        for text in ["99999999999T", "18446744073709551616", "99999999999999999999999G"] {
            assert!(memory(text).unwrap_err().message().contains("no machine has"), "{text}");
        }
    }
}

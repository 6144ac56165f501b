//! A pipeline at full load for a long time: its memory must stay flat, and its count exact.
//!
//! ```sh
//! cargo bench -p brigade-actors --bench soak -- [MINUTES]     # 10 unless said
//! ```
//!
//! Items of 256 KiB are decoded, cut into children, batched, computed and collected by seven actors
//! over two devices; one item in 100 fails, one in 5,000 makes its stage panic. Resident memory is
//! read a hundred times a second. It ends with exit code 1 if the means of the minutes after the
//! first (the tenths of a shorter run) are not within 2 % of each other, or a result was wrong, lost
//! or doubled. The peaks are printed, too: they also tell how many buffers of 256 KiB happened to be
//! alive at once.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::panic)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use brigade_actors::{Batching, ErrorKind, Flow, ItemError, Options, Pipeline, SpawnError};

/// Bytes of an item.
const BYTES: usize = 256 << 10;
/// Children of an item.
const CHILDREN: usize = 4;

fn main() -> ExitCode {
    let minutes = std::env::args().skip(1).find_map(|a| a.parse::<f64>().ok()).unwrap_or(10.0);
    let span = Duration::from_secs_f64(minutes * 60.0);
    let pipeline = match spawn() {
        Ok(pipeline) => pipeline,
        Err(error) => {
            eprintln!("the pipeline could not be spawned: {error}");
            return ExitCode::FAILURE;
        }
    };
    match soak(&pipeline, span) {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("failed: {why}");
            ExitCode::FAILURE
        }
    }
}

/// decode → cut → batch → compute → unbatch → collect, with a check in front.
fn spawn() -> Result<Pipeline<Vec<u8>>, SpawnError> {
    let topology = Flow::source("item")
        .map("check", "cpu:0", |item: Vec<u8>| match number(&item) {
            n if n % 5000 == 4999 => panic!("one item in 5,000"),
            n if n % 100 == 99 => Err(ItemError::failed("one item in 100")),
            _ => Ok(item),
        })
        .map("decode", "cpu:0", |item: Vec<u8>| {
            let n = number(&item);
            Ok(item.iter().map(|b| b.wrapping_add(n as u8)).collect())
        })
        .flat_map("cut", "cpu:0", |item: Vec<u8>| {
            Ok(item.chunks(BYTES / CHILDREN).map(<[u8]>::to_vec).collect())
        })
        .batch("batch", "cpu:1", Batching::up_to(6), |children: Vec<Vec<u8>>| Ok(children.concat()))
        .map("compute", "cpu:1", |batch: Vec<u8>| {
            let sums = batch.chunks(BYTES / CHILDREN).map(checksum);
            Ok(sums.flat_map(u64::to_le_bytes).collect())
        })
        .unbatch("unbatch", "cpu:1", |sums: Vec<u8>, _| {
            Ok(sums.chunks(8).map(<[u8]>::to_vec).collect())
        })
        .collect_values("collect", "cpu:0", |sums: Vec<Vec<u8>>| Ok(sums.concat()))
        .sink("sums")
        .build();
    let options = Options::new()
        .name("soak")
        .in_flight(8)
        .restarts(u32::MAX)
        .restart_backoff(Duration::ZERO)
        .trace(1000);
    Pipeline::spawn(topology.map_err(|e| SpawnError::Options(e.to_string()))?, options)
}

fn soak(pipeline: &Pipeline<Vec<u8>>, span: Duration) -> Result<String, String> {
    // The panics are meant; their messages would fill the terminal.
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    let window = Duration::from_secs(60).min(span / 10);
    let items = (0..).take_while(|_| start.elapsed() < span).map(|n| vec![item(n)]);
    let (mut done, mut failed, mut panicked) = (0_u64, 0_u64, 0_u64);
    let (mut spans, mut next) = (Vec::<Span>::new(), Duration::ZERO);
    for result in pipeline.stream(items) {
        match (result, done) {
            (Ok(sums), n) if sums[0] == expected(n) => {}
            (Ok(_), n) => return Err(format!("item {n} has a wrong result")),
            (Err(error), n) if n % 5000 == 4999 && error.kind() == ErrorKind::Panicked => {
                panicked += 1;
            }
            (Err(error), n) if n % 100 == 99 && error.message().contains("in 100") => failed += 1,
            (Err(error), n) => return Err(format!("item {n} has an unexpected error: {error}")),
        }
        done += 1;
        if start.elapsed() >= next {
            next = start.elapsed() + Duration::from_millis(10);
            let resident = resident_mib().ok_or("resident memory cannot be read here")?;
            let minute = (start.elapsed().as_secs_f64() / window.as_secs_f64()) as usize;
            spans.resize(spans.len().max(minute + 1), Span::default());
            spans[minute].add(resident);
        }
    }
    let stats = pipeline.stats();
    if stats.completed != done || stats.in_flight != 0 {
        return Err(format!("{done} results came, the figures say {}", stats.completed));
    }
    let rate = done as f64 / start.elapsed().as_secs_f64();
    // The last window has just begun when the span ends.
    let whole = spans.get(1..(span.as_secs_f64() / window.as_secs_f64()) as usize).unwrap_or(&[]);
    let least = whole.iter().map(Span::mean).fold(f64::INFINITY, f64::min);
    let most = whole.iter().map(Span::mean).fold(0.0, f64::max);
    let each: Vec<_> = spans.iter().map(|s| format!("{:.2} ({:.2})", s.mean(), s.peak)).collect();
    let summary = format!(
        "{done} items in {:.0} s ({rate:.0}/s), {failed} failed and {panicked} panicked as told; \
         resident memory over {} spans of {:.0} s after the first: means of {least:.2} to {most:.2} \
         MiB ({:+.2} %)\nmeans (and peaks) of all spans, MiB: {}",
        start.elapsed().as_secs_f64(),
        whole.len(),
        window.as_secs_f64(),
        100.0 * (most / least - 1.0),
        each.join(", "),
    );
    if most <= least * 1.02 { Ok(summary) } else { Err(summary) }
}

/// Readings of resident memory, in MiB.
#[derive(Clone, Copy, Default)]
struct Span {
    sum: f64,
    readings: u32,
    peak: f64,
}

impl Span {
    fn add(&mut self, resident: f64) {
        self.sum += resident;
        self.readings += 1;
        self.peak = self.peak.max(resident);
    }

    fn mean(&self) -> f64 {
        self.sum / f64::from(self.readings.max(1))
    }
}

fn item(n: u64) -> Vec<u8> {
    let mut bytes = vec![n as u8; BYTES];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

fn number(item: &[u8]) -> u64 {
    item.first_chunk::<8>().map_or(0, |raw| u64::from_le_bytes(*raw))
}

fn expected(n: u64) -> Vec<u8> {
    let decoded: Vec<u8> = item(n).iter().map(|b| b.wrapping_add(n as u8)).collect();
    decoded.chunks(BYTES / CHILDREN).flat_map(|child| checksum(child).to_le_bytes()).collect()
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}

/// Resident memory of this process.
fn resident_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib / 1024.0)
}

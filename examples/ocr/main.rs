//! Reading text from pictures: three models and the functions between them as one pipeline.
//!
//! A page is decoded, goes through detection, is cut into lines (fan-out), each line is turned upright by a
//! classifier, lines of one width are put together (batches), recognised, cut apart again, and joined
//! into the text of their page. Several pages are on their way at once, and both of the devices that
//! the models are placed on are busy.
//!
//! ```console
//! $ scripts/fetch-models
//! $ cargo run --release --example ocr                      # pages of the models' test case
//! $ cargo run --release --example ocr -- one.png two.jpg   # pages of your own
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program")]

mod picture;
mod reader;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade::check::read_cases;
use brigade::graph::Graph;
use brigade::import;
use brigade::{Error, ErrorKind, Result};

use picture::{Picture, variants};
use reader::{Reader, Token};

/// Pages that are on their way at once.
const IN_FLIGHT: usize = 6;
/// Pages of a run, where none are given.
const PAGES: usize = 24;

fn main() {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if let Err(error) = run(&files) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn run(files: &[PathBuf]) -> Result<()> {
    let models = models()?;
    let load = |id: &str, file: &str| -> Result<Graph> { import::load(models.join(id).join(file)) };
    let reader = Reader::new(
        load("ppocr-det", "PP-OCRv6_det_small.onnx")?,
        load("ppocr-cls", "ch_ppocr_mobile_v2.0_cls_mobile.onnx")?,
        load("ppocr-rec", "PP-OCRv6_rec_small.onnx")?,
    )?;
    let pages = if files.is_empty() { sample(&models)? } else { read(files)? };
    let read = |page: &Arc<[u8]>| reader.read(&Picture::decode(page)?);

    // Once before it counts: working memory is made for each shape that comes.
    let mut expected = Vec::new();
    for page in &pages {
        expected.push(read(page)?);
    }
    for (n, lines) in
        expected.iter().enumerate().take(if files.is_empty() { 4 } else { pages.len() })
    {
        println!("page {n}: {} lines", lines.len());
        lines.iter().for_each(|line| println!("    {line}"));
    }
    let begun = Instant::now();
    for page in &pages {
        read(page)?;
    }
    let sequential = begun.elapsed();

    let pipeline = reader.pipeline(IN_FLIGHT)?;
    let tokens = || pages.iter().map(|page| vec![Token::File(Arc::clone(page))]);
    for result in pipeline.stream(tokens().collect::<Vec<_>>()) {
        result.map_err(|e| Error::new(ErrorKind::Kernel, e.to_string()))?;
    }
    let inputs: Vec<_> = tokens().collect();
    let begun = Instant::now();
    let mut streamed = Vec::new();
    for result in pipeline.stream(inputs) {
        let outputs = result.map_err(|e| Error::new(ErrorKind::Kernel, e.to_string()))?;
        streamed.push(outputs.into_iter().map(Token::into_text).collect::<Result<Vec<_>>>()?);
    }
    let streaming = begun.elapsed();

    for (n, (streamed, expected)) in streamed.iter().zip(&expected).enumerate() {
        if *streamed != [expected.join("\n")] {
            let message = format!("page {n} was read as {streamed:?} and as {expected:?}");
            return Err(Error::new(ErrorKind::Kernel, message));
        }
    }
    println!("streamed = one after the other, on all {} pages", pages.len());
    let rate = |time: Duration| pages.len() as f64 / time.as_secs_f64();
    println!("one after the other  {:6.2} pages/s", rate(sequential));
    println!(
        "streamed             {:6.2} pages/s, {:.2} times as many",
        rate(streaming),
        sequential.as_secs_f64() / streaming.as_secs_f64()
    );
    let stats = pipeline.stats();
    for actor in &stats.actors {
        let busy = actor.busy_ns as f64 / stats.uptime_ns as f64 * 100.0;
        println!("    {:16} {:6} firings, busy {busy:3.0} %", actor.name, actor.items);
    }
    Ok(())
}

/// Pages made of the test case of the detector.
fn sample(models: &Path) -> Result<Vec<Arc<[u8]>>> {
    let cases = read_cases(&models.join("ppocr-det").join("cases"))?;
    let case = cases.iter().find(|case| case.name == "rendered-480x640");
    let none = || Error::new(ErrorKind::Missing, "the test case `rendered-480x640` is not there");
    let page = Picture::of(&case.ok_or_else(none)?.inputs[0].tensor)?;
    variants(&page, PAGES).iter().map(|page| Ok(page.encode()?.into())).collect()
}

fn read(files: &[PathBuf]) -> Result<Vec<Arc<[u8]>>> {
    let unread = |file: &Path, e: std::io::Error| {
        let message = format!("`{}` cannot be read", file.display());
        Error::new(ErrorKind::Io, message).with_source(e)
    };
    files.iter().map(|file| Ok(std::fs::read(file).map_err(|e| unread(file, e))?.into())).collect()
}

/// The folder that `scripts/fetch-models` fills.
fn models() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let folder = std::env::var_os("BRIGADE_MODELS")
        .map(PathBuf::from)
        .or_else(|| cache.map(|cache| cache.join("brigade").join("models")));
    let none = || Error::new(ErrorKind::Missing, "no models here: run scripts/fetch-models");
    folder.filter(|folder| folder.join("ppocr-det").is_dir()).ok_or_else(none)
}

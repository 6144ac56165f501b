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
//!
//! A file that cannot be read is named and the others are read; the exit code is 1 then.
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

/// A page: what it is called, and the bytes of its file.
struct Page {
    name: String,
    file: Arc<[u8]>,
}

fn main() {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    match run(&files) {
        Ok(0) => {}
        Ok(bad) => {
            eprintln!("{bad} of {} pages could not be read", files.len());
            std::process::exit(1);
        }
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(1);
        }
    }
}

/// Reads all pages; gives how many could not be read.
fn run(files: &[PathBuf]) -> Result<usize> {
    let models = models()?;
    let load = |id: &str, file: &str| -> Result<Graph> { import::load(models.join(id).join(file)) };
    let reader = Reader::new(
        load("ppocr-det", "PP-OCRv6_det_small.onnx")?,
        load("ppocr-cls", "ch_ppocr_mobile_v2.0_cls_mobile.onnx")?,
        load("ppocr-rec", "PP-OCRv6_rec_small.onnx")?,
    )?;
    let pages = if files.is_empty() { sample(&models)? } else { open(files) };
    let mut bad = files.len().saturating_sub(pages.len());
    let read = |page: &Page| reader.read(&Picture::decode(&page.file)?);

    // Once before it counts: working memory is made for each shape that comes.
    let expected: Vec<Result<Vec<String>>> = pages.iter().map(read).collect();
    let shown = if files.is_empty() { 4 } else { pages.len() };
    for (Page { name, .. }, lines) in pages.iter().zip(&expected).take(shown) {
        match lines {
            Ok(lines) => {
                println!("{name}: {} lines", lines.len());
                lines.iter().for_each(|line| println!("    {line}"));
            }
            Err(error) => {
                eprintln!("error: `{name}`: {error}");
                bad += 1;
            }
        }
    }
    let good = expected.iter().filter(|lines| lines.is_ok()).count();
    if good == 0 {
        return Ok(bad);
    }
    let begun = Instant::now();
    for page in &pages {
        // What cannot be read was told.
        let _ = read(page);
    }
    let sequential = begun.elapsed();

    let pipeline = reader.pipeline(IN_FLIGHT)?;
    // A page that cannot be read fails alone.
    let tokens = || pages.iter().map(|page| vec![Token::File(Arc::clone(&page.file))]);
    pipeline.stream(tokens().collect::<Vec<_>>()).for_each(drop);
    let inputs: Vec<_> = tokens().collect();
    let begun = Instant::now();
    let mut streamed = Vec::new();
    for result in pipeline.stream(inputs) {
        streamed.push(result.map_err(|e| Error::new(ErrorKind::Kernel, e.to_string())));
    }
    let streaming = begun.elapsed();

    for ((page, streamed), expected) in pages.iter().zip(streamed).zip(&expected) {
        let Ok(expected) = expected else { continue };
        let within = |e: Error| Error::new(e.kind(), format!("`{}`: {e}", page.name));
        let texts = streamed.map_err(within)?.into_iter().map(Token::into_text);
        let texts = texts.collect::<Result<Vec<_>>>()?;
        if texts != [expected.join("\n")] {
            let name = &page.name;
            let message = format!("`{name}` was read as {texts:?} and as {expected:?}");
            return Err(Error::new(ErrorKind::Kernel, message));
        }
    }
    println!("streamed = one after the other, on all {good} pages");
    let rate = |time: Duration| good as f64 / time.as_secs_f64();
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
    Ok(bad)
}

/// Pages made of the test case of the detector.
fn sample(models: &Path) -> Result<Vec<Page>> {
    let cases = read_cases(&models.join("ppocr-det").join("cases"))?;
    let case = cases.iter().find(|case| case.name == "rendered-480x640");
    let none = || Error::new(ErrorKind::Missing, "the test case `rendered-480x640` is not there");
    let page = Picture::of(&case.ok_or_else(none)?.inputs[0].tensor)?;
    let named = |(n, page): (usize, &Picture)| {
        Ok(Page { name: format!("page {n}"), file: page.encode()?.into() })
    };
    variants(&page, PAGES).iter().enumerate().map(named).collect()
}

/// The pages in files; those that cannot be read are told and left out.
fn open(files: &[PathBuf]) -> Vec<Page> {
    let mut pages = Vec::with_capacity(files.len());
    for path in files {
        let name = path.display().to_string();
        match std::fs::read(path) {
            Ok(file) => pages.push(Page { name, file: file.into() }),
            Err(error) => eprintln!("error: `{name}` cannot be read: {error}"),
        }
    }
    pages
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

//! Text from a language model: a Gemma 3 decoder built with the library's own operators over the
//! quantised weights of a GGUF file, cut into pipeline segments, with several prompts in flight.
//!
//! ```console
//! $ scripts/fetch-models --only gemma3-gguf
//! $ cargo run --release --example gemma
//! $ cargo run --release --example gemma -- --stages 2 --prompt "1, 2, 3," --prompt "Roses are red,"
//! ```
//!
//! The keys and values of a prompt are the state of its stream: one token is one item, and the items
//! of different prompts are in different segments at the same time. The first output is the text,
//! the second how many tokens a second came sequentially and streamed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program")]

mod config;
mod decoder;
mod generate;
mod tokenizer;

use std::path::{Path, PathBuf};
use std::time::Instant;

use brigade::import::{GgufFile, Limits};
use brigade::{Error, ErrorKind, Result};

use generate::{Generated, Generator, Options, greedy};
use tokenizer::Tokenizer;

const USAGE: &str = "usage: gemma [--prompt TEXT]... [--tokens N] [--stages N] [--threads N] [--decode] [--workers HOST:PORT,...] [--model FILE.gguf]

  --prompt TEXT   a text to go on with; each further one is a further stream
  --tokens N      how many tokens to generate for each (32)
  --stages N      into how many pipeline segments the decoder is cut, on two CPU devices in turn (2)
  --threads N     threads of each device (1)
  --decode        decode the quantised weights to f32 as they are loaded
  --workers LIST  workers on this machine that the segments go to in turn (needs --features cluster)
  --model FILE    another Gemma 3 model";

/// What the command line asks for.
struct Asked {
    prompts: Vec<String>,
    tokens: usize,
    stages: usize,
    threads: usize,
    packed: bool,
    workers: Vec<String>,
    model: Option<PathBuf>,
}

fn main() {
    let asked = match parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            std::process::exit(2);
        }
    };
    if let Err(error) = run(asked) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> std::result::Result<Asked, String> {
    let mut asked = Asked {
        prompts: Vec::new(),
        tokens: 32,
        stages: 2,
        threads: 1,
        packed: true,
        workers: Vec::new(),
        model: None,
    };
    while let Some(flag) = args.next() {
        if flag == "--decode" {
            asked.packed = false;
            continue;
        }
        let known = ["--prompt", "--tokens", "--stages", "--threads", "--workers", "--model"];
        if !known.contains(&flag.as_str()) {
            return Err(format!("there is no option `{flag}`"));
        }
        let value = args.next().ok_or_else(|| format!("`{flag}` needs a value"))?;
        let number = || match value.parse::<usize>() {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(format!("`{flag}` is `{value}`, expected a number above 0")),
        };
        match flag.as_str() {
            "--tokens" => asked.tokens = number()?,
            "--stages" => asked.stages = number()?,
            "--threads" => asked.threads = number()?,
            "--workers" => asked.workers = value.split(',').map(str::to_owned).collect(),
            "--model" => asked.model = Some(value.into()),
            _ => asked.prompts.push(value),
        }
    }
    if asked.prompts.is_empty() {
        asked.prompts = ["1, 2, 3, 4, 5, 6,", "a b c d e f g"].map(str::to_owned).to_vec();
    }
    Ok(asked)
}

fn run(asked: Asked) -> Result<()> {
    let path = match asked.model {
        Some(path) => path,
        None => fetched()?,
    };
    let begun = Instant::now();
    let file = GgufFile::open(&path, &Limits::default())?;
    let tokenizer = Tokenizer::read(file.metadata())?;
    let prompts: Vec<Vec<i64>> = asked.prompts.iter().map(|text| tokenizer.encode(text)).collect();
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let options = Options {
        stages: asked.stages,
        threads: asked.threads,
        positions: longest + asked.tokens,
        streams: prompts.len(),
        packed: asked.packed,
    };
    let remote = Remote::connect(&asked.workers)?;
    let generator = match &remote {
        Some(remote) => {
            let devices: Vec<&str> = remote.devices.iter().map(String::as_str).collect();
            Generator::open_on(&path, &file, options, &remote.registry, &devices)?
        }
        None => Generator::open(&path, &file, options)?,
    };
    println!("loaded in {:.2} s, {}", begun.elapsed().as_secs_f64(), generator.described());

    let mut choose = |_: usize, step: usize, logits: &brigade::Tensor| {
        let token = greedy(logits)?;
        Ok((step < asked.tokens && token != tokenizer.end()).then_some(token))
    };
    // Once before it counts: working memory is made for each shape that comes.
    generator.streamed(&prompts, &mut choose)?;
    let sequential = generator.sequential(&prompts, &mut choose)?;
    let streamed = generator.streamed(&prompts, &mut choose)?;
    for (prompt, tokens) in asked.prompts.iter().zip(&sequential.tokens) {
        println!("\n{prompt}\u{2502}{}", tokenizer.decode(tokens));
    }
    if sequential.tokens != streamed.tokens {
        return Err(Error::new(ErrorKind::Kernel, "streaming gave other tokens"));
    }
    println!("\nstreamed = sequential, on all {} prompts", prompts.len());
    println!("sequential {}", speed(&prompts, &sequential));
    println!("streamed   {}", speed(&prompts, &streamed));
    if let Some(remote) = remote {
        remote.tell();
    }
    Ok(())
}

/// Workers that the segments go to.
struct Remote {
    registry: brigade::Registry,
    devices: Vec<String>,
    #[cfg(feature = "cluster")]
    cluster: brigade::cluster::Cluster,
}

impl Remote {
    #[cfg(feature = "cluster")]
    fn connect(addresses: &[String]) -> Result<Option<Self>> {
        use brigade::actors::transport::{TransportOptions, transport};
        use brigade::cluster::{Cluster, ClusterOptions, link_error};
        if addresses.is_empty() {
            return Ok(None);
        }
        let kind = transport("grpc").ok_or_else(|| Error::new(ErrorKind::Internal, "no gRPC"))?;
        let transport = (kind.open)(&TransportOptions::new()).map_err(link_error)?;
        let workers: Vec<(String, String)> =
            addresses.iter().enumerate().map(|(n, a)| (format!("w{n}"), a.clone())).collect();
        let local = brigade::Registry::default();
        let cluster = Cluster::connect(transport, &workers, &local, ClusterOptions::new())?;
        let devices = workers.iter().map(|(name, _)| format!("{name}/cpu:0")).collect();
        Ok(Some(Self { registry: cluster.registry().clone(), devices, cluster }))
    }

    #[cfg(not(feature = "cluster"))]
    fn connect(addresses: &[String]) -> Result<Option<Self>> {
        if addresses.is_empty() {
            return Ok(None);
        }
        Err(Error::new(ErrorKind::Usage, "--workers needs a build with --features cluster"))
    }

    /// What each worker read of the file, and computed.
    #[cfg(feature = "cluster")]
    fn tell(&self) {
        for stage in self.cluster.stats().stages {
            println!(
                "{}: read {:.1} MiB of weights, computed {:.2} s in {} firings",
                stage.device,
                stage.read_bytes as f64 / f64::from(1 << 20),
                stage.busy_s,
                stage.firings
            );
        }
    }

    #[cfg(not(feature = "cluster"))]
    #[allow(clippy::unused_self)]
    fn tell(&self) {}
}

/// Tokens a second: of the prompts, and of what followed their first token.
fn speed(prompts: &[Vec<i64>], run: &Generated) -> String {
    let read: usize = prompts.iter().map(Vec::len).sum();
    let made: usize = run.tokens.iter().map(Vec::len).sum();
    format!(
        "{:8.1} prompt tokens/s, {:6.2} generated tokens/s",
        read as f64 / run.prompts.as_secs_f64(),
        made as f64 / run.rest.as_secs_f64()
    )
}

/// The model that `scripts/fetch-models --only gemma3-gguf` brings.
fn fetched() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let models = std::env::var_os("BRIGADE_MODELS")
        .map(PathBuf::from)
        .or_else(|| cache.map(|cache| cache.join("brigade").join("models")));
    let file = models.map(|models| models.join("gemma3-gguf/gemma-3-270m-q4_k_m.gguf"));
    file.filter(|file| file.is_file()).ok_or_else(|| {
        let message = "no model here: run scripts/fetch-models --only gemma3-gguf, or give --model";
        Error::new(ErrorKind::Missing, message)
    })
}

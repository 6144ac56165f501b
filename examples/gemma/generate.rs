//! Generating: each step is one item, whose logits choose the token of the next one.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use brigade::import::GgufFile;
use brigade::pipeline::{StateStream, Ticket};
use brigade::{
    Error, ErrorKind, HeteroExecutable, Pipeline, Registry, Result, Tensor, Value, WeightCache,
};

use super::decoder::Decoder;

/// How a decoder is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Segments, on two CPU devices in turn.
    pub(crate) stages: usize,
    /// Threads of each device.
    pub(crate) threads: usize,
    /// Tokens of a prompt and of what follows, at most.
    pub(crate) positions: usize,
    /// Streams in flight.
    pub(crate) streams: usize,
    /// Whether products are computed over the quantised blocks, not over f32.
    pub(crate) packed: bool,
}

/// A decoder that runs.
#[derive(Debug)]
pub(crate) struct Generator {
    pub(crate) decoder: Decoder,
    pub(crate) pipeline: Pipeline,
}

/// What was generated, and how long it took.
#[derive(Debug)]
pub(crate) struct Generated {
    /// For each prompt what follows it.
    pub(crate) tokens: Vec<Vec<i64>>,
    /// How long it took until each prompt had its first token.
    pub(crate) prompts: Duration,
    /// How long the other tokens took.
    pub(crate) rest: Duration,
}

/// Chooses a token by the number of the prompt, that of the step and the logits; `None` ends it.
pub(crate) type Choose<'a> = dyn FnMut(usize, usize, &Tensor) -> Result<Option<i64>> + 'a;

impl Generator {
    /// Builds the decoder in a GGUF file and spawns it.
    ///
    /// # Errors
    /// If the file cannot be read or is no Gemma 3 model, or an option makes no sense.
    pub(crate) fn open(path: &Path, file: &GgufFile, options: Options) -> Result<Self> {
        Self::open_on(path, file, options, &Registry::default(), &["cpu:0", "cpu:1"])
    }

    /// As [`Self::open`], with the stages on these devices of a registry in turn.
    ///
    /// # Errors
    /// As [`Self::open`]; if a device is not there.
    pub(crate) fn open_on(
        path: &Path,
        file: &GgufFile,
        options: Options,
        registry: &Registry,
        devices: &[&str],
    ) -> Result<Self> {
        let decoder = Decoder::new(file, &uri(path)?, options.positions, options.packed)?;
        let config = &decoder.config;
        let mut builder = Pipeline::builder(decoder.graph.clone())
            .registry(registry.clone())
            .stages(options.stages, devices)?
            .weights(&WeightCache::new())
            .bind_all(decoder.weights.iter().cloned())
            .in_flight(options.streams.max(1))
            .expected_shape("tokens", &[1, 1]);
        for device in devices.iter().take(options.stages.max(1)) {
            builder = builder.threads(device.parse()?, options.threads);
        }
        for i in 0..config.layers {
            for kept in ["key", "value"] {
                let shape = [1, config.groups, options.positions / 2, config.depth];
                builder = builder.expected_shape(format!("past_{kept}.{i}"), &shape);
            }
        }
        let pipeline = builder.spawn()?;
        Ok(Self { decoder, pipeline })
    }

    /// Its size and its cut, for people.
    pub(crate) fn described(&self) -> String {
        let config = &self.decoder.config;
        let segments = self.pipeline.sequential().num_segments();
        format!(
            "{} layers of {} elements, {} pieces, {segments} segments",
            config.layers, config.width, config.vocabulary
        )
    }

    /// One prompt after the other, one segment after the other.
    ///
    /// # Errors
    /// That of the first step that fails.
    pub(crate) fn sequential(
        &self,
        prompts: &[Vec<i64>],
        choose: &mut Choose<'_>,
    ) -> Result<Generated> {
        let executable = self.pipeline.sequential();
        let mut out = Generated {
            tokens: vec![Vec::new(); prompts.len()],
            prompts: Duration::ZERO,
            rest: Duration::ZERO,
        };
        for (k, prompt) in prompts.iter().enumerate() {
            let mut begun = Instant::now();
            let mut kept = self.nothing_kept()?;
            let mut feed = prompt.clone();
            loop {
                let step = out.tokens[k].len();
                let logits = self.step(&executable, &feed, &mut kept)?;
                let chosen = choose(k, step, &logits)?;
                if step == 0 {
                    out.prompts += begun.elapsed();
                    begun = Instant::now();
                }
                let Some(token) = chosen else { break };
                out.tokens[k].push(token);
                feed = vec![token];
            }
            out.rest += begun.elapsed();
        }
        Ok(out)
    }

    /// All prompts at once, each a stream whose steps meet those of the others in the pipeline.
    ///
    /// # Errors
    /// That of the first step that fails.
    pub(crate) fn streamed(
        &self,
        prompts: &[Vec<i64>],
        choose: &mut Choose<'_>,
    ) -> Result<Generated> {
        let begun = Instant::now();
        let mut tokens = vec![Vec::new(); prompts.len()];
        let mut streams: Vec<(usize, StateStream, Ticket)> = Vec::with_capacity(prompts.len());
        for (k, prompt) in prompts.iter().enumerate() {
            let stream = self.pipeline.open_stream(self.decoder.state()?)?;
            let ticket = stream.push([("tokens", row(prompt)?)])?;
            streams.push((k, stream, ticket));
        }
        let mut first = None;
        while !streams.is_empty() {
            let mut going = Vec::with_capacity(streams.len());
            for (k, stream, ticket) in streams {
                let logits = first_tensor(ticket.wait()?)?;
                let chosen = choose(k, tokens[k].len(), &logits)?;
                let Some(token) = chosen else { continue };
                tokens[k].push(token);
                let ticket = stream.push([("tokens", row(&[token])?)])?;
                going.push((k, stream, ticket));
            }
            streams = going;
            first.get_or_insert_with(|| begun.elapsed());
        }
        let prompts = first.unwrap_or_default();
        Ok(Generated { tokens, prompts, rest: begun.elapsed().saturating_sub(prompts) })
    }

    /// One step of the sequential run.
    fn step(
        &self,
        executable: &HeteroExecutable,
        feed: &[i64],
        kept: &mut HashMap<String, Value>,
    ) -> Result<Tensor> {
        let mut inputs = vec![("tokens".to_owned(), Value::from(row(feed)?))];
        inputs.extend(kept.drain());
        let outputs = executable.run_values(inputs)?;
        let mut logits = None;
        for (name, value) in executable.output_names().iter().zip(outputs) {
            match name.strip_prefix("present_") {
                Some(rest) => drop(kept.insert(format!("past_{rest}"), value)),
                None => logits = Some(value.into_tensor()?),
            }
        }
        logits.ok_or_else(|| Error::new(ErrorKind::Internal, "the decoder gave no logits"))
    }

    fn nothing_kept(&self) -> Result<HashMap<String, Value>> {
        let config = &self.decoder.config;
        let none = Tensor::zeros(brigade::DType::F32, [1, config.groups, 0, config.depth])?;
        let names =
            (0..config.layers).flat_map(|i| [format!("past_key.{i}"), format!("past_value.{i}")]);
        Ok(names.map(|name| (name, Value::from(none.clone()))).collect())
    }
}

/// The token with the largest logit; of equal ones the first.
///
/// # Errors
/// If they are not f32.
pub(crate) fn greedy(logits: &Tensor) -> Result<i64> {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, v) in logits.as_slice::<f32>()?.iter().enumerate() {
        if *v > best.1 {
            best = (i as i64, *v);
        }
    }
    Ok(best.0)
}

fn row(tokens: &[i64]) -> Result<Tensor> {
    Tensor::new([1, tokens.len()], tokens.to_vec())
}

fn first_tensor(values: Vec<Value>) -> Result<Tensor> {
    let none = || Error::new(ErrorKind::Internal, "the decoder gave nothing");
    values.into_iter().next().ok_or_else(none)?.into_tensor()
}

/// The URI of a GGUF file.
///
/// # Errors
/// If the file is not there.
pub(crate) fn uri(path: &Path) -> Result<String> {
    let within =
        |e: std::io::Error| Error::new(ErrorKind::Io, format!("`{}`: {e}", path.display()));
    let path = path.canonicalize().map_err(within)?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/-_.~".contains(&b);
    let encoded = path
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(|b| if plain(*b) { char::from(*b).to_string() } else { format!("%{b:02X}") });
    Ok(format!("gguf://{}", encoded.collect::<String>()))
}

//! What a GGUF file says of a Gemma 3 decoder.

use brigade::import::{GgufFile, GgufMetadata, GgufValue};
use brigade::{Error, ErrorKind, Result};

/// Of so many layers one sees everything that came before; the architecture fixes it.
const FULL_EVERY: usize = 6;
/// The rotary base of the layers that see a window; the architecture fixes it.
const LOCAL_BASE: f64 = 10_000.0;

/// The numbers that make a decoder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    pub(crate) layers: usize,
    /// Elements of the hidden state.
    pub(crate) width: usize,
    /// Heads of queries.
    pub(crate) heads: usize,
    /// Heads of keys and values, each of which serves `heads / groups` heads of queries.
    pub(crate) groups: usize,
    /// Elements of a head.
    pub(crate) depth: usize,
    /// How many tokens a layer with a window sees, its own included.
    pub(crate) window: usize,
    pub(crate) epsilon: f32,
    pub(crate) vocabulary: usize,
    /// How many tokens the model was made for.
    pub(crate) context: usize,
    base: f64,
    /// By how much the positions of the layers that see everything are stretched.
    stretch: f64,
}

impl Config {
    /// Reads the metadata.
    ///
    /// # Errors
    /// If it is no Gemma 3 model, or a number is missing or makes no sense; names the key.
    pub(crate) fn read(file: &GgufFile) -> Result<Self> {
        let metadata = file.metadata();
        let architecture = metadata.text("general.architecture")?;
        if architecture != "gemma3" {
            let message =
                format!("the model is of the architecture `{architecture}`, not `gemma3`");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let number = |key: &str| count(metadata, key);
        let embedding = file.tensor("token_embd.weight")?;
        let config = Self {
            layers: number("gemma3.block_count")?,
            width: number("gemma3.embedding_length")?,
            heads: number("gemma3.attention.head_count")?,
            groups: number("gemma3.attention.head_count_kv")?,
            depth: number("gemma3.attention.key_length")?,
            window: number("gemma3.attention.sliding_window")?,
            epsilon: metadata.float("gemma3.attention.layer_norm_rms_epsilon")? as f32,
            vocabulary: embedding.shape[0],
            context: number("gemma3.context_length")?,
            base: metadata.float("gemma3.rope.freq_base")?,
            stretch: match metadata.get("gemma3.rope.scaling.factor") {
                Some(factor) => factor.as_f64().unwrap_or(1.0),
                None => 1.0,
            },
        };
        let sound = config.heads.is_multiple_of(config.groups)
            && config.depth.is_multiple_of(2)
            && embedding.shape == [config.vocabulary, config.width];
        if !sound {
            let message = format!("the metadata contradict themselves or the tensors: {config:?}");
            return Err(Error::new(ErrorKind::Format, message));
        }
        Ok(config)
    }

    /// Whether a layer sees everything that came before, not only a window.
    pub(crate) fn sees_everything(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(FULL_EVERY)
    }

    /// Cosines and sines of the rotary angles, `positions` rows of `depth / 2`.
    pub(crate) fn angles(&self, everything: bool, positions: usize) -> (Vec<f32>, Vec<f32>) {
        let (base, stretch) =
            if everything { (self.base, self.stretch) } else { (LOCAL_BASE, 1.0) };
        let half = self.depth / 2;
        let frequencies: Vec<f64> =
            (0..half).map(|k| base.powf(-(k as f64) / half as f64)).collect();
        let angles =
            (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f64 / stretch * f));
        angles.map(|a| (a.cos() as f32, a.sin() as f32)).unzip()
    }
}

/// A whole number above 0.
fn count(metadata: &GgufMetadata, key: &str) -> Result<usize> {
    match metadata.get(key).and_then(GgufValue::as_u64) {
        Some(n @ 1..=0xFFFF_FFFF) => Ok(n as usize),
        found => {
            let message = format!("`{key}` is {found:?}, expected a whole number above 0");
            Err(Error::new(ErrorKind::Format, message))
        }
    }
}

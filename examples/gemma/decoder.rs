//! A Gemma 3 decoder as a graph, built step by step from the tensors of a GGUF file.

use brigade::graph::{Graph, ValueId};
use brigade::import::{GgufFile, GgufType};
use brigade::ops::builder::GraphBuilder;
use brigade::pipeline::State;
use brigade::{DType, Error, ErrorKind, Result, Tensor, WeightRef};

use super::config::Config;

/// A decoder: `tokens` `i64[1,seq]` and, per layer, the keys and values of the tokens before them, to
/// `logits` `f32[1,1,vocabulary]` behind the last token and the keys and values with the new ones.
#[derive(Debug)]
pub(crate) struct Decoder {
    pub(crate) graph: Graph,
    /// Where the parameters of the graph lie.
    pub(crate) weights: Vec<WeightRef>,
    pub(crate) config: Config,
}

impl Decoder {
    /// The decoder in `file`, whose tensors are at `uri` (`gguf://PATH`), for up to `positions` tokens.
    /// Unless `packed`, quantised weights are decoded to f32 as they are bound.
    ///
    /// # Errors
    /// If the file is no Gemma 3 model, or lacks a tensor; names it.
    pub(crate) fn new(file: &GgufFile, uri: &str, positions: usize, packed: bool) -> Result<Self> {
        let config = Config::read(file)?;
        if positions > config.context {
            let message =
                format!("the model was made for {} tokens, not {positions}", config.context);
            return Err(Error::new(ErrorKind::Limit, message));
        }
        let mut build = Build {
            g: GraphBuilder::new("gemma3"),
            file,
            uri,
            packed,
            config,
            weights: Vec::new(),
        };
        let outputs = build.decoder(positions)?;
        let outputs = outputs.iter().map(|(name, value)| (name.as_str(), *value));
        let Build { g, config, weights, .. } = build;
        Ok(Self { graph: g.finish(outputs)?, weights, config })
    }

    /// What a stream starts with: it has seen no token.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub(crate) fn state(&self) -> Result<State> {
        let none = Tensor::zeros(DType::F32, [1, self.config.groups, 0, self.config.depth])?;
        let carried = |state: State, layer: usize, kept: &str| {
            state.carry(
                format!("past_{kept}.{layer}"),
                format!("present_{kept}.{layer}"),
                none.clone(),
            )
        };
        Ok((0..self.config.layers)
            .fold(State::new(), |s, i| carried(carried(s, i, "key"), i, "value")))
    }
}

/// A matrix of the file, `[rows, columns]`.
#[derive(Clone, Copy)]
struct Matrix {
    value: ValueId,
    /// The format of its blocks, if it stays in them.
    format: Option<&'static str>,
}

/// What the layers share.
struct Shared {
    /// Cosines and sines by position: of layers with a window, of those that see everything.
    angles: [[ValueId; 2]; 2],
    /// How many tokens there are with those before, and the place of the last of them.
    total: ValueId,
    last: ValueId,
}

struct Build<'a> {
    g: GraphBuilder,
    file: &'a GgufFile,
    uri: &'a str,
    packed: bool,
    config: Config,
    weights: Vec<WeightRef>,
}

impl Build<'_> {
    /// Everything; gives the outputs.
    fn decoder(&mut self, positions: usize) -> Result<Vec<(String, ValueId)>> {
        let (groups, depth) = (self.config.groups, self.config.depth);
        let tokens = self.g.input("tokens", DType::I64, [1.into(), "seq".into()])?;
        let mut past = Vec::with_capacity(self.config.layers);
        for i in 0..self.config.layers {
            let mut input = |kept: &str| {
                let shape = [1.into(), groups.into(), "past".into(), depth.into()];
                self.g.input(&format!("past_{kept}.{i}"), DType::F32, shape)
            };
            past.push([input("key")?, input("value")?]);
        }
        let shared = self.shared(tokens, past[0][0], positions)?;

        let embedding = self.matrix("token_embd.weight")?;
        let x = self.rows(embedding, tokens)?;
        let scale = self.number((self.config.width as f32).sqrt())?;
        let mut x = self.g.mul(x, scale)?;
        let mut kept = Vec::with_capacity(2 * past.len());
        for (i, past) in past.into_iter().enumerate() {
            let y = self.norm(x, &format!("blk.{i}.attn_norm"))?;
            let [y, key, value] = self.attention(i, y, past, &shared)?;
            let y = self.norm(y, &format!("blk.{i}.post_attention_norm"))?;
            x = self.g.add(x, y)?;
            let y = self.norm(x, &format!("blk.{i}.ffn_norm"))?;
            let y = self.feed_forward(i, y)?;
            let y = self.norm(y, &format!("blk.{i}.post_ffw_norm"))?;
            x = self.g.add(x, y)?;
            kept.push((format!("present_key.{i}"), key));
            kept.push((format!("present_value.{i}"), value));
        }
        // What follows the last token is all that is asked for.
        let end = self.g.constant(Tensor::of_i64(&[-1]))?;
        let x = self.g.op("Gather", &[x, end], &[("axis", 1_i64.into())])?;
        let x = self.norm(x, "output_norm")?;
        let head = match self.file.find("output.weight") {
            Some(_) => self.matrix("output.weight")?,
            None => embedding,
        };
        let mut outputs = vec![("logits".to_owned(), self.product(x, head)?)];
        outputs.extend(kept);
        Ok(outputs)
    }

    fn shared(&mut self, tokens: ValueId, past: ValueId, positions: usize) -> Result<Shared> {
        let mut angles = |everything: bool| -> Result<[ValueId; 2]> {
            let (cos, sin) = self.config.angles(everything, positions);
            let shape = [positions, self.config.depth / 2];
            Ok([
                self.g.constant(Tensor::new(shape, cos)?)?,
                self.g.constant(Tensor::new(shape, sin)?)?,
            ])
        };
        let angles = [angles(false)?, angles(true)?];
        let mut extent = |of: ValueId, axis: i64| {
            self.g.op("Shape", &[of], &[("start", axis.into()), ("end", (axis + 1).into())])
        };
        let (new, before) = (extent(tokens, 1)?, extent(past, 2)?);
        let total = self.g.add(before, new)?;
        let one = self.g.constant(Tensor::of_i64(&[1]))?;
        Ok(Shared { angles, total, last: self.g.sub(total, one)? })
    }

    /// Grouped attention with normalised, turned queries and keys; gives the keys and values with the
    /// new ones, too.
    fn attention(
        &mut self,
        layer: usize,
        x: ValueId,
        [past_key, past_value]: [ValueId; 2],
        shared: &Shared,
    ) -> Result<[ValueId; 3]> {
        let (heads, groups) = (self.config.heads, self.config.groups);
        let name = |part: &str| format!("blk.{layer}.attn_{part}");
        let query = self.linear(x, &name("q.weight"))?;
        let query = self.norm_heads(query, heads, &name("q_norm"))?;
        let key = self.linear(x, &name("k.weight"))?;
        let key = self.norm_heads(key, groups, &name("k_norm"))?;
        let value = self.linear(x, &name("v.weight"))?;
        let everything = self.config.sees_everything(layer);
        let [cos, sin] = shared.angles[usize::from(everything)];
        let inputs = [query, key, value, past_key, past_value, shared.last, shared.total, cos, sin]
            .map(Some);
        let scale = 1.0 / (self.config.depth as f32).sqrt();
        let window = if everything { -1 } else { self.config.window as i64 };
        let attributes = [
            ("num_heads", (heads as i64).into()),
            ("kv_num_heads", (groups as i64).into()),
            ("do_rotary", 1_i64.into()),
            ("scale", scale.into()),
            ("local_window_size", window.into()),
        ];
        let made = self.g.apply("com.microsoft.GroupQueryAttention", &inputs, &attributes, 3)?;
        Ok([self.linear(made[0], &name("output.weight"))?, made[1], made[2]])
    }

    fn feed_forward(&mut self, layer: usize, x: ValueId) -> Result<ValueId> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}.weight");
        let gate = self.linear(x, &name("gate"))?;
        let gate = self.g.op("Gelu", &[gate], &[("approximate", "tanh".into())])?;
        let up = self.linear(x, &name("up"))?;
        let product = self.g.mul(gate, up)?;
        self.linear(product, &name("down"))
    }

    fn norm(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let scale = self.vector(&format!("{name}.weight"))?;
        let attributes = [("axis", (-1_i64).into()), ("epsilon", self.config.epsilon.into())];
        self.g.op("RMSNormalization", &[x, scale], &attributes)
    }

    /// [`Self::norm`] of each of the heads side by side in a row.
    fn norm_heads(&mut self, x: ValueId, heads: usize, name: &str) -> Result<ValueId> {
        let x = self.g.reshape(x, &[0, 0, heads as i64, self.config.depth as i64])?;
        let x = self.norm(x, name)?;
        self.g.reshape(x, &[0, 0, (heads * self.config.depth) as i64])
    }

    fn linear(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let matrix = self.matrix(name)?;
        self.product(x, matrix)
    }

    /// `x` times the transposed matrix.
    fn product(&mut self, x: ValueId, matrix: Matrix) -> Result<ValueId> {
        if let Some(format) = matrix.format {
            // Rounded to 8 bits on the way into each product, the logits would leave the reference:
            // cosines of 0.993 to 0.999.
            let attributes = [("format", format.into()), ("exact", 1_i64.into())];
            return self.g.op("brigade.DequantMatMul", &[x, matrix.value], &attributes);
        }
        let turned = self.g.transpose(matrix.value, &[1, 0])?;
        self.g.matmul(x, turned)
    }

    /// Rows of the matrix by their numbers.
    fn rows(&mut self, matrix: Matrix, ids: ValueId) -> Result<ValueId> {
        match matrix.format {
            Some(format) => self.g.dequant_gather(matrix.value, ids, format),
            None => self.g.op("Gather", &[matrix.value, ids], &[]),
        }
    }

    fn number(&mut self, value: f32) -> Result<ValueId> {
        self.g.constant(Tensor::scalar(value))
    }

    fn vector(&mut self, name: &str) -> Result<ValueId> {
        let tensor = self.file.tensor(name)?;
        self.weights.push(WeightRef::new(name, format!("{}#{name}", self.uri)));
        self.g.param(name, DType::F32, &tensor.shape)
    }

    fn matrix(&mut self, name: &str) -> Result<Matrix> {
        let tensor = self.file.tensor(name)?;
        let weight = WeightRef::new(name, format!("{}#{name}", self.uri));
        match (tensor.stored, &tensor.shape[..]) {
            (GgufType::Blocks(format), [rows, columns]) if self.packed => {
                self.weights.push(weight.packed());
                let bytes = columns / format.weights * format.bytes;
                let value = self.g.param(name, DType::U8, &[*rows, bytes])?;
                Ok(Matrix { value, format: Some(format.name) })
            }
            (_, [_, _]) => {
                self.weights.push(weight);
                let value = self.g.param(name, DType::F32, &tensor.shape)?;
                Ok(Matrix { value, format: None })
            }
            (_, shape) => {
                let message = format!("tensor `{name}` has the shape {shape:?}, expected a matrix");
                Err(Error::new(ErrorKind::Shape, message))
            }
        }
    }
}

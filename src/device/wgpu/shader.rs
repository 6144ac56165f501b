//! The kernels' text in WGSL.
//!
//! Every kernel reads its extents from a uniform buffer, so one text serves all shapes. Binding 0
//! is that buffer, the last binding is what the kernel writes, those between are what it reads.

use std::fmt::Write as _;

/// One kernel: its text is its identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shader {
    /// What it computes, for the driver's messages.
    pub(super) label: String,
    pub(super) source: String,
    /// How many buffers it reads, besides the uniform one.
    pub(super) inputs: usize,
    /// Groups of four words in the uniform buffer.
    pub(super) words4: usize,
}

/// Most axes of a tensor, after neighbouring ones that lie as one are joined.
pub(super) const AXES: usize = 8;

/// Threads of a workgroup of the kernels over a flat range.
pub(super) const FLAT: u32 = 64;

/// Rows and columns of a product that one thread computes, and threads of a workgroup each way.
pub(super) const TILE: u32 = 4;
pub(super) const SIDE: u32 = 8;

/// A function of one number that WGSL writes down, of `x` and the parameters `c.x` and `c.y`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Function {
    Identity,
    Relu,
    LeakyRelu { alpha: f32 },
    Clip { lo: f32, hi: f32 },
    Sigmoid,
    HardSigmoid { alpha: f32, beta: f32 },
    HardSwish,
    Silu,
    Gelu,
    Tanh,
    Exp,
    Sqrt,
    Abs,
    Neg,
    Reciprocal,
    Erf,
}

impl Function {
    /// Its parameters.
    pub(super) fn parameters(self) -> [f32; 2] {
        match self {
            Self::LeakyRelu { alpha } => [alpha, 0.0],
            Self::Clip { lo, hi } => [lo, hi],
            Self::HardSigmoid { alpha, beta } => [alpha, beta],
            _ => [0.0, 0.0],
        }
    }

    /// The expression of `x`. Comparisons keep NaN where the driver does.
    fn of(self, x: &str) -> String {
        match self {
            Self::Identity => x.to_owned(),
            Self::Relu => format!("select({x}, 0.0, {x} < 0.0)"),
            Self::LeakyRelu { .. } => format!("select({x}, {x} * c.x, {x} < 0.0)"),
            Self::Clip { .. } => format!("clip({x}, c.x, c.y)"),
            Self::Sigmoid => format!("1.0 / (1.0 + exp(-{x}))"),
            Self::HardSigmoid { .. } => format!("clip({x} * c.x + c.y, 0.0, 1.0)"),
            Self::HardSwish => format!("{x} * clip({x} * (1.0 / 6.0) + 0.5, 0.0, 1.0)"),
            Self::Silu => format!("{x} / (1.0 + exp(-{x}))"),
            Self::Gelu => format!("0.5 * {x} * (1.0 + erf({x} * 0.70710678))"),
            Self::Tanh => format!("tanh(clip({x}, -15.0, 15.0))"),
            Self::Exp => format!("exp({x})"),
            Self::Sqrt => format!("sqrt({x})"),
            Self::Abs => format!("abs({x})"),
            Self::Neg => format!("-{x}"),
            Self::Reciprocal => format!("1.0 / {x}"),
            Self::Erf => format!("erf({x})"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Identity => "copy",
            Self::Relu => "relu",
            Self::LeakyRelu { .. } => "leaky relu",
            Self::Clip { .. } => "clip",
            Self::Sigmoid => "sigmoid",
            Self::HardSigmoid { .. } => "hard sigmoid",
            Self::HardSwish => "hard swish",
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::Tanh => "tanh",
            Self::Exp => "exp",
            Self::Sqrt => "sqrt",
            Self::Abs => "abs",
            Self::Neg => "neg",
            Self::Reciprocal => "reciprocal",
            Self::Erf => "erf",
        }
    }
}

/// What kernels share: a clamp that keeps NaN, and the error function to about 1e-7 (Abramowitz and
/// Stegun, 7.1.26).
const FUNCTIONS: &str = "
fn clip(x: f32, lo: f32, hi: f32) -> f32 {
  let y = select(x, lo, x < lo);
  return select(y, hi, y > hi);
}
fn erf(x: f32) -> f32 {
  let a = abs(x);
  let t = 1.0 / (1.0 + 0.3275911 * a);
  let q = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  let y = 1.0 - q * exp(-a * a);
  return select(y, -y, x < 0.0);
}
";

/// The declarations: uniform words, `reads` inputs `x0`, `x1`, … and the output `y`.
fn head(words4: usize, reads: usize) -> String {
    let mut s = format!("@group(0) @binding(0) var<uniform> p: array<vec4<u32>, {words4}>;\n");
    for i in 0..reads {
        let binding = i + 1;
        let _ = writeln!(s, "@group(0) @binding({binding}) var<storage, read> x{i}: array<f32>;");
    }
    let binding = reads + 1;
    let _ = writeln!(s, "@group(0) @binding({binding}) var<storage, read_write> y: array<f32>;");
    s + FUNCTIONS
}

/// An expression of several inputs, element by element with broadcasting. Words: count, threads in
/// a row of workgroups, axes; extents (8); strides (8) of each input; two parameters.
fn map(label: &str, reads: usize, expression: &str) -> Shader {
    let words4 = 3 + 2 * reads + 1;
    let mut s = head(words4, reads);
    let _ = writeln!(s, "@compute @workgroup_size({FLAT})");
    s += "fn main(@builtin(global_invocation_id) g: vec3<u32>) {\n";
    s += "  let i = g.y * p[0].y + g.x;\n  if (i >= p[0].x) { return; }\n";
    s += "  let axes = p[0].z;\n  var rest = i;\n";
    for k in 0..reads {
        let _ = writeln!(s, "  var i{k} = select(0u, i, axes == 0u);");
    }
    s += "  for (var a = axes; a > 0u; a -= 1u) {\n    let d = a - 1u;\n";
    s += "    let extent = p[1u + d / 4u][d % 4u];\n    let at = rest % extent;\n";
    s += "    rest = rest / extent;\n";
    for k in 0..reads {
        let from = 3 + 2 * k;
        let _ = writeln!(s, "    i{k} += at * p[{from}u + d / 4u][d % 4u];");
    }
    s += "  }\n";
    let last = words4 - 1;
    let _ = writeln!(s, "  let c = bitcast<vec2<f32>>(p[{last}].xy);");
    for k in 0..reads {
        let _ = writeln!(s, "  let v{k} = x{k}[i{k}];");
    }
    let _ = writeln!(s, "  y[i] = {expression};\n}}");
    Shader { label: label.to_owned(), source: s, inputs: reads, words4 }
}

/// A function of one tensor.
pub(super) fn unary(f: Function) -> Shader {
    map(f.name(), 1, &f.of("v0"))
}

/// Operations of two tensors: `+`, `-`, `*` or `/`.
pub(super) fn binary(operator: char) -> Shader {
    map(&format!("a {operator} b"), 2, &format!("v0 {operator} v1"))
}

/// A clamp whose bounds are tensors: lower, upper, or both.
pub(super) fn clip_by(lower: bool, upper: bool) -> Shader {
    let mut x = "v0".to_owned();
    let mut reads = 1;
    if lower {
        x = format!("select({x}, v{reads}, {x} < v{reads})");
        reads += 1;
    }
    if upper {
        x = format!("select({x}, v{reads}, {x} > v{reads})");
        reads += 1;
    }
    map("clip by tensors", reads, &x)
}

/// `(x - mean) / √(variance + epsilon) * scale + bias`; inputs x, scale, bias, mean, variance; the
/// first parameter is epsilon.
pub(super) fn batch_norm() -> Shader {
    map("batch normalization", 5, "(v0 - v3) / sqrt(v4 + c.x) * v1 + v2")
}

/// `v0` where it is not negative, else `v0 * v1`.
pub(super) fn prelu() -> Shader {
    map("prelu", 2, "select(v0, v0 * v1, v0 < 0.0)")
}

/// Elements from one layout to another. Words: count, threads in a row, axes, 0; extents (8);
/// strides of the input (8); strides of the output (8); offsets of input and output.
pub(super) fn rearrange() -> Shader {
    let words4 = 8;
    let mut s = head(words4, 1);
    let _ = writeln!(s, "@compute @workgroup_size({FLAT})");
    s += "fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let i = g.y * p[0].y + g.x;
  if (i >= p[0].x) { return; }
  var rest = i;
  var source = p[7].x;
  var to = p[7].y;
  for (var a = p[0].z; a > 0u; a -= 1u) {
    let d = a - 1u;
    let extent = p[1u + d / 4u][d % 4u];
    let at = rest % extent;
    rest = rest / extent;
    source += at * p[3u + d / 4u][d % 4u];
    to += at * p[5u + d / 4u][d % 4u];
  }
  y[to] = x0[source];
}
";
    Shader { label: "rearrange".to_owned(), source: s, inputs: 1, words4 }
}

/// What is done to a sum before it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Epilogue {
    /// Whether something is added that is broadcast: a bias.
    pub(super) bias: bool,
    /// Whether a tensor of the output's shape is added: after the activation, or before it.
    pub(super) residual: Option<bool>,
    pub(super) activation: Function,
}

impl Epilogue {
    /// How many buffers it reads.
    pub(super) fn reads(&self) -> usize {
        usize::from(self.bias) + usize::from(self.residual.is_some())
    }

    /// A statement that stores `sum` at `at`, where `bias` is what is added first. The residual is
    /// the last input.
    fn store(&self, sum: &str, bias: &str, residual: usize, at: &str) -> String {
        let mut s = format!("var v = {sum};");
        if self.bias {
            let _ = write!(s, " v += {bias};");
        }
        if self.residual == Some(false) {
            let _ = write!(s, " v += x{residual}[{at}];");
        }
        let _ = write!(s, " v = {};", self.activation.of("v"));
        if self.residual == Some(true) {
            let _ = write!(s, " v += x{residual}[{at}];");
        }
        let _ = write!(s, " y[{at}] = v;");
        s
    }
}

/// A stack of products of matrices. Words:
/// 0: m, n, k, batch axes; 1: strides of A (row, column), of B (row, column);
/// 2: strides of the bias (row, column); alpha, beta; 3: extents of the batch (4);
/// 4: strides of A along them; 5: of B; 6: parameters of the activation.
pub(super) fn product(epilogue: Epilogue) -> Shader {
    let words4 = 7;
    let reads = 2 + epilogue.reads();
    let mut s = head(words4, reads);
    let _ = writeln!(s, "@compute @workgroup_size({SIDE}, {SIDE})");
    s += "fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let m = p[0].x; let n = p[0].y; let k = p[0].z;
  let r0 = g.y * 4u; let c0 = g.x * 4u;
  if (r0 >= m || c0 >= n) { return; }
  var a = 0u; var b = 0u; var rest = g.z;
  for (var i = p[0].w; i > 0u; i -= 1u) {
    let d = i - 1u;
    let at = rest % p[3][d];
    rest = rest / p[3][d];
    a += at * p[4][d];
    b += at * p[5][d];
  }
  // Beyond the edge the last row and column are computed again and not stored.
  let rows = a + min(vec4(r0, r0 + 1u, r0 + 2u, r0 + 3u), vec4(m - 1u)) * p[1].x;
  let columns = b + min(vec4(c0, c0 + 1u, c0 + 2u, c0 + 3u), vec4(n - 1u)) * p[1].w;
  var s0 = vec4<f32>(); var s1 = vec4<f32>(); var s2 = vec4<f32>(); var s3 = vec4<f32>();
  for (var i = 0u; i < k; i += 1u) {
    let at = rows + i * p[1].y;
    let bt = columns + i * p[1].z;
    let v = vec4(x1[bt.x], x1[bt.y], x1[bt.z], x1[bt.w]);
    s0 = fma(vec4(x0[at.x]), v, s0);
    s1 = fma(vec4(x0[at.y]), v, s1);
    s2 = fma(vec4(x0[at.z]), v, s2);
    s3 = fma(vec4(x0[at.w]), v, s3);
  }
  let alpha = bitcast<f32>(p[2].z);
  let beta = bitcast<f32>(p[2].w);
  let c = bitcast<vec2<f32>>(p[6].xy);
  var sums = array<vec4<f32>, 4>(s0, s1, s2, s3);
  for (var r = 0u; r < 4u && r0 + r < m; r += 1u) {
    for (var j = 0u; j < 4u && c0 + j < n; j += 1u) {
      let at = (g.z * m + r0 + r) * n + c0 + j;
";
    let bias = "beta * x2[(r0 + r) * p[2].x + (c0 + j) * p[2].y]";
    let _ = writeln!(s, "      {}", epilogue.store("alpha * sums[r][j]", bias, reads - 1, "at"));
    s += "    }\n  }\n}\n";
    Shader { label: "product".to_owned(), source: s, inputs: reads, words4 }
}

/// Output positions along a row that one thread of the convolution computes.
pub(super) const PIXELS: u32 = 4;

/// A convolution over two axes; one thread computes `PIXELS` positions of `channels` output
/// channels of a group. Words:
/// 0: input channels per group, output channels per group, groups, output tiles per row;
/// 1: input height, width, output height, width; 2: kernel height, width, stride down, across;
/// 3: dilation down, across, padding above, left; 4: parameters of the activation.
pub(super) fn convolution(channels: u32, epilogue: Epilogue) -> Shader {
    let words4 = 5;
    let reads = 2 + epilogue.reads();
    let mut s = head(words4, reads);
    let _ = writeln!(s, "@compute @workgroup_size({FLAT})");
    let _ = writeln!(
        s,
        "fn main(@builtin(global_invocation_id) g: vec3<u32>) {{
  let ci = p[0].x; let co = p[0].y; let tiles = p[0].w;
  let size = vec2<i32>(p[1].yx); let ow = p[1].w; let oh = p[1].z;
  let kh = p[2].x; let kw = p[2].y;
  let oy = g.x / tiles; let ox = (g.x % tiles) * {PIXELS}u;
  if (oy >= oh) {{ return; }}
  let blocks = (co + {channels}u - 1u) / {channels}u;
  let group = g.y / blocks; let o = (g.y % blocks) * {channels}u;
  let plane = u32(size.x * size.y);
  let taps = kh * kw;
  let x = vec4<i32>(i32(ox), i32(ox) + 1, i32(ox) + 2, i32(ox) + 3) * i32(p[2].w) - i32(p[3].w);"
    );
    for j in 0..channels {
        let _ = writeln!(
            s,
            "  var s{j} = vec4<f32>(); let w{j} = (group * co + min(o + {j}u, co - 1u)) * ci * taps;"
        );
    }
    s += "  for (var ky = 0u; ky < kh; ky += 1u) {
    let iy = i32(oy * p[2].z + ky * p[3].x) - i32(p[3].z);
    if (iy < 0 || iy >= size.y) { continue; }
    for (var kx = 0u; kx < kw; kx += 1u) {
      let ix = x + i32(kx * p[3].y);
      let inside = (ix >= vec4(0)) & (ix < vec4(size.x));
      let at = vec4<u32>(clamp(ix, vec4(0), vec4(size.x - 1)) + iy * size.x);
      for (var i = 0u; i < ci; i += 1u) {
        let first = at + ((g.z * p[0].z + group) * ci + i) * plane;
        let v = select(vec4<f32>(), vec4(x0[first.x], x0[first.y], x0[first.z], x0[first.w]), inside);
        let tap = i * taps + ky * kw + kx;
";
    for j in 0..channels {
        let _ = writeln!(s, "        s{j} = fma(vec4(x1[w{j} + tap]), v, s{j});");
    }
    s += "      }\n    }\n  }\n  let c = bitcast<vec2<f32>>(p[4].xy);\n";
    let sums: Vec<String> = (0..channels).map(|j| format!("s{j}")).collect();
    let _ = writeln!(s, "  var sums = array<vec4<f32>, {channels}>({});", sums.join(", "));
    let _ = writeln!(
        s,
        "  for (var j = 0u; j < {channels}u && o + j < co; j += 1u) {{
    let channel = group * co + o + j;
    let row = ((g.z * p[0].z * co + channel) * oh + oy) * ow + ox;
    for (var q = 0u; q < {PIXELS}u && ox + q < ow; q += 1u) {{"
    );
    let store = epilogue.store("sums[j][q]", "x2[channel]", reads - 1, "row + q");
    let _ = writeln!(s, "      {store}\n    }}\n  }}\n}}");
    Shader { label: format!("convolution x{channels}"), source: s, inputs: reads, words4 }
}

/// A pool over windows of two axes, by the largest element or the mean. Words:
/// 0: count, threads in a row, 1 to count padding in the mean; 1 to 3 as the convolution's 1 to 3.
pub(super) fn pool(largest: bool) -> Shader {
    let words4 = 4;
    let mut s = head(words4, 1);
    let (start, take, result) = if largest {
        ("bitcast<f32>(0xff7fffffu)", "v = select(v, w, w > v)", "v")
    } else {
        ("0.0", "v += w", "v / select(n, f32(p[2].x * p[2].y), p[0].z == 1u)")
    };
    let _ = writeln!(
        s,
        "@compute @workgroup_size({FLAT})
fn main(@builtin(global_invocation_id) g: vec3<u32>) {{
  let i = g.y * p[0].y + g.x;
  if (i >= p[0].x) {{ return; }}
  let h = i32(p[1].x); let w_ = i32(p[1].y); let oh = p[1].z; let ow = p[1].w;
  let ox = i % ow; let oy = (i / ow) % oh; let plane = (i / ow / oh) * p[1].x * p[1].y;
  var v = {start};
  var n = 0.0;
  for (var ky = 0u; ky < p[2].x; ky += 1u) {{
    let iy = i32(oy * p[2].z + ky * p[3].x) - i32(p[3].z);
    for (var kx = 0u; kx < p[2].y; kx += 1u) {{
      let ix = i32(ox * p[2].w + kx * p[3].y) - i32(p[3].w);
      if (iy >= 0 && iy < h && ix >= 0 && ix < w_) {{
        let w = x0[plane + u32(iy * w_ + ix)];
        {take};
        n += 1.0;
      }}
    }}
  }}
  y[i] = {result};
}}"
    );
    let label = if largest { "largest of windows" } else { "mean of windows" };
    Shader { label: label.to_owned(), source: s, inputs: 1, words4 }
}

/// The mean of each plane; a workgroup takes one. Words: planes, groups in a row, elements.
pub(super) fn plane_mean() -> Shader {
    let words4 = 1;
    let mut s = head(words4, 1);
    let _ = writeln!(
        s,
        "var<workgroup> parts: array<f32, {FLAT}>;
@compute @workgroup_size({FLAT})
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
  let plane = w.y * p[0].y + w.x;
  let n = p[0].z;
  var sum = 0.0;
  if (plane < p[0].x) {{
    for (var i = t; i < n; i += {FLAT}u) {{ sum += x0[plane * n + i]; }}
  }}
  parts[t] = sum;
  workgroupBarrier();
  for (var half = {FLAT}u / 2u; half > 0u; half /= 2u) {{
    if (t < half) {{ parts[t] += parts[t + half]; }}
    workgroupBarrier();
  }}
  if (t == 0u && plane < p[0].x) {{ y[plane] = parts[0] / f32(n); }}
}}"
    );
    Shader { label: "mean of planes".to_owned(), source: s, inputs: 1, words4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTIONS: &[Function] = &[
        Function::Identity,
        Function::Relu,
        Function::LeakyRelu { alpha: 0.1 },
        Function::Clip { lo: 0.0, hi: 6.0 },
        Function::Sigmoid,
        Function::HardSigmoid { alpha: 0.2, beta: 0.5 },
        Function::HardSwish,
        Function::Silu,
        Function::Gelu,
        Function::Tanh,
        Function::Exp,
        Function::Sqrt,
        Function::Abs,
        Function::Neg,
        Function::Reciprocal,
        Function::Erf,
    ];

    #[test]
    fn every_kernel_is_valid_wgsl_with_its_bindings() {
        let mut all =
            vec![rearrange(), pool(true), pool(false), plane_mean(), batch_norm(), prelu()];
        all.extend("+-*/".chars().map(binary));
        all.extend([(false, true), (true, false), (true, true)].map(|(l, u)| clip_by(l, u)));
        for activation in FUNCTIONS.iter().copied() {
            all.push(unary(activation));
            for bias in [false, true] {
                for residual in [None, Some(false), Some(true)] {
                    let epilogue = Epilogue { bias, residual, activation };
                    all.push(product(epilogue));
                    all.extend([1, 4].map(|channels| convolution(channels, epilogue)));
                }
            }
        }
        use wgpu::naga::valid::{Capabilities, ValidationFlags, Validator};
        for shader in all {
            let module = wgpu::naga::front::wgsl::parse_str(&shader.source)
                .unwrap_or_else(|e| panic!("{}", e.emit_to_string(&shader.source)));
            let mut validator = Validator::new(ValidationFlags::all(), Capabilities::empty());
            if let Err(e) = validator.validate(&module) {
                panic!("{}: {e:?}\n{}", shader.label, shader.source);
            }
            let bound = module.global_variables.iter().filter(|(_, v)| v.binding.is_some());
            assert_eq!(bound.count(), shader.inputs + 2, "{}", shader.label);
        }
    }
}

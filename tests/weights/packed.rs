//! Weights that stay in their blocks, from the file into the kernels.

use brigade::graph::Graph;
use brigade::import::{StoredWeight, WeightSchemes, WeightType};
use brigade::kernels::{BLOCK_FORMATS, BlockFormat, PackedBlocks};
use brigade::ops::builder::GraphBuilder;
use brigade::tensor::Buffer;
use brigade::{
    CompileOptions, DType, DeviceId, DeviceMap, HeteroExecutable, Pipeline, Registry, Tensor,
    WeightCache, WeightRef,
};

/// Random blocks whose scales are finite and small.
fn blocks(format: &BlockFormat, seed: u64, count: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 40) as u8
    };
    let mut bytes: Vec<u8> = (0..count * format.bytes).map(|_| next()).collect();
    for block in bytes.chunks_exact_mut(format.bytes) {
        for (at, size) in format.fields {
            let top = &mut block[at + size - 1];
            *top = if *size == 2 { (*top & 0x80) | 0x24 | (*top & 3) } else { 0x3C };
        }
        if format.name == "MXFP4" {
            block[0] = 120 + block[0] % 8;
        }
    }
    bytes
}

const ROWS: usize = 37;

/// Weights in a row: whole blocks, several of them.
fn width(format: &BlockFormat) -> usize {
    if format.weights == 32 { 5 * 32 } else { 2 * 256 }
}

fn decoded(format: &BlockFormat, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / format.bytes * format.weights];
    format.decode(bytes, &mut out).unwrap();
    out
}

/// A cache whose `blocks://FORMAT-SEED` is so many random rows.
fn cache() -> WeightCache {
    let schemes = WeightSchemes::default().with("blocks", |request| {
        let text = request.uri().to_string();
        let (name, seed) = text.trim_start_matches("blocks://").rsplit_once('-').unwrap();
        let format = BlockFormat::named(name).unwrap();
        let k = width(format);
        let bytes = blocks(format, seed.parse().unwrap(), ROWS * k / format.weights);
        StoredWeight::new(WeightType::Blocks(format), [ROWS, k], Buffer::copy_of(&bytes))
    });
    WeightCache::new().with_schemes(schemes.unwrap())
}

/// An embedding whose weights the first product shares, and a second product.
fn graph(format: &BlockFormat, exact: bool) -> Graph {
    let row = width(format) / format.weights * format.bytes;
    let mut g = GraphBuilder::new("tied");
    let ids = g.input("ids", DType::I64, ["B".into()]).unwrap();
    let embedding = g.param("embedding", DType::U8, &[ROWS, row]).unwrap();
    let other = g.param("other", DType::U8, &[ROWS, row]).unwrap();
    let x = g.dequant_gather(embedding, ids, format.name).unwrap();
    let mut product = |w| {
        let attributes = [("format", format.name.into()), ("exact", i64::from(exact).into())];
        g.op("brigade.DequantMatMul", &[x, w], &attributes).unwrap()
    };
    let (tied, y) = (product(embedding), product(other));
    g.finish([("x", x), ("tied", tied), ("y", y)]).unwrap()
}

fn floats(value: &brigade::Value) -> Vec<f32> {
    value.tensor().unwrap().as_slice::<f32>().unwrap().to_vec()
}

/// `x · wᵀ` in doubles, and how far rounding each block of `x` to 8 bits may bring one from it.
fn product(x: &[f32], w: &[f32], k: usize, block: usize, rounded: bool) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for x in x.chunks_exact(k) {
        for w in w.chunks_exact(k) {
            let (mut sum, mut bound) = (0.0, 0.0);
            for (x, w) in x.chunks_exact(block).zip(w.chunks_exact(block)) {
                let most = x.iter().fold(0.0_f64, |m, v| m.max(f64::from(v.abs())));
                let size: f64 = w.iter().map(|v| f64::from(v.abs())).sum();
                sum += x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
                bound += most * size * (if rounded { 1.0 / 254.0 } else { 0.0 } + 1e-5);
            }
            out.push((sum, bound));
        }
    }
    out
}

#[test]
fn every_format_multiplies_within_its_rounding_whole_and_cut() {
    let cache = cache();
    let devices: [DeviceId; 2] = ["cpu:0".parse().unwrap(), "cpu:1".parse().unwrap()];
    for format in BLOCK_FORMATS {
        let (k, each) = (width(format), ROWS * width(format) / format.weights);
        let embedding = decoded(format, &blocks(format, 1, each));
        let other = decoded(format, &blocks(format, 2, each));
        let bound = ["embedding", "other"].iter().zip(1..);
        let refs: Vec<WeightRef> = bound
            .map(|(name, n)| {
                WeightRef::new(*name, format!("blocks://{}-{n}", format.name)).packed()
            })
            .collect();
        for exact in [false, true] {
            let graph = graph(format, exact);
            let whole = DeviceMap::single(devices[0].clone());
            let whole =
                HeteroExecutable::compile(graph.clone(), &whole, &CompileOptions::default())
                    .unwrap()
                    .with_weights(&cache);
            for weight in &refs {
                whole.bind(&weight.name, weight.clone()).unwrap();
            }
            let cut = DeviceMap::contiguous(&graph, &devices, &[1]).unwrap();
            let cut = Pipeline::builder(graph)
                .placement(cut)
                .weights(&cache)
                .bind_all(refs.clone())
                .spawn()
                .unwrap();
            assert_eq!(cut.sequential().num_segments(), 2);
            let kept = PackedBlocks::supports(format);
            for notices in [whole.notices(), cut.notices()] {
                let told = notices.iter().filter(|n| n.contains(format.name)).count();
                assert_eq!(told, if kept { 0 } else { 2 }, "{notices:?}");
            }
            for batch in [1, 3, 64] {
                let ids: Vec<i64> = (0..batch).map(|i| (i * 7 + 3) % ROWS as i64).collect();
                let x: Vec<f32> =
                    ids.iter().flat_map(|id| embedding[*id as usize * k..][..k].to_vec()).collect();
                let ids = Tensor::new([batch as usize], ids).unwrap();
                let have = whole.run_typed(&[("ids", ids.clone())]).unwrap();
                let streamed = cut.run([("ids", ids)]).unwrap();
                for ((_, a), b) in have.iter().zip(&streamed) {
                    assert_eq!(floats(a), floats(b), "{} × {batch}", format.name);
                }
                assert_eq!(floats(&have[0].1), x, "{}", format.name);
                for ((_, have), w) in have[1..].iter().zip([&embedding, &other]) {
                    let want = product(&x, w, k, format.weights, kept && !exact);
                    for (have, (want, bound)) in floats(have).iter().zip(&want) {
                        let error = (f64::from(*have) - want).abs();
                        assert!(
                            error <= *bound,
                            "{} × {batch}, exact {exact}: {have}, not {want} ± {bound}",
                            format.name
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_segment_holds_its_weights_once_and_packed() {
    let registry = Registry::default();
    let device = registry.device(&"cpu:0".parse().unwrap()).unwrap();
    for format in BLOCK_FORMATS.iter().filter(|f| PackedBlocks::supports(f)) {
        let (rows, k) = (256, width(format));
        let row = k / format.weights * format.bytes;
        let w = |seed| {
            let bytes = blocks(format, seed, rows * k / format.weights);
            Tensor::new([rows, row], bytes).unwrap()
        };
        let build = |products: bool| {
            let mut g = GraphBuilder::new("held");
            let ids = g.input("ids", DType::I64, [3.into()]).unwrap();
            let (embedding, other) = (g.constant(w(1)).unwrap(), g.constant(w(2)).unwrap());
            let x = g.dequant_gather(embedding, ids, format.name).unwrap();
            if !products {
                return g.finish([("x", x)]).unwrap();
            }
            let tied = g.dequant_matmul(x, embedding, format.name).unwrap();
            let y = g.dequant_matmul(x, other, format.name).unwrap();
            g.finish([("tied", tied), ("y", y)]).unwrap()
        };
        let segment = device.compile(build(true), &CompileOptions::default()).unwrap();
        let (held, packed) = (segment.weight_bytes(), 2 * rows * row);
        assert!(held >= packed && held * 100 <= packed * 105, "{}: {held} {packed}", format.name);
        // Of an embedding alone nothing is copied.
        let segment = device.compile(build(false), &CompileOptions::default()).unwrap();
        assert_eq!(segment.weight_bytes(), rows * row);
    }
}

#[test]
fn a_weight_of_another_type_or_size_is_refused() {
    let cache = cache();
    let format = BlockFormat::named("Q4_K").unwrap();
    let map = DeviceMap::single("cpu:0".parse().unwrap());
    let executable = HeteroExecutable::compile(graph(format, false), &map, &Default::default())
        .unwrap()
        .with_weights(&cache);
    let bind = |uri: &str, packed: bool| {
        let weight = WeightRef::new("other", uri);
        let weight = if packed { weight.packed() } else { weight };
        executable.bind("other", weight).map_err(|e| e.to_string())
    };
    // Stored in another type: its rows have another length.
    let error = bind("blocks://Q5_K-1", true).unwrap_err();
    for part in ["`other`", "u8[37,288]", "Q5_K[37,512]", "packed"] {
        assert!(error.contains(part), "{error}");
    }
    // Not asked for in its blocks.
    let error = bind("blocks://Q4_K-1", false).unwrap_err();
    assert!(error.contains("u8[37,288]") && error.contains("Q4_K[37,512]"), "{error}");
    assert!(executable.set_param_typed("other", DType::U8, &[0; 37 * 288 - 1]).is_err());
    bind("blocks://Q4_K-1", true).unwrap();

    // What the graph says of itself.
    let build = |format: &str, k: usize, row: usize| {
        let mut g = GraphBuilder::new("wrong");
        let x = g.input("x", DType::F32, [1.into(), k.into()]).unwrap();
        let w = g.param("w", DType::U8, &[4, row]).unwrap();
        g.dequant_matmul(x, w, format).map_err(|e| format!("{e} {e:?}"))
    };
    for (format, k, row, part) in [
        ("Q4_K", 256, 145, "no whole blocks of Q4_K"),
        ("Q4_K", 512, 144, "rows of 512"),
        ("Q9_9", 256, 144, "`Q9_9`"),
    ] {
        let error = build(format, k, row).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    build("Q4_K", 256, 144).unwrap();
}

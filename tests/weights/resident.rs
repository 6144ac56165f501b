//! What is asked for is what is read: memory of large files, and of parameters over them.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use brigade::ops::builder::GraphBuilder;
use brigade::{DType, HeteroExecutable, Pipeline, Tensor, WeightCache, WeightRef};

#[cfg(target_os = "linux")]
use super::mapped::resident;

const TENSORS: usize = 250;
const MIB: usize = 1 << 20;

/// A safetensors file of 250 tensors of 1 MiB, with holes where they lie: the last one ends in 7.5.
fn large_safetensors(path: &Path) {
    let mut header = String::from("{");
    for i in 0..TENSORS {
        let comma = if i == 0 { "" } else { "," };
        let (from, to) = (i * MIB, (i + 1) * MIB);
        header += &format!(
            "{comma}\"t{i}\":{{\"dtype\":\"F32\",\"shape\":[512,512],\"data_offsets\":[{from},{to}]}}"
        );
    }
    header += "}";
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let len = 8 + header.len() + TENSORS * MIB;
    file.set_len(len as u64 - 4).unwrap();
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(&7.5_f32.to_le_bytes()).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn of_a_large_file_only_the_tensors_that_are_asked_for_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    large_safetensors(&path);
    assert!(std::fs::metadata(&path).unwrap().len() > 250 * MIB as u64);
    let cache = WeightCache::new().with_root(folder.path()).unwrap();
    let uri = |i: usize| format!("safetensors://large.safetensors#t{i}");
    let first = cache.typed(&uri(100)).unwrap();
    let parsed = resident(&path);
    eprintln!("parsed: {} KiB resident of a file of 250 MiB", parsed / 1024);
    assert!(parsed < MIB, "{parsed} bytes for the header");
    let sum: f64 = first.as_slice::<f32>().unwrap().iter().map(|v| f64::from(*v)).sum();
    let last = cache.typed(&uri(TENSORS - 1)).unwrap();
    let end = last.as_slice::<f32>().unwrap().iter().sum::<f32>();
    assert_eq!((sum, end), (0.0, 7.5));
    let read = resident(&path);
    eprintln!("two tensors of 1 MiB read: {} KiB resident", read / 1024);
    assert!(read >= 2 * MIB, "{read} bytes: is it measured?");
    assert!(read < 4 * MIB, "{read} bytes for two tensors of 1 MiB");
    assert_eq!(cache.stats().bytes, 2 * MIB as u64);
}

/// Workers that are told where weights lie read their own ranges there, in parallel, and nothing else:
/// each counts the bytes of its tensors, and all their maps together hold no more of the file.
#[cfg(target_os = "linux")]
#[test]
fn scenario_32_workers_read_their_own_ranges_of_a_local_file_in_parallel() {
    const WORKERS: usize = 4;
    const EACH: usize = 3;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    large_safetensors(&path);
    let ready = std::sync::Barrier::new(WORKERS + 1);
    let read = std::thread::scope(|scope| {
        let work = |worker: usize| {
            // A worker shares nothing with the others: it opens the file itself.
            let cache = WeightCache::new().with_root(folder.path()).unwrap();
            let tensors = (0..EACH)
                .map(|i| TENSORS - 1 - worker * EACH - i)
                .map(|i| cache.typed(&format!("safetensors://large.safetensors#t{i}")).unwrap());
            let tensors: Vec<Tensor> = tensors.collect();
            let sum: f32 = tensors.iter().flat_map(|t| t.as_slice::<f32>().unwrap()).sum();
            ready.wait();
            // What is resident is looked at now, while all of them hold their tensors.
            ready.wait();
            (sum, cache.stats())
        };
        let workers: Vec<_> = (0..WORKERS).map(|w| scope.spawn(move || work(w))).collect();
        ready.wait();
        let read = resident(&path);
        ready.wait();
        for (k, worker) in workers.into_iter().enumerate() {
            let (sum, stats) = worker.join().unwrap();
            assert_eq!(sum, if k == 0 { 7.5 } else { 0.0 });
            assert_eq!((stats.files, stats.parses, stats.loads), (1, 1, EACH as u64));
            assert_eq!(stats.bytes, (EACH * MIB) as u64);
        }
        read
    });
    let asked = WORKERS * EACH * MIB;
    eprintln!("{WORKERS} workers, {EACH} MiB each: {} KiB resident", read / 1024);
    assert!(read >= asked, "{read} bytes: is it measured?");
    // Each map has the header, and pages around what is read.
    assert!(read < asked + WORKERS * MIB, "{read} bytes for {asked}");
}

/// Parameters of every kind, through the builder and through an executable, over one cache.
#[test]
fn parameters_are_bound_typed_and_by_uri() {
    let folder = tempfile::tempdir().unwrap();
    large_safetensors(&folder.path().join("m.safetensors"));
    let graph = || {
        let mut g = GraphBuilder::new("params");
        let x = g.input("x", DType::F32, [1.into(), 512.into()]).unwrap();
        let w = g.param("w", DType::F32, &[512, 512]).unwrap();
        let b = g.param("b", DType::F32, &[512]).unwrap();
        let ids = g.param("ids", DType::I64, &[2]).unwrap();
        let h = g.matmul(x, w).unwrap();
        let h = g.add(h, b).unwrap();
        let y = g.op("Gather", &[h, ids], &[("axis", 1_i64.into())]).unwrap();
        g.finish([("y", y)]).unwrap()
    };
    let ids: Vec<u8> = [0_i64, 511].iter().flat_map(|v| v.to_le_bytes()).collect();
    let b: Vec<f32> = (0..512).map(|i| i as f32).collect();
    let x = Tensor::new([1, 512], vec![2.0_f32; 512]).unwrap();
    let cache = WeightCache::new().with_root(folder.path()).unwrap();
    let last = WeightRef::new("w", format!("safetensors://m.safetensors#t{}", TENSORS - 1));
    let pipeline = Pipeline::builder(graph())
        .weights(&cache)
        .bind_all([last.clone()])
        .set_param("b", &b)
        .set_param_typed("ids", DType::I64, &ids)
        .spawn()
        .unwrap();
    let outputs = pipeline.run([("x", x.clone())]).unwrap();
    // Column 511 of the last row is 7.5.
    assert_eq!(outputs[0].tensor().unwrap().as_slice::<f32>().unwrap(), [0.0, 526.0]);

    let map = brigade::DeviceMap::single("cpu:0".parse().unwrap());
    let executable = HeteroExecutable::compile(graph(), &map, &Default::default()).unwrap();
    let executable = executable.with_weights(&cache);
    executable.bind("w", last).unwrap();
    executable.bind("b", Tensor::new([512], b).unwrap()).unwrap();
    executable.set_param_typed("ids", DType::I64, &ids).unwrap();
    let outputs = executable.run_typed(&[("x", x)]).unwrap();
    assert_eq!(outputs[0].1.tensor().unwrap().as_slice::<f32>().unwrap(), [0.0, 526.0]);
    assert_eq!((cache.stats().files, cache.stats().parses), (1, 1));

    // Errors name the parameter: a wrong name, shape, dtype, and what lies outside of the roots.
    let refused = |name: &str, uri: &str, words: &[&str]| {
        let error = executable.bind(name, WeightRef::new("", uri)).unwrap_err().to_string();
        assert!(words.iter().all(|w| error.contains(w)), "{error}");
    };
    refused("v", "safetensors://m.safetensors#t1", &["`v`", "`w`"]);
    refused("b", "safetensors://m.safetensors#t1", &["`b`", "f32[512]", "f32[512,512]"]);
    refused("ids", "safetensors://m.safetensors#t1", &["`ids`", "i64[2]", "f32[512,512]"]);
    refused("w", "safetensors://m.safetensors#t9999", &["`w`", "`t9999`"]);
    refused("w", "safetensors:///dev/null#t1", &["`w`", "below the weight roots"]);
}

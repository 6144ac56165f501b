//! The items that a model is fed: files, folders, archives, or made up.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;

use super::placing::Placed;
use crate::error::{Error, ErrorKind, Result, bail, err};
use crate::graph::{Dim, Fact, Graph};
use crate::import;
use crate::tensor::{DType, Tensor, Value, cast, element_count};

/// The flags that say what a model is fed.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Source {
    /// What an input is fed: a `.npy` file (one item), an `.npz` file (one item, its keys are the
    /// inputs; no NAME=), or a folder of them (an item each, in byte-wise order of the names;
    /// several inputs are matched by stem). NAME= may be left out for a model with one input
    #[arg(long, value_name = "[NAME=]PATH")]
    pub(super) input: Vec<String>,
    /// Make up N items: floats in -1..1, whole numbers 0..9, bools
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "input")]
    pub(super) generate: Option<u32>,
    /// Seed of what is made up
    #[arg(long, value_name = "S")]
    pub(super) seed: Option<u64>,
}

impl Source {
    /// The items, and what was passed over, in words.
    pub(super) fn open(&self, placed: &Placed) -> Result<(Items, Vec<String>)> {
        match self.generate {
            Some(n) => {
                let shapes = &placed.shapes;
                let seed = self.seed.unwrap_or(0);
                let items = Items::generated(&placed.graph, shapes, n as usize, seed)?;
                Ok((items, Vec::new()))
            }
            None if self.seed.is_some() => {
                bail!(Usage, "--seed is of no use without --generate: nothing is made up")
            }
            None => Items::from_files(&placed.graph, &self.input),
        }
    }
}

/// One item: its name, and what is fed or why that cannot be read.
pub(super) struct Item {
    pub(super) stem: String,
    pub(super) inputs: Result<Vec<(String, Value)>>,
}

/// Where items come from. Items are read when they are asked for, never all at once.
#[derive(Debug)]
pub(super) enum Items {
    /// Per item: its stem, and the file of each input (`None`: an archive that names its inputs).
    Files(Vec<(String, Vec<(Option<String>, PathBuf)>)>),
    /// Made-up values of these dtypes and shapes.
    Generated { count: usize, seed: u64, inputs: Vec<(String, DType, Vec<usize>)> },
}

impl Items {
    /// The items in files; each argument is `PATH` or `NAME=PATH`. The second part lists what was
    /// passed over, in words.
    pub(super) fn from_files(graph: &Graph, arguments: &[String]) -> Result<(Self, Vec<String>)> {
        let inputs: Vec<&str> = graph.input_names().collect();
        let mut named: BTreeMap<&str, PathBuf> = BTreeMap::new();
        let mut bare: Option<PathBuf> = None;
        for argument in arguments {
            let (name, path) = parse(&inputs, argument)?;
            let twice = match name {
                Some(name) => named.insert(name, path).is_some(),
                None => bare.replace(path).is_some(),
            };
            if twice {
                return Err(err!(Usage, "--input is given twice for one input: `{argument}`")
                    .with_help("put several items into a folder and give that"));
            }
        }
        let mut notices = Vec::new();
        match bare {
            Some(path) if named.is_empty() => {
                let files = unnamed(&inputs, &path, &mut notices)?;
                Ok((Self::Files(files), notices))
            }
            Some(path) => Err(err!(Usage, "--input {} does not say which input", path.display())
                .with_help("write NAME=PATH for each of several inputs")),
            None => {
                let missing: Vec<String> = inputs
                    .iter()
                    .filter(|n| !named.contains_key(*n))
                    .map(|n| format!("`{n}`"))
                    .collect();
                if !missing.is_empty() {
                    return Err(err!(Usage, "no --input for {}", missing.join(", "))
                        .with_help("write --input NAME=PATH for each input, or --bind it"));
                }
                let files = matched(&named, &mut notices)?;
                Ok((Self::Files(files), notices))
            }
        }
    }

    /// `count` items of made-up values, the same for the same seed.
    pub(super) fn generated(
        graph: &Graph,
        shapes: &BTreeMap<String, Vec<usize>>,
        count: usize,
        seed: u64,
    ) -> Result<Self> {
        let mut inputs = Vec::new();
        let mut vague = Vec::new();
        for v in graph.inputs() {
            let info = graph.value(*v);
            let shape = shapes.get(&info.name).cloned().or_else(|| declared(&info.fact));
            match (info.fact.dtype, shape) {
                (Some(DType::String), _) => {
                    bail!(Usage, "input `{}` is of strings, which cannot be made up", info.name)
                }
                (Some(dtype), Some(shape)) => {
                    // An item that memory cannot hold is refused before any is made.
                    Tensor::zeros(dtype, shape.clone())?;
                    inputs.push((info.name.clone(), dtype, shape));
                }
                _ => vague.push(format!("`{}` is {}", info.name, info.fact)),
            }
        }
        if !vague.is_empty() {
            return Err(err!(Usage, "--generate needs shapes: input {}", vague.join(", input "))
                .with_help("say --shape NAME=1,3,… for each"));
        }
        Ok(Self::Generated { count, seed, inputs })
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Files(files) => files.len(),
            Self::Generated { count, .. } => *count,
        }
    }

    /// The item at a place.
    fn item(&self, at: usize) -> Item {
        match self {
            Self::Files(files) => {
                let (stem, parts) = &files[at];
                Item { stem: stem.clone(), inputs: read(parts) }
            }
            Self::Generated { seed, inputs, .. } => {
                let mut random = Random::new(*seed, at as u64);
                let make = |(name, dtype, shape): &(String, DType, Vec<usize>)| {
                    Ok((name.clone(), random.tensor(*dtype, shape)?.into()))
                };
                Item { stem: format!("{at:06}"), inputs: inputs.iter().map(make).collect() }
            }
        }
    }

    /// The items, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Item> {
        (0..self.len()).map(|at| self.item(at))
    }
}

fn declared(fact: &Fact) -> Option<Vec<usize>> {
    fact.shape.as_ref()?.iter().map(Dim::as_extent).collect()
}

fn read(parts: &[(Option<String>, PathBuf)]) -> Result<Vec<(String, Value)>> {
    let mut out = Vec::with_capacity(parts.len());
    for (name, path) in parts {
        match name {
            Some(name) => out.push((name.clone(), import::read_npy(path)?.into())),
            None => {
                let arrays = import::read_npz(path)?;
                out.extend(arrays.into_iter().map(|(n, t)| (n, Value::from(t))));
            }
        }
    }
    Ok(out)
}

/// Which input an argument is for (`None`: it does not say), and its path.
fn parse<'a>(inputs: &[&'a str], argument: &str) -> Result<(Option<&'a str>, PathBuf)> {
    // Names may hold a `=` as paths may, so that the longest name that is an input counts.
    let named = inputs
        .iter()
        .filter_map(|n| Some((*n, argument.strip_prefix(n)?.strip_prefix('=')?)))
        .max_by_key(|(n, _)| n.len());
    if let Some((name, path)) = named {
        return Ok((Some(name), path.into()));
    }
    if let Some((name, _)) = argument.split_once('=')
        && !Path::new(argument).exists()
    {
        let names: Vec<String> = inputs.iter().map(|n| format!("`{n}`")).collect();
        return Err(err!(UnknownName, "--input {argument}: the model has no input `{name}`")
            .with_help(format!("its inputs are {}", names.join(", "))));
    }
    Ok((None, argument.into()))
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ending))
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn missing_path(path: &Path, e: std::io::Error) -> Error {
    err!(Io, "cannot read `{}`", path.display()).with_source(e)
}

/// The arrays and archives in a folder, in byte-wise order of their names.
fn listing(folder: &Path, notices: &mut Vec<String>) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let mut other = 0;
    for entry in std::fs::read_dir(folder).map_err(|e| missing_path(folder, e))? {
        let path = entry?.path();
        if path.is_file() && (has_ending(&path, "npy") || has_ending(&path, "npz")) {
            paths.push(path);
        } else {
            other += 1;
        }
    }
    if paths.is_empty() {
        return Err(err!(Missing, "`{}` holds no .npy and no .npz file", folder.display())
            .with_help("each item is one such file"));
    }
    if other > 0 {
        let shown = folder.display();
        notices.push(format!("{other} entries of `{shown}` are neither .npy nor .npz: left out"));
    }
    paths.sort_by(|a, b| a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes()));
    Ok(paths)
}

type Files = Vec<(String, Vec<(Option<String>, PathBuf)>)>;

/// Items of a path that does not say which input it is for.
fn unnamed(inputs: &[&str], path: &Path, notices: &mut Vec<String>) -> Result<Files> {
    let metadata = std::fs::metadata(path).map_err(|e| missing_path(path, e))?;
    let paths = if metadata.is_dir() { listing(path, notices)? } else { vec![path.to_owned()] };
    let mut files = Files::new();
    let mut seen = BTreeSet::new();
    for path in paths {
        let part = if has_ending(&path, "npz") {
            None
        } else if let [only] = inputs {
            Some((*only).to_owned())
        } else {
            let names: Vec<String> = inputs.iter().map(|n| format!("`{n}`")).collect();
            return Err(err!(
                Usage,
                "--input {} does not say which of {} inputs it is",
                path.display(),
                inputs.len()
            )
            .with_help(format!("write NAME=PATH; the inputs are {}", names.join(", "))));
        };
        let stem = stem(&path);
        if !seen.insert(stem.clone()) {
            bail!(Duplicate, "two items are called `{stem}` (by the names of their files)");
        }
        files.push((stem, vec![(part, path)]));
    }
    Ok(files)
}

/// Items of several inputs: one, if all are files; else folders whose stems match.
fn matched(named: &BTreeMap<&str, PathBuf>, notices: &mut Vec<String>) -> Result<Files> {
    let mut folders = 0;
    for path in named.values() {
        let metadata = std::fs::metadata(path).map_err(|e| missing_path(path, e))?;
        folders += usize::from(metadata.is_dir());
        if metadata.is_file() && has_ending(path, "npz") {
            return Err(err!(Usage, "`{}` names its inputs itself", path.display())
                .with_help("give an .npz without NAME="));
        }
    }
    if folders == 0 {
        let parts: Vec<_> = named.iter().map(|(n, p)| (Some((*n).to_owned()), p.clone())).collect();
        let name = parts.first().map(|(_, p)| stem(p)).unwrap_or_default();
        return Ok(vec![(name, parts)]);
    }
    if folders < named.len() {
        return Err(err!(Usage, "some inputs are folders and some are files")
            .with_help("an input that is the same for all items goes to --bind NAME=PATH.npy"));
    }
    let mut by_input: Vec<(&str, Vec<(String, PathBuf)>)> = Vec::new();
    for (name, folder) in named {
        let mut files = Vec::new();
        let mut seen = BTreeSet::new();
        for path in listing(folder, notices)? {
            if has_ending(&path, "npz") {
                bail!(Usage, "`{}`: an .npz names its inputs itself", path.display());
            }
            let stem = stem(&path);
            if !seen.insert(stem.clone()) {
                bail!(Duplicate, "two files of input `{name}` have the stem `{stem}`");
            }
            files.push((stem, path));
        }
        by_input.push((name, files));
    }
    let stems: BTreeSet<&str> =
        by_input.iter().flat_map(|(_, files)| files.iter().map(|(s, _)| s.as_str())).collect();
    let mut lacking = Vec::new();
    for (name, files) in &by_input {
        let own: BTreeSet<&str> = files.iter().map(|(s, _)| s.as_str()).collect();
        let absent: Vec<String> = stems.difference(&own).map(|s| format!("`{s}`")).collect();
        if !absent.is_empty() {
            lacking.push(format!("input `{name}` lacks {}", absent.join(", ")));
        }
    }
    if !lacking.is_empty() {
        return Err(err!(Missing, "items are matched by stem: {}", lacking.join("; "))
            .with_help("each folder needs a file of the same stem for each item"));
    }
    let Some((_, first)) = by_input.first() else { return Ok(Files::new()) };
    let part = |stem: &str| {
        by_input
            .iter()
            .filter_map(|(name, files)| {
                let (_, path) = files.iter().find(|(s, _)| s == stem)?;
                Some((Some((*name).to_owned()), path.clone()))
            })
            .collect()
    };
    Ok(first.iter().map(|(stem, _)| (stem.clone(), part(stem))).collect())
}

/// A small generator (xorshift64*), so that made-up items are the same everywhere.
struct Random(u64);

impl Random {
    fn new(seed: u64, item: u64) -> Self {
        // SplitMix64 spreads seeds that differ in one bit.
        let mut x = seed.wrapping_add((item + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self((x ^ (x >> 31)).max(1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Floats in -1..1, whole numbers in 0..=9, bools.
    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let count = element_count(shape, dtype.size())?;
        let wide = if dtype.is_float() {
            let unit = |x: u64| (x >> 40) as f32 / (1_u32 << 23) as f32 - 1.0;
            Tensor::new(shape, (0..count).map(|_| unit(self.next())).collect::<Vec<f32>>())?
        } else {
            let most = if dtype == DType::Bool { 2 } else { 10 };
            let small = |x: u64| ((x >> 32) % most) as u8;
            Tensor::new(shape, (0..count).map(|_| small(self.next())).collect::<Vec<u8>>())?
        };
        cast(&wide, dtype).map_err(|e| Error::new(ErrorKind::Usage, e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(inputs: &[&str]) -> Graph {
        let mut g = Graph::new("g");
        for name in inputs {
            g.add_input(*name, Fact::concrete(DType::F32, &[2])).unwrap();
        }
        g
    }

    fn write(path: &Path, value: f32) {
        import::write_npy(path, &Tensor::new([2], vec![value; 2]).unwrap()).unwrap();
    }

    #[test]
    fn folders_are_items_in_byte_order_matched_by_stem() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        for (dir, at) in [(&a, 0.0), (&b, 10.0)] {
            std::fs::create_dir(dir).unwrap();
            for (i, stem) in ["Z", "a", "é"].iter().enumerate() {
                write(&dir.join(format!("{stem}.npy")), at + i as f32);
            }
        }
        std::fs::write(a.join("notes.txt"), "x").unwrap();
        let arguments = [format!("x={}", a.display()), format!("y={}", b.display())];
        let g = graph(&["x", "y"]);
        let (items, notices) = Items::from_files(&g, &arguments).unwrap();
        assert_eq!(notices.len(), 1);
        let read: Vec<Item> = items.iter().collect();
        assert_eq!(read.iter().map(|i| i.stem.as_str()).collect::<Vec<_>>(), ["Z", "a", "é"]);
        let second = read[1].inputs.as_ref().unwrap();
        let first = |v: &Value| v.tensor().unwrap().as_slice::<f32>().unwrap()[0];
        assert_eq!((second[0].0.as_str(), first(&second[0].1)), ("x", 1.0));
        assert_eq!((second[1].0.as_str(), first(&second[1].1)), ("y", 11.0));

        std::fs::remove_file(b.join("a.npy")).unwrap();
        write(&b.join("extra.npy"), 0.0);
        let error = Items::from_files(&g, &arguments).unwrap_err().to_string();
        for part in ["`x` lacks `extra`", "`y` lacks `a`"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn an_archive_is_an_item_and_a_broken_file_is_one_bad_item() {
        let folder = tempfile::tempdir().unwrap();
        let t = Tensor::new([2], vec![1.0_f32, 2.0]).unwrap();
        let both = [("y".to_owned(), t.clone()), ("x".to_owned(), t)];
        import::write_npz(folder.path().join("one.npz"), &both).unwrap();
        std::fs::write(folder.path().join("two.npz"), "no").unwrap();
        let path = folder.path().display().to_string();
        let (items, _) = Items::from_files(&graph(&["x", "y"]), &[path]).unwrap();
        let read: Vec<Item> = items.iter().collect();
        assert_eq!(read[0].inputs.as_ref().unwrap()[0].0, "y");
        assert!(read[1].inputs.as_ref().unwrap_err().to_string().contains("two.npz"));
    }

    #[test]
    fn arguments_that_name_nothing_are_refused() {
        let g = graph(&["x", "y=z"]);
        let kind = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            Items::from_files(&g, &arguments).unwrap_err().kind()
        };
        assert_eq!(kind(&["q=a.npy"]), ErrorKind::UnknownName);
        assert_eq!(kind(&["x=a.npy"]), ErrorKind::Usage);
        assert_eq!(kind(&["x=a.npy", "x=b.npy"]), ErrorKind::Usage);
        assert_eq!(kind(&["x=no/such.npy", "y=z=no/such.npy"]), ErrorKind::Io);
        assert_eq!(kind(&["no/such/folder"]), ErrorKind::Io);
    }

    #[test]
    fn made_up_items_repeat_and_keep_to_their_dtype() {
        let mut g = graph(&["x"]);
        g.add_input("n", Fact::new(DType::I64, [Dim::symbol("N")])).unwrap();
        g.add_input("b", Fact::concrete(DType::Bool, &[40])).unwrap();
        let shapes = BTreeMap::new();
        let error = Items::generated(&g, &shapes, 2, 7).unwrap_err().to_string();
        assert!(error.contains("`n`") && error.contains("--shape"), "{error}");
        let shapes = BTreeMap::from([("n".to_owned(), vec![50])]);
        let get = |seed| Items::generated(&g, &shapes, 2, seed).unwrap();
        let feeds = |items: Items| -> Vec<_> { items.iter().map(|i| i.inputs.unwrap()).collect() };
        let (one, again, other) = (feeds(get(7)), feeds(get(7)), feeds(get(8)));
        assert_eq!(one, again);
        assert_ne!(one, other);
        assert_ne!(one[0], one[1]);
        let n = one[0][1].1.tensor().unwrap().as_slice::<i64>().unwrap();
        assert!(n.iter().all(|v| (0..10).contains(v)) && n.iter().any(|v| *v != n[0]));
        let x = one[0][0].1.tensor().unwrap().as_slice::<f32>().unwrap();
        assert!(x.iter().all(|v| (-1.0..1.0).contains(v)));
        let b = one[0][2].1.tensor().unwrap().as_slice::<bool>().unwrap();
        assert!(b.contains(&true) && b.contains(&false));
    }
}

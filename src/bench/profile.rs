//! Where the wall time of a run went, node by node, beside what the cores can do at most.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::Serialize;

use super::Peaks;
use crate::error::Result;
use crate::ops::NodeProfile;
use crate::pipeline::GraphProfile;

/// Where the time of a run went. The nodes, [`between_nodes_s`](Self::between_nodes_s) and
/// [`outside_s`](Self::outside_s) add up to [`wall_s`](Self::wall_s) × [`actors`](Self::actors).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileReport {
    /// How long the run took.
    pub wall_s: f64,
    /// How many actors shared it; 1 where one segment ran after the other.
    pub actors: usize,
    /// Peaks, by the number of threads of a segment.
    pub peaks: Vec<Peaks>,
    /// Each node, the one with the most time first.
    pub nodes: Vec<NodeRow>,
    /// Each operator, likewise.
    pub kinds: Vec<KindRow>,
    /// In segments and not in nodes: handing values on, freeing them, taking these times.
    pub between_nodes_s: f64,
    /// Outside of segments: reading, writing and handing over items, and waiting for them.
    pub outside_s: f64,
    /// The nodes that lost the most time against their limit, the first three.
    pub furthest_from_limit: Vec<String>,
    /// Segments that are not profiled; their time is in [`outside_s`](Self::outside_s).
    pub unprofiled: Vec<String>,
}

/// What one node did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeRow {
    /// Its segment.
    pub segment: usize,
    /// Its name; of a node within another's graph `outer/inner`, whose time `outer` does not count.
    pub name: String,
    /// Its operator.
    pub op: String,
    /// How it did.
    #[serde(flatten)]
    pub reached: Reached,
}

/// What all nodes of one operator did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindRow {
    /// The operator.
    pub op: String,
    /// How many nodes.
    pub nodes: usize,
    /// How they did.
    #[serde(flatten)]
    pub reached: Reached,
}

/// Time, and what was done in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reached {
    /// How often it ran.
    pub calls: u64,
    /// How long that took in all.
    pub seconds: f64,
    /// As a part of the whole, 0 to 1.
    pub share: f64,
    /// Arithmetic operations a second, in 10^9, by the cost model.
    pub gflops: f64,
    /// Bytes read and written a second, in 10^9, by the cost model.
    pub gb_per_s: f64,
    /// The time in which nothing could have done it: the longer one by arithmetic and by memory.
    pub least_s: f64,
    /// `least_s` / `seconds`; above 1 where what is read and written lies in a cache. 0 where the
    /// cost model knows of no work.
    pub of_limit: f64,
    #[serde(skip)]
    flops: f64,
    #[serde(skip)]
    bytes: f64,
}

impl Reached {
    fn add(&mut self, node: &NodeProfile, peaks: Option<&Peaks>) {
        self.calls += node.calls;
        self.seconds += node.seconds;
        self.flops += node.flops;
        self.bytes += node.bytes;
        self.least_s += peaks.map_or(0.0, |p| p.least_seconds(node.flops, node.bytes));
    }

    fn finish(mut self, whole: f64) -> Self {
        let rate = |amount: f64| if self.seconds > 0.0 { amount / self.seconds } else { 0.0 };
        (self.gflops, self.gb_per_s) = (rate(self.flops) / 1e9, rate(self.bytes) / 1e9);
        self.of_limit = rate(self.least_s);
        self.share = if whole > 0.0 { self.seconds / whole } else { 0.0 };
        self
    }
}

/// How many nodes are named as furthest from their limit.
const FURTHEST: usize = 3;
/// How many nodes the text shows; the JSON has all.
const SHOWN: usize = 20;

impl ProfileReport {
    /// The report of what `profile` saw in a run of `wall_s` seconds that so many actors shared.
    /// Measures the peaks, now.
    ///
    /// # Errors
    /// If the peaks cannot be measured.
    pub fn new(profile: &GraphProfile, wall_s: f64, actors: usize) -> Result<Self> {
        let mut peaks: BTreeMap<usize, Peaks> = BTreeMap::new();
        for segment in profile.segments.iter().filter(|s| s.profile.is_some()) {
            if let Entry::Vacant(place) = peaks.entry(segment.threads) {
                place.insert(Peaks::measure(segment.threads)?);
            }
        }
        Ok(Self::with_peaks(profile, wall_s, actors, peaks.into_values().collect()))
    }

    fn with_peaks(profile: &GraphProfile, wall_s: f64, actors: usize, peaks: Vec<Peaks>) -> Self {
        let whole = wall_s * actors as f64;
        let mut nodes: Vec<NodeRow> = Vec::new();
        let mut kinds: BTreeMap<&str, (usize, Reached)> = BTreeMap::new();
        let mut unprofiled = Vec::new();
        let (mut inside, mut between_nodes_s) = (0.0, 0.0);
        for segment in &profile.segments {
            let Some(measured) = &segment.profile else {
                unprofiled.push(format!("segment {} on {}", segment.segment, segment.device));
                continue;
            };
            let peaks = peaks.iter().find(|p| p.threads == segment.threads);
            inside += measured.seconds;
            between_nodes_s += measured.between_nodes();
            for node in &measured.nodes {
                let mut reached = Reached::default();
                reached.add(node, peaks);
                nodes.push(NodeRow {
                    segment: segment.segment,
                    name: node.name.clone(),
                    op: node.op.clone(),
                    reached: reached.finish(whole),
                });
                let (count, kind) = kinds.entry(&node.op).or_default();
                *count += 1;
                kind.add(node, peaks);
            }
        }
        let lost = |n: &NodeRow| n.reached.seconds - n.reached.least_s;
        nodes.sort_by(|a, b| lost(b).total_cmp(&lost(a)));
        let furthest_from_limit = nodes.iter().take(FURTHEST).map(|n| n.name.clone()).collect();
        nodes.sort_by(|a, b| b.reached.seconds.total_cmp(&a.reached.seconds));
        let mut kinds: Vec<KindRow> = kinds
            .into_iter()
            .map(|(op, (nodes, reached))| KindRow {
                op: op.to_owned(),
                nodes,
                reached: reached.finish(whole),
            })
            .collect();
        kinds.sort_by(|a, b| b.reached.seconds.total_cmp(&a.reached.seconds));
        Self {
            wall_s,
            actors,
            peaks,
            nodes,
            kinds,
            between_nodes_s,
            outside_s: whole - inside,
            furthest_from_limit,
            unprofiled,
        }
    }

    /// A line of the table: time and share, and for nodes what they reached.
    fn line(
        f: &mut fmt::Formatter<'_>,
        name: &str,
        count: &str,
        seconds: f64,
        whole: f64,
        reached: Option<&Reached>,
    ) -> fmt::Result {
        let share = if whole > 0.0 { 100.0 * seconds / whole } else { 0.0 };
        write!(f, "{name:44}  {count:>8}  {:>10.3}  {share:>5.1}", seconds * 1e3)?;
        match reached {
            Some(r) if r.least_s > 0.0 => {
                writeln!(f, "  {:>7.1}  {:>6.1}  {:>8.0}", r.gflops, r.gb_per_s, 100.0 * r.of_limit)
            }
            _ => writeln!(f),
        }
    }
}

/// A name in at most so many characters, of which the end tells more than the begin.
fn shortened(name: &str) -> String {
    const MOST: usize = 26;
    let count = name.chars().count();
    if count <= MOST {
        return name.to_owned();
    }
    std::iter::once('…').chain(name.chars().skip(count - MOST + 1)).collect()
}

impl fmt::Display for ProfileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.wall_s * self.actors as f64;
        write!(f, "profile of {:.3} s", self.wall_s)?;
        match self.actors {
            1 => writeln!(f)?,
            n => writeln!(f, " in {n} actors, so {whole:.3} s in all")?,
        }
        for peaks in &self.peaks {
            writeln!(f, "limits on {} thread(s): {peaks}", peaks.threads)?;
        }
        let head = |f: &mut fmt::Formatter<'_>, what: &str, count: &str| {
            writeln!(
                f,
                "{what:44}  {count:>8}  {:>10}  {:>5}  {:>7}  {:>6}  {:>8}",
                "ms", "%", "GFLOP/s", "GB/s", "% of lim"
            )
        };
        head(f, "operator", "nodes")?;
        for kind in &self.kinds {
            let (r, count) = (&kind.reached, kind.nodes.to_string());
            Self::line(f, &kind.op, &count, r.seconds, whole, Some(r))?;
        }
        Self::line(f, "(between nodes)", "", self.between_nodes_s, whole, None)?;
        Self::line(f, "(outside of segments)", "", self.outside_s, whole, None)?;
        Self::line(f, "(all)", "", whole, whole, None)?;
        head(f, "node", "calls")?;
        for node in self.nodes.iter().take(SHOWN) {
            let (r, name) = (&node.reached, shortened(&node.name));
            let name = format!("{name:26} {}", node.op);
            Self::line(f, &name, &r.calls.to_string(), r.seconds, whole, Some(r))?;
        }
        let rest = &self.nodes[SHOWN.min(self.nodes.len())..];
        if !rest.is_empty() {
            let seconds = rest.iter().map(|n| n.reached.seconds).sum();
            let name = format!("({} more nodes)", rest.len());
            Self::line(f, &name, "", seconds, whole, None)?;
        }
        if !self.furthest_from_limit.is_empty() {
            let names: Vec<String> =
                self.furthest_from_limit.iter().map(|n| format!("`{n}`")).collect();
            writeln!(f, "furthest from their limit: {}", names.join(", "))?;
        }
        for segment in &self.unprofiled {
            writeln!(f, "{segment} is not profiled: its time is outside of segments")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::ops::builder::GraphBuilder;
    use crate::ops::{CompileOptions, SegmentProfile};
    use crate::partition::DeviceMap;
    use crate::pipeline::{HeteroExecutable, Pipeline, ProfiledSegment};
    use crate::tensor::{DType, Tensor};

    const PEAKS: Peaks = Peaks { threads: 1, isa: "scalar", gflops: 1.0, read_gb_per_s: 1.0 };

    fn graph() -> crate::graph::Graph {
        let mut g = GraphBuilder::new("g");
        let mut h = g.input("x", DType::F32, [256.into(), 256.into()]).unwrap();
        let w = g.constant(Tensor::new([256, 256], vec![0.01_f32; 65536]).unwrap()).unwrap();
        for _ in 0..4 {
            h = g.matmul(h, w).unwrap();
            h = g.softmax(h, 1).unwrap();
        }
        g.finish([("y", h)]).unwrap()
    }

    fn options(profile: bool) -> CompileOptions {
        CompileOptions { profile, ..CompileOptions::default() }
    }

    fn x() -> Tensor {
        Tensor::new([256, 256], vec![0.5_f32; 65536]).unwrap()
    }

    #[test]
    fn rows_add_up_to_the_wall_time_and_name_every_node() {
        let map = DeviceMap::single(crate::DeviceId::cpu(0));
        let executable = HeteroExecutable::compile(graph(), &map, &options(true)).unwrap();
        executable.run_typed(&[("x", x())]).unwrap();
        let mut outside = Vec::new();
        for _ in 0..7 {
            let before = executable.node_profile().unwrap();
            let began = Instant::now();
            for _ in 0..2 {
                executable.run_typed(&[("x", x())]).unwrap();
            }
            let wall = began.elapsed().as_secs_f64();
            let profile = executable.node_profile().unwrap().since(&before);
            let report = ProfileReport::with_peaks(&profile, wall, 1, vec![PEAKS]);
            let nodes: f64 = report.nodes.iter().map(|n| n.reached.seconds).sum();
            let kinds: f64 = report.kinds.iter().map(|k| k.reached.seconds).sum();
            assert!((nodes - kinds).abs() < 1e-9);
            let sum = nodes + report.between_nodes_s + report.outside_s;
            assert!((sum / wall - 1.0).abs() < 1e-6, "{sum} of {wall}");
            let mut names: Vec<&str> = report.nodes.iter().map(|n| n.name.as_str()).collect();
            let mut expected: Vec<&str> =
                executable.graph().nodes().iter().map(|n| n.name.as_str()).collect();
            names.sort_unstable();
            expected.sort_unstable();
            assert_eq!(names, expected);
            assert!(report.between_nodes_s >= 0.0 && report.outside_s >= 0.0, "{report:?}");
            outside.push((report.between_nodes_s + report.outside_s) / wall);
        }
        // What is not in nodes is little, though it is measured by another clock: the median, as
        // another process may come between. Making the input takes most of it.
        outside.sort_by(f64::total_cmp);
        assert!(outside[3] < 0.15, "{outside:?}");
    }

    #[test]
    fn a_pipeline_has_the_time_of_all_its_actors() {
        let pipeline = Pipeline::builder(graph())
            .options(options(true))
            .stages(2, &["cpu:0", "cpu:1"])
            .unwrap()
            .spawn()
            .unwrap();
        for result in pipeline.stream((0..8).map(|_| [("x", x())])) {
            result.unwrap();
        }
        let profile = pipeline.node_profile().unwrap();
        let runs = |at: usize| profile.segments[at].profile.as_ref().unwrap().runs;
        assert_eq!((profile.segments.len(), runs(0), runs(1)), (2, 8, 8));
        let nodes = pipeline.sequential().graph().nodes().len();
        let found: usize =
            profile.segments.iter().map(|s| s.profile.as_ref().unwrap().nodes.len()).sum();
        assert_eq!(found, nodes);
    }

    #[test]
    fn there_is_no_profile_unless_asked_for() {
        let map = DeviceMap::single(crate::DeviceId::cpu(0));
        let executable = HeteroExecutable::compile(graph(), &map, &options(false)).unwrap();
        executable.run_typed(&[("x", x())]).unwrap();
        assert!(executable.node_profile().is_none());
    }

    #[test]
    fn the_text_adds_up_and_says_what_is_left_out() {
        let node = |name: &str, seconds: f64, flops: f64| NodeProfile {
            name: name.to_owned(),
            op: "MatMul".to_owned(),
            place: 0,
            calls: 2,
            seconds,
            flops,
            bytes: 0.0,
        };
        let nodes = vec![node("near", 2.0, 1.9e9), node("far", 1.0, 1e8)];
        let measured = SegmentProfile { runs: 2, seconds: 3.5, nodes };
        let segment = |segment, profile| ProfiledSegment {
            segment,
            device: crate::DeviceId::cpu(0),
            threads: 1,
            profile,
        };
        let profile = GraphProfile { segments: vec![segment(0, Some(measured)), segment(1, None)] };
        let report = ProfileReport::with_peaks(&profile, 4.0, 1, vec![PEAKS]);
        assert_eq!(report.furthest_from_limit, ["far", "near"]);
        assert_eq!(report.nodes[0].name, "near");
        assert!((report.nodes[0].reached.of_limit - 0.95).abs() < 1e-9);
        assert!((report.nodes[1].reached.gflops - 0.1).abs() < 1e-9);
        assert!((report.between_nodes_s - 0.5).abs() < 1e-9);
        assert!((report.outside_s - 0.5).abs() < 1e-9);
        let text = report.to_string();
        assert!(text.contains("segment 1 on cpu:0 is not profiled"), "{text}");
        assert!(text.contains("(between nodes)") && text.contains("12.5"), "{text}");
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("short"), "short");
        let text = shortened("/encoder/layers.0/self_attn/MatMul_3");
        assert!(text.starts_with('…') && text.ends_with("MatMul_3"));
        assert_eq!(text.chars().count(), 26);
    }
}

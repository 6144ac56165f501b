//! A plan in words and numbers: what runs where, what crosses, what comes back.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    Boundary, DeviceId, EdgePath, LinkFigures, MeasuredLink, Notice, RoundTrip, Segmentation,
};
use crate::device::Precision;
use crate::graph::NodeId;

/// One segment of a [`PlanReport`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentReport {
    /// Its place in the plan.
    pub index: usize,
    /// Where it runs.
    pub device: DeviceId,
    /// The stage that its placement asked for, if it did.
    pub stage: Option<u32>,
    /// The fixed datapath that it stands for, if it does.
    pub stage_id: Option<String>,
    /// What its products are computed in.
    #[serde(default)]
    pub precision: Precision,
    /// How many nodes it has.
    pub nodes: usize,
    /// Its first node's name.
    pub first: String,
    /// Its last node's name.
    pub last: String,
    /// How many nodes of each operator it has, subgraphs included.
    pub ops: BTreeMap<String, usize>,
    /// Its cost in the unit of the cost function, if there is one.
    pub cost: Option<f64>,
    /// Its cost as a share of all segments' cost, 0 to 1.
    pub cost_share: Option<f64>,
    /// The values that it reads: inputs of the graph and of other segments.
    pub inputs: Vec<String>,
    /// The values that it gives out.
    pub outputs: Vec<String>,
}

/// What a plan does with a graph; as JSON by serde, as a table by `Display`.
///
/// ```
/// use brigade::graph::{Fact, Graph};
/// use brigade::partition::{DeviceMap, PlanReport, Segmentation};
/// let mut graph = Graph::new("g");
/// let x = graph.add_input("x", Fact::unknown()).unwrap();
/// let y = graph.add_value("y", Fact::unknown()).unwrap();
/// graph.add_node("n", "Relu", [Some(x)], [Some(y)]);
/// graph.set_outputs([y]);
/// let map = DeviceMap::single("cpu".parse().unwrap());
/// let split = Segmentation::new(&graph, &map).unwrap();
/// let report = PlanReport::new(&split, &[], None, &|_| None);
/// assert_eq!(report.segments[0].ops["Relu"], 1);
/// assert!(report.to_string().contains("cpu:0"));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanReport {
    /// The segments, in order.
    pub segments: Vec<SegmentReport>,
    /// What crosses from segment to segment.
    pub boundaries: Vec<Boundary>,
    /// Data that goes to another device and comes back.
    pub round_trips: Vec<RoundTrip>,
    /// How many times faster than one after the other the segments can be at most, by cost, when
    /// each device computes one segment at a time: all cost / the cost on the busiest device.
    pub ceiling: Option<f64>,
    /// What is known of the ways between the places that it uses.
    pub links: Vec<MeasuredLink>,
    /// What its user should hear of.
    pub notices: Vec<String>,
}

impl PlanReport {
    /// The report of a cut graph. `cost` is what an item costs on a node of the unsplit graph, in
    /// any unit; `symbols` gives symbolic extents, for the bytes.
    pub fn new(
        split: &Segmentation,
        notices: &[Notice],
        cost: Option<&dyn Fn(NodeId) -> f64>,
        symbols: &dyn Fn(&str) -> Option<i64>,
    ) -> Self {
        let costs: Option<Vec<f64>> = cost.map(|cost| {
            split.segments().iter().map(|s| s.nodes.iter().map(|id| cost(*id)).sum()).collect()
        });
        let total: Option<f64> = costs.as_ref().map(|c| c.iter().sum::<f64>()).filter(|t| *t > 0.0);
        let mut by_device: BTreeMap<&DeviceId, f64> = BTreeMap::new();
        let mut segments = Vec::new();
        for segment in split.segments() {
            let cost = costs.as_ref().map(|c| c[segment.index]);
            *by_device.entry(&segment.device).or_default() += cost.unwrap_or(0.0);
            let name = |node: Option<&crate::graph::Node>| {
                node.map(|n| n.name.clone()).unwrap_or_default()
            };
            segments.push(SegmentReport {
                index: segment.index,
                device: segment.device.clone(),
                stage: segment.stage,
                stage_id: segment.stage_id.as_deref().map(str::to_owned),
                precision: Precision::F32,
                nodes: segment.nodes.len(),
                first: name(segment.graph.nodes().first()),
                last: name(segment.graph.nodes().last()),
                ops: segment.graph.op_counts(),
                cost,
                cost_share: cost.zip(total).map(|(c, t)| c / t),
                inputs: segment.graph.input_names().map(str::to_owned).collect(),
                outputs: segment.graph.output_names().map(str::to_owned).collect(),
            });
        }
        let busiest = by_device.into_values().fold(0.0, f64::max);
        Self {
            segments,
            boundaries: split.boundaries(symbols),
            round_trips: split.round_trips(symbols),
            ceiling: total.map(|t| t / busiest),
            links: Vec::new(),
            notices: notices.iter().map(Notice::to_string).collect(),
        }
    }

    /// With the path of each boundary; `memory` says which memory, beside the host's, a device has.
    #[must_use]
    pub fn with_memories(mut self, memory: &dyn Fn(&DeviceId) -> Option<String>) -> Self {
        for b in &mut self.boundaries {
            b.path = EdgePath::between(&b.from_device, &b.to_device, memory);
        }
        self
    }

    /// With what the products of each segment are computed in, by its device; f32 without.
    #[must_use]
    pub fn with_precision(mut self, of: &dyn Fn(&DeviceId) -> Precision) -> Self {
        for s in &mut self.segments {
            s.precision = of(&s.device);
        }
        self
    }

    /// With what each boundary takes to be carried; `figures` says what is known of the way from one
    /// device to another, and `links` has what is to be told of the ways themselves.
    #[must_use]
    pub fn with_links(
        mut self,
        links: Vec<MeasuredLink>,
        figures: &dyn Fn(&DeviceId, &DeviceId) -> Option<LinkFigures>,
    ) -> Self {
        for b in &mut self.boundaries {
            let transfer = figures(&b.from_device, &b.to_device).zip(b.bytes);
            b.transfer_us = transfer
                .map(|(link, n)| u64::try_from(link.transfer(n).as_micros()).unwrap_or(u64::MAX));
        }
        self.links = links;
        self
    }
}

/// Bytes with a binary prefix; `?` where they are not known.
fn bytes(n: Option<u64>) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let Some(n) = n else { return "?".to_owned() };
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

fn milliseconds(us: u64) -> String {
    format!("{:.3} ms", us as f64 / 1e3)
}

/// Columns that line up.
fn table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0))
        .collect();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        writeln!(f, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const OPS_SHOWN: usize = 5;
        // Nobody has to be told that f32 is f32.
        let narrow = self.segments.iter().any(|s| s.precision != Precision::F32);
        let row = |cells: [String; 6]| -> Vec<String> {
            let kept = cells.into_iter().enumerate().filter(|(n, _)| narrow || *n != 2);
            kept.map(|(_, cell)| cell).collect()
        };
        let head = ["segment", "device", "precision", "nodes", "cost", "operators"];
        let mut rows = vec![row(head.map(str::to_owned))];
        for s in &self.segments {
            let mut ops: Vec<(&String, &usize)> = s.ops.iter().collect();
            ops.sort_by_key(|(op, n)| (std::cmp::Reverse(**n), (*op).clone()));
            let mut shown: Vec<String> =
                ops.iter().take(OPS_SHOWN).map(|(op, n)| format!("{op} {n}")).collect();
            if ops.len() > OPS_SHOWN {
                shown.push(format!("{} more", ops.len() - OPS_SHOWN));
            }
            rows.push(row([
                s.index.to_string(),
                match &s.stage_id {
                    Some(id) => format!("{} (`{id}`)", s.device),
                    None => s.device.to_string(),
                },
                s.precision.to_string(),
                s.nodes.to_string(),
                s.cost_share.map_or_else(|| "?".to_owned(), |c| format!("{:.1} %", c * 100.0)),
                shown.join(", "),
            ]));
        }
        table(f, &rows)?;
        if !self.boundaries.is_empty() {
            let timed = self.boundaries.iter().any(|b| b.transfer_us.is_some());
            let head = ["crossing", "path", "bytes", "transfer", "fact", "value"];
            let row = |cells: [String; 6]| -> Vec<String> {
                let kept = cells.into_iter().enumerate().filter(|(n, _)| timed || *n != 3);
                kept.map(|(_, cell)| cell).collect()
            };
            let mut rows = vec![row(head.map(str::to_owned))];
            for b in &self.boundaries {
                rows.push(row([
                    format!("{} → {} ({} → {})", b.from, b.to, b.from_device, b.to_device),
                    b.path.to_string(),
                    bytes(b.bytes),
                    b.transfer_us.map_or_else(String::new, milliseconds),
                    b.fact.clone(),
                    b.value.clone(),
                ]));
            }
            writeln!(f)?;
            table(f, &rows)?;
        }
        if !self.links.is_empty() {
            let mut rows = vec![["link", "latency", "bandwidth"].map(str::to_owned).to_vec()];
            for link in &self.links {
                rows.push(vec![
                    format!("{} – {}", link.from, link.to),
                    milliseconds(link.latency_us),
                    format!("{:.1} MiB/s", link.bytes_per_s as f64 / f64::from(1 << 20)),
                ]);
            }
            writeln!(f)?;
            table(f, &rows)?;
        }
        if !self.round_trips.is_empty() {
            let mut rows = vec![["round trip", "out", "back", "nodes"].map(str::to_owned).to_vec()];
            for r in &self.round_trips {
                let mut nodes = r.nodes.first().cloned().unwrap_or_default();
                if r.nodes.len() > 1 {
                    nodes = format!("{nodes} and {} more", r.nodes.len() - 1);
                }
                rows.push(vec![
                    format!("{} → {} → {} (segment {})", r.home, r.away, r.home, r.segment),
                    bytes(r.bytes_out),
                    bytes(r.bytes_back),
                    nodes,
                ]);
            }
            writeln!(f)?;
            table(f, &rows)?;
        }
        if let Some(ceiling) = self.ceiling {
            writeln!(
                f,
                "\nby these costs, streaming is at most {ceiling:.2} times as fast as one segment \
                 after the other"
            )?;
        }
        for notice in &self.notices {
            writeln!(f, "notice: {notice}")?;
        }
        Ok(())
    }
}

/// The table of a cut graph, without costs; [`PlanReport`] has more.
pub fn explain(split: &Segmentation) -> String {
    PlanReport::new(split, &[], None, &|_| None).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::graph::{Dim, Fact, Graph};
    use crate::partition::DeviceMap;

    /// `count` nodes in a row over f32[N, 256], on alternating devices.
    fn alternating(count: usize) -> Segmentation {
        let mut g = Graph::new("g");
        let fact = Fact::new(DType::F32, [Dim::symbol("N"), Dim::fixed(256)]);
        let mut last = g.add_input("x", fact.clone()).unwrap();
        for i in 0..count {
            let next = g.add_value(format!("v{i}"), fact.clone()).unwrap();
            g.add_node(format!("n{i}"), "Relu", [Some(last)], [Some(next)]);
            last = next;
        }
        g.set_outputs([last]);
        let map =
            DeviceMap::from_placements(&g, |id, _| DeviceId::cpu(id.index() as u32 % 2).into());
        Segmentation::new(&g, &map).unwrap()
    }

    #[test]
    fn scenario_06_round_trips_are_listed_with_their_bytes() {
        let split = alternating(3);
        let trips = split.round_trips(&|s| (s == "N").then_some(2));
        assert_eq!(trips.len(), 1);
        assert_eq!((&trips[0].home, &trips[0].away), (&DeviceId::cpu(0), &DeviceId::cpu(1)));
        assert_eq!((trips[0].bytes_out, trips[0].bytes_back), (Some(2048), Some(2048)));
        assert_eq!(trips[0].nodes, ["n1"]);
        assert_eq!(split.round_trips(&|_| None)[0].bytes_out, None);
        assert!(alternating(2).round_trips(&|_| None).is_empty());
    }

    #[test]
    fn the_report_is_a_table_and_json() {
        let split = alternating(3);
        let cost = |id: NodeId| if id.index() == 1 { 2.0 } else { 1.0 };
        let report =
            PlanReport::new(&split, &[Notice::ModelNotCompared], Some(&cost), &|_| Some(1));
        assert_eq!(report.segments[1].cost_share, Some(0.5));
        assert_eq!(report.ceiling, Some(2.0));
        assert_eq!(report.boundaries[0].bytes, Some(1024));
        let text = report.to_string();
        for part in [
            "50.0 %",
            "0 → 1 (cpu:0 → cpu:1)",
            "1.0 KiB",
            "f32[N,256]",
            "notice: ",
            "cpu:0 → cpu:1 → cpu:0 (segment 1)",
            "at most 2.00 times",
            "Relu 1",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let own =
            report.clone().with_memories(&|d| (*d == DeviceId::cpu(1)).then(|| "apart".to_owned()));
        let paths: Vec<EdgePath> = own.boundaries.iter().map(|b| b.path).collect();
        assert_eq!(paths, [EdgePath::Upload, EdgePath::ReadBack]);
        assert!(own.to_string().contains("read-back"), "{own}");
        let far = LinkFigures::new(std::time::Duration::from_millis(2), 1 << 20);
        let links = vec![MeasuredLink::new("a", "b", far)];
        let timed =
            report.clone().with_links(links, &|from, _| (*from == DeviceId::cpu(0)).then_some(far));
        // 1 KiB at 1 MiB a second, behind 2 ms.
        let times: Vec<Option<u64>> = timed.boundaries.iter().map(|b| b.transfer_us).collect();
        assert_eq!(times, [Some(2_976), None]);
        let said = timed.to_string();
        for part in ["a – b", "2.000 ms", "1.0 MiB/s", "transfer", "2.976 ms"] {
            assert!(said.contains(part), "{part}\n{said}");
        }
        assert!(!text.contains("transfer") && !text.contains("precision"), "{text}");
        let of = |d: &DeviceId| if d.number() == 1 { Precision::Bf16 } else { Precision::F32 };
        let mixed = report.clone().with_precision(&of);
        let precisions: Vec<Precision> = mixed.segments.iter().map(|s| s.precision).collect();
        assert_eq!(precisions, [Precision::F32, Precision::Bf16, Precision::F32]);
        let said = mixed.to_string();
        assert!(said.contains("device  precision  nodes") && said.contains("bf16"), "{said}");
        let both = report.clone().with_memories(&|d| Some(d.to_string()));
        assert_eq!(both.boundaries[0].path, EdgePath::ThroughHost);
        let shared = report.clone().with_memories(&|_| Some("shared".to_owned()));
        assert_eq!(shared.boundaries[0].path, EdgePath::Device);
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<PlanReport>(&json).unwrap(), report);
        assert!(explain(&split).contains("cpu:1"));
    }

    #[test]
    fn bytes_have_units() {
        let said: Vec<String> =
            [Some(0), Some(1023), Some(1536), Some(5 << 30), None].into_iter().map(bytes).collect();
        assert_eq!(said, ["0 B", "1023 B", "1.5 KiB", "5.0 GiB", "?"]);
    }
}

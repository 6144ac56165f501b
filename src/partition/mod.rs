//! Placement of a graph's nodes on devices, and the segments that follow from it.
//!
//! A [`DeviceMap`] says on which device each node runs; [`Segmentation`] groups the nodes into as
//! few segments as it can such that no two segments wait for each other; a [`Plan`] is the file
//! form of a placement. Nothing here runs anything, and nothing here knows a device: what a device
//! supports and what a node costs are asked through closures.
//!
//! ```
//! use brigade::graph::{Fact, Graph};
//! use brigade::partition::{DeviceMap, Segmentation};
//! let mut graph = Graph::new("chain");
//! let x = graph.add_input("x", Fact::unknown()).unwrap();
//! let h = graph.add_value("h", Fact::unknown()).unwrap();
//! let y = graph.add_value("y", Fact::unknown()).unwrap();
//! graph.add_node("first", "Relu", [Some(x)], [Some(h)]);
//! graph.add_node("second", "Tanh", [Some(h)], [Some(y)]);
//! graph.set_outputs([y]);
//!
//! let map = DeviceMap::from_fn(&graph, |node| {
//!     if node.op == "Relu" { "cpu:0".parse().unwrap() } else { "cpu:1".parse().unwrap() }
//! });
//! let split = Segmentation::new(&graph, &map).unwrap();
//! assert_eq!(split.segments().len(), 2);
//! assert_eq!(split.edges()[0].value, "h");
//! ```

mod balance;
mod boundary;
mod carry;
mod explain;
mod grouping;
mod names;
mod notice;
mod placement;
mod plan;
mod rules;
mod segments;
mod stages;

pub use crate::device::{DeviceId, LinkFigures, MAX_IN_FLIGHT, MAX_REPLICAS, MAX_THREADS, Support};
pub use boundary::{Boundary, EdgePath, MeasuredLink, RoundTrip, bytes_of};
pub use explain::{PlanReport, SegmentReport, explain};
pub use notice::Notice;
pub use placement::{DeviceMap, Placement};
pub use plan::{InFlight, PLAN_SCHEMA, Plan};
pub use rules::{Matcher, Rule};
pub use segments::{Edge, OutputSource, Segment, Segmentation, Source, Target, computing_nodes};

#[cfg(test)]
mod properties;

//! What the segments of a graph did, node by node.

use serde::Serialize;

use crate::device::DeviceId;
use crate::ops::SegmentProfile;

/// What each node of a graph did: [`HeteroExecutable::node_profile`](super::HeteroExecutable::node_profile),
/// [`Pipeline::node_profile`](super::Pipeline::node_profile).
///
/// ```
/// use brigade::ops::builder::GraphBuilder;
/// use brigade::{CompileOptions, DType, DeviceMap, HeteroExecutable};
///
/// let mut g = GraphBuilder::new("g");
/// let x = g.input("x", DType::F32, [64.into()])?;
/// let y = g.relu(x)?;
/// let graph = g.finish([("y", y)])?;
/// let map = DeviceMap::single("cpu".parse()?);
/// let options = CompileOptions { profile: true, ..CompileOptions::default() };
/// let executable = HeteroExecutable::compile(graph, &map, &options)?;
///
/// let x = [1.0; 64];
/// executable.run(&[("x", &x)])?;
/// let before = executable.node_profile().unwrap();
/// executable.run(&[("x", &x)])?;
/// executable.run(&[("x", &x)])?;
/// let profile = executable.node_profile().unwrap().since(&before);
/// let segment = profile.segments[0].profile.as_ref().unwrap();
/// assert_eq!((segment.runs, segment.nodes[0].op.as_str()), (2, "Relu"));
/// assert_eq!((segment.nodes[0].calls, segment.nodes[0].flops), (2, 128.0));
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GraphProfile {
    /// The segments, in order.
    pub segments: Vec<ProfiledSegment>,
}

/// What the nodes of one segment did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfiledSegment {
    /// Its number.
    pub segment: usize,
    /// Its device.
    pub device: DeviceId,
    /// The kernel threads of each of its actors.
    pub threads: usize,
    /// What its nodes did; `None` where the device does not look inside.
    pub profile: Option<SegmentProfile>,
}

impl GraphProfile {
    /// What was done after an earlier look at the same graph.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut out = self.clone();
        for (now, then) in out.segments.iter_mut().zip(&earlier.segments) {
            if let (Some(now), Some(then)) = (&mut now.profile, &then.profile) {
                *now = now.since(then);
            }
        }
        out
    }
}

//! Where the time went, in one call.

use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::metrics::Stats;
use crate::overlap::OverlapReport;
use crate::trace::Trace;

/// What [`Pipeline::profile`](crate::Pipeline::profile) gives: which actor stands on which device, how
/// much of the time it ran, waited and handed over, the throughput, the bound, and the trace.
///
/// ```
/// use brigade_actors::{Options, Pipeline, Topology, stage_fn};
///
/// let mut builder = Topology::<i64>::builder();
/// let x = builder.source("x");
/// let inc = builder.actor("inc", "cpu:0", 1, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] + 1])));
/// let y = builder.sink("y");
/// builder.connect(x, inc.input(0)).connect(inc.output(0), y);
/// let pipeline = Pipeline::spawn(builder.build()?, Options::new().trace(1000))?;
/// for result in pipeline.stream((0..20).map(|x| vec![x])) {
///     result?;
/// }
/// let profile = pipeline.profile();
/// println!("{profile}");
/// assert_eq!(profile.report.actors[0].device, "cpu:0");
/// profile.write_trace(std::env::temp_dir().join("trace-of-inc.json"))?;
/// # std::fs::remove_file(std::env::temp_dir().join("trace-of-inc.json"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Profile {
    /// The figures since the spawn.
    pub stats: Stats,
    /// What follows from them.
    pub report: OverlapReport,
    /// The recorded events; empty unless [`Options::trace`](crate::Options::trace) asks for them.
    pub trace: Trace,
}

impl Profile {
    pub(crate) fn new(stats: Stats, trace: Trace) -> Self {
        let report = OverlapReport::new(&stats.since_spawn()).with_trace(&trace);
        Self { stats, report, trace }
    }

    /// Writes the trace to a file that Perfetto opens.
    ///
    /// # Errors
    ///
    /// What writing the file says.
    pub fn write_trace(&self, path: impl AsRef<Path>) -> io::Result<()> {
        std::fs::write(path, self.trace.to_chrome_json())
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for actor in &self.report.actors {
            writeln!(f, "actor `{}` on device {}", actor.name, actor.device)?;
        }
        self.report.fmt(f)
    }
}

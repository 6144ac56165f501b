//! The workers that a subcommand is connected to, if it is to any.

use super::console::Console;
#[cfg(feature = "cluster")]
use super::workers;
use crate::device::DeviceId;
use crate::partition::{MeasuredLink, PlanReport};

/// The workers that a placement may use.
#[derive(Clone, Debug, Default)]
pub(super) struct Connected {
    #[cfg(feature = "cluster")]
    pub(super) cluster: Option<crate::cluster::Cluster>,
}

impl Connected {
    /// The first device of each worker: where stages go if nobody says.
    pub(super) fn devices(&self) -> Vec<DeviceId> {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return cluster.first_devices();
        }
        Vec::new()
    }

    /// What counts in the balance of stages, in words.
    pub(super) fn balance(&self) -> &'static str {
        #[cfg(feature = "cluster")]
        if self.cluster.is_some() {
            return "analytic cost and measured links";
        }
        "analytic cost"
    }

    /// What is known of the workers' links by now.
    pub(super) fn links(&self) -> Vec<MeasuredLink> {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return workers::links(cluster);
        }
        Vec::new()
    }

    /// With what is known of them.
    pub(super) fn with_links(&self, report: PlanReport) -> PlanReport {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return report.with_links(self.links(), &|from, to| cluster.known_link(from, to));
        }
        report
    }

    /// Measures the link between two devices' workers, or to this process, unless it is known.
    pub(super) fn measure(&self, one: &DeviceId, other: &DeviceId) {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            // Why it could not be is among what is unmeasured.
            let _ = cluster.link(one, other);
        }
        #[cfg(not(feature = "cluster"))]
        let _ = (one, other);
    }

    /// Links that could not be measured, and why.
    pub(super) fn unmeasured(&self) -> Vec<String> {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return workers::unmeasured(cluster);
        }
        Vec::new()
    }

    /// Adds to a trace what workers computed.
    pub(super) fn add_to(&self, trace: &mut brigade_actors::Trace, begun: std::time::Instant) {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            cluster.add_to(trace, begun);
        }
        #[cfg(not(feature = "cluster"))]
        let _ = (trace, begun);
    }

    /// Tells what workers did.
    pub(super) fn tell(&self, console: &Console) {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            workers::tell(cluster, console);
        }
        #[cfg(not(feature = "cluster"))]
        let _ = console;
    }
}

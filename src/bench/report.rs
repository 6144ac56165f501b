//! Where the time of actors went, as fractions of wall time.

use std::fmt;

use brigade_actors::ActorReport;
use serde::Serialize;

/// Where the time of one device actor went, as fractions of wall time. What is left to 1 went into
/// matching and handing over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActorShare {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// The share in which it computed.
    pub busy: f64,
    /// The share in which it waited for input.
    pub starved: f64,
    /// The share in which it had input and waited for its device.
    pub blocked: f64,
    /// Items that it computed.
    pub items: u64,
    /// The mean time that it computed on an item, in microseconds.
    pub service_us: f64,
}

impl From<&ActorReport> for ActorShare {
    fn from(actor: &ActorReport) -> Self {
        Self {
            name: actor.name.clone(),
            device: actor.device.clone(),
            busy: actor.busy,
            starved: actor.starved,
            blocked: actor.blocked,
            items: actor.items,
            service_us: actor.service_us,
        }
    }
}

impl ActorShare {
    /// Writes a line for each actor, below a head.
    pub(super) fn write_table(actors: &[Self], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = actors.iter().map(|a| a.name.chars().count()).max().unwrap_or(0).max(5);
        writeln!(
            f,
            "{:width$}  {:>10}  {:>6}  {:>7}  {:>7}",
            "actor", "per item", "busy", "starved", "blocked"
        )?;
        for a in actors {
            writeln!(
                f,
                "{:width$}  {:>7.3} ms  {:>4.0} %  {:>5.0} %  {:>5.0} %",
                a.name,
                a.service_us / 1e3,
                a.busy * 100.0,
                a.starved * 100.0,
                a.blocked * 100.0,
            )?;
        }
        Ok(())
    }
}

//! Where the time of actors went, as fractions of wall time.

use std::fmt;

use brigade_actors::ActorReport;
use serde::Serialize;

use super::interval::Interval;

/// Where the time of one device actor went, as fractions of wall time that add up to 1.
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
    /// The share in which it matched, handed over or, where the cores were not free, waited for one.
    pub other: f64,
    /// Its firings.
    pub items: u64,
    /// The mean time that it computed in a firing, in microseconds.
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
            other: actor.other,
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
            "{:width$}  {:>10}  {:>6}  {:>7}  {:>7}  {:>6}",
            "actor", "per firing", "busy", "starved", "blocked", "other"
        )?;
        for a in actors {
            writeln!(
                f,
                "{:width$}  {:>7.3} ms  {:>4.0} %  {:>5.0} %  {:>5.0} %  {:>4.0} %",
                a.name,
                a.service_us / 1e3,
                a.busy * 100.0,
                a.starved * 100.0,
                a.blocked * 100.0,
                a.other * 100.0,
            )?;
        }
        Ok(())
    }
}

/// What is to be said beside a share of the bound, if it is above 1.
pub(super) fn above_bound(achieved: Option<f64>) -> Option<String> {
    achieved.filter(|a| *a > 1.0).map(|_| {
        "above 1 by noise: throughput is the difference of two runs; more --items or --rounds \
         narrow it"
            .to_owned()
    })
}

/// A share of the bound in words, with its interval and what is to be said beside it.
pub(super) fn achieved_in_words(
    achieved: f64,
    interval: Option<Interval>,
    note: Option<&str>,
) -> String {
    let interval = interval.map_or_else(String::new, |i| format!("  {i}"));
    let note = note.map_or_else(String::new, |n| format!("  ({n})"));
    format!("{achieved:.3}{interval}{note}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_above_the_bound_is_excused() {
        assert_eq!(above_bound(None), None);
        assert_eq!(above_bound(Some(1.0)), None);
        let note = above_bound(Some(1.143)).unwrap();
        let words = achieved_in_words(1.143, Interval::of(&[1.0, 1.2]), Some(&note));
        assert!(words.starts_with("1.143  [") && words.contains("difference of two runs"));
        assert_eq!(achieved_in_words(0.98, None, None), "0.980");
    }

    #[test]
    fn a_row_adds_up_to_the_whole() {
        let share = ActorShare {
            name: "a".to_owned(),
            device: "cpu:0".to_owned(),
            busy: 0.25,
            starved: 0.125,
            blocked: 0.0,
            other: 0.625,
            items: 4,
            service_us: 1500.0,
        };
        struct Table(ActorShare);
        impl fmt::Display for Table {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                ActorShare::write_table(std::slice::from_ref(&self.0), f)
            }
        }
        let table = Table(share).to_string();
        assert!(table.contains("other") && table.contains("62 %"), "{table}");
    }
}

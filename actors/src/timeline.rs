//! Questions to a trace: who overlapped, and who waited for whom.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::trace::{Trace, TraceEvent};

/// A firing that could have started, and did so only when another actor was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The item that waited.
    pub seq: u64,
    /// When its inputs were there and its actor was free.
    pub ready_ns: u64,
    /// When it started.
    pub started_ns: u64,
    /// How long the other actor's firing lasted in between, up to its end.
    pub held_up_ns: u64,
}

impl Trace {
    /// The time in which at least `actors` actors were busy together.
    #[must_use]
    pub fn busy_together(&self, actors: usize) -> Duration {
        if actors == 0 {
            return Duration::ZERO;
        }
        let mut edges: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * self.events.len());
        for event in self.events.iter().filter(|event| event.end_ns > event.start_ns) {
            edges.push((event.start_ns, true, event.actor));
            edges.push((event.end_ns, false, event.actor));
        }
        // At one instant ends come before starts, so that touching intervals do not overlap.
        edges.sort_unstable();
        let mut open: HashMap<usize, usize> = HashMap::new();
        let mut busy = 0;
        let mut since = 0;
        let mut together = 0;
        for (at, starts, actor) in edges {
            if busy >= actors {
                together += at - since;
            }
            since = at;
            let count = open.entry(actor).or_default();
            if starts {
                busy += usize::from(*count == 0);
                *count += 1;
            } else {
                *count = count.saturating_sub(1);
                busy -= usize::from(*count == 0);
            }
        }
        Duration::from_nanos(together)
    }

    /// The time in which at least two actors were busy together: the proof that they overlapped.
    ///
    /// ```
    /// use brigade_actors::{Trace, TraceEvent};
    ///
    /// let event = |actor, start_ns, end_ns| TraceEvent { actor, seq: 0, start_ns, end_ns };
    /// let events = vec![event(0, 0, 100), event(1, 60, 160)];
    /// let trace = Trace { events, ..Trace::default() };
    /// assert_eq!(trace.overlap().as_nanos(), 40);
    /// ```
    #[must_use]
    pub fn overlap(&self) -> Duration {
        self.busy_together(2)
    }

    /// The number of the actor with this name.
    #[must_use]
    pub fn actor(&self, name: &str) -> Option<usize> {
        self.actors.iter().position(|actor| actor.name == name)
    }

    /// The time in which an actor had at least one firing open.
    #[must_use]
    pub fn busy(&self, actor: usize) -> Duration {
        self.subset(|event| event.actor == actor).busy_together(1)
    }

    /// The time in which these two actors were busy together.
    #[must_use]
    pub fn together(&self, one: usize, other: usize) -> Duration {
        if one == other {
            return self.busy(one);
        }
        self.subset(|event| event.actor == one || event.actor == other).busy_together(2)
    }

    /// The share of the time with any actor busy in which at least two were, 0 to 1.
    #[must_use]
    pub fn overlap_share(&self) -> f64 {
        let any = self.busy_together(1).as_secs_f64();
        if any > 0.0 { self.overlap().as_secs_f64() / any } else { 0.0 }
    }

    /// The firings of `waiter` that were held up by firings of `other` for longer than `slack`: their
    /// inputs were there and their actor was free, but they started only after `other` had finished
    /// something. Where two actors share a lane, they have to; where they do not, this should find
    /// nothing. `slack` is what a thread may take to wake up.
    ///
    /// ```
    /// use std::time::Duration;
    /// use brigade_actors::{Trace, TraceEdge, TraceEvent, TraceItem};
    ///
    /// let event = |actor, seq, start_ns, end_ns| TraceEvent { actor, seq, start_ns, end_ns };
    /// let edge = |to| TraceEdge { name: String::new(), from: None, to: Some(to) };
    /// let item = |seq| TraceItem { seq, admitted_ns: 0, completed_ns: None };
    /// // Actor 0 computes until 900; actor 1 starts at 910, though its input came at 0.
    /// let trace = Trace {
    ///     edges: vec![edge(0), edge(1)],
    ///     items: vec![item(0), item(1)],
    ///     events: vec![event(0, 0, 100, 900), event(1, 1, 910, 1000)],
    ///     ..Trace::default()
    /// };
    /// let waits = trace.waits(1, 0, Duration::from_nanos(50));
    /// assert_eq!((waits.len(), waits[0].held_up_ns), (1, 800));
    /// assert!(trace.waits(0, 1, Duration::from_nanos(50)).is_empty());
    /// ```
    #[must_use]
    pub fn waits(&self, waiter: usize, other: usize, slack: Duration) -> Vec<Wait> {
        let ended: HashMap<(usize, u64), u64> =
            self.events.iter().map(|event| ((event.actor, event.seq), event.end_ns)).collect();
        let admitted: HashMap<u64, u64> =
            self.items.iter().map(|item| (item.seq, item.admitted_ns)).collect();
        let arrived = |seq: u64| {
            let arrivals = self.edges.iter().filter(|edge| edge.to == Some(waiter));
            arrivals
                .map(|edge| match edge.from {
                    None => admitted.get(&seq).copied(),
                    Some(actor) => ended.get(&(actor, seq)).copied(),
                })
                .try_fold(0, |latest, arrival| arrival.map(|arrival| latest.max(arrival)))
        };
        let slack = u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX);
        let others: Vec<&TraceEvent> =
            self.events.iter().filter(|event| event.actor == other).collect();
        let mut waits = Vec::new();
        let mut before: Option<&TraceEvent> = None;
        for event in self.events.iter().filter(|event| event.actor == waiter) {
            // A firing that is still open does not keep an asynchronous actor from taking the next.
            let free = before.map_or(0, |before| {
                if before.end_ns <= event.start_ns { before.end_ns } else { before.start_ns }
            });
            before = Some(event);
            let Some(arrived) = arrived(event.seq) else {
                continue;
            };
            let ready_ns = arrived.max(free);
            let within = others
                .iter()
                .filter(|other| other.end_ns > ready_ns && other.end_ns <= event.start_ns);
            let held_up_ns = within
                .map(|other| other.end_ns - other.start_ns.max(ready_ns))
                .max()
                .unwrap_or_default();
            if held_up_ns > slack {
                let (seq, started_ns) = (event.seq, event.start_ns);
                waits.push(Wait { seq, ready_ns, started_ns, held_up_ns });
            }
        }
        waits
    }

    fn subset(&self, of: impl Fn(&TraceEvent) -> bool) -> Self {
        let events = self.events.iter().filter(|event| of(event)).copied().collect();
        Self { events, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{TraceEdge, TraceItem};

    fn event(actor: usize, seq: u64, start_ns: u64, end_ns: u64) -> TraceEvent {
        TraceEvent { actor, seq, start_ns, end_ns }
    }

    #[test]
    fn overlap_counts_actors_not_firings() {
        // One actor with two firings open at once is one busy actor.
        let events = vec![event(0, 0, 0, 100), event(0, 1, 50, 150)];
        let mut trace = Trace { events, ..Trace::default() };
        assert_eq!(trace.overlap(), Duration::ZERO);
        // Touching is not overlapping.
        trace.events.push(event(1, 0, 150, 300));
        assert_eq!(trace.overlap(), Duration::ZERO);
        trace.events.push(event(2, 0, 140, 160));
        assert_eq!(trace.overlap(), Duration::from_nanos(20));
        assert_eq!(trace.busy_together(3), Duration::ZERO);
        assert_eq!(trace.busy_together(1), Duration::from_nanos(300));
    }

    #[test]
    fn pairs_are_told_apart() {
        let events = vec![event(0, 0, 0, 100), event(1, 0, 60, 160), event(2, 0, 150, 200)];
        let trace = Trace { events, ..Trace::default() };
        let ns = Duration::from_nanos;
        assert_eq!((trace.busy(1), trace.busy(7)), (ns(100), ns(0)));
        assert_eq!((trace.together(0, 1), trace.together(0, 2)), (ns(40), ns(0)));
        assert_eq!((trace.together(2, 1), trace.together(2, 2)), (ns(10), ns(50)));
        assert!((trace.overlap_share() - 0.25).abs() < 1e-9);
        assert!(Trace::default().overlap_share().abs() < 1e-9);
    }

    #[test]
    fn a_wait_needs_its_inputs_a_free_actor_and_somebody_to_wait_for() {
        let edge = |from, to| TraceEdge { name: String::new(), from, to: Some(to) };
        let item = |seq| TraceItem { seq, admitted_ns: 10 * seq, completed_ns: None };
        let mut trace = Trace {
            edges: vec![edge(None, 0), edge(Some(0), 1), edge(None, 2)],
            items: vec![item(0), item(1), item(2)],
            events: vec![
                event(0, 0, 0, 100),
                event(0, 1, 100, 200),
                event(1, 0, 105, 120),
                event(2, 0, 0, 150),
                // Ready at 200, started at 410: after the end of actor 2's long firing.
                event(1, 1, 410, 420),
                event(2, 1, 160, 400),
            ],
            ..Trace::default()
        };
        trace.events.sort_by_key(|event| event.start_ns);
        let slack = Duration::from_nanos(20);
        let wait = Wait { seq: 1, ready_ns: 200, started_ns: 410, held_up_ns: 200 };
        assert_eq!(trace.waits(1, 2, slack), [wait]);
        assert!(trace.waits(1, 2, Duration::from_nanos(200)).is_empty());
        // Its own inputs are nothing that it is held up by, and an actor is not its own obstacle.
        assert!(trace.waits(1, 0, slack).is_empty());
        assert!(trace.waits(2, 2, slack).is_empty());
        // Actor 2 started at 160 what it could have started at 150.
        assert!(trace.waits(2, 1, slack).is_empty());
        // Without its inputs' events nothing can be said of a firing.
        trace.events.retain(|event| event.actor != 0);
        assert!(trace.waits(1, 2, slack).is_empty());
    }
}

//! Who computed what, when.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sync::{Mutex, lock};

/// One firing of one actor. Times are nanoseconds since the spawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// The number of the actor in [`Trace::actors`].
    pub actor: usize,
    /// The number of the item.
    pub seq: u64,
    /// When the stage was given the firing.
    pub start_ns: u64,
    /// When the firing was complete.
    pub end_ns: u64,
}

/// An actor of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceActor {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
}

/// The events of a run, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The name of the pipeline.
    pub pipeline: String,
    /// The actors, in the order of the topology.
    pub actors: Vec<TraceActor>,
    /// The events, by their start.
    pub events: Vec<TraceEvent>,
    /// Events that were dropped because the rings were full: the oldest go first.
    pub dropped: u64,
}

/// The last events of one actor. Written by the actor's thread alone, so its lock is free but for
/// the moment of an export.
pub(crate) struct Ring {
    capacity: usize,
    state: Mutex<(VecDeque<(u64, u64, u64)>, u64)>,
}

impl Ring {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, state: Mutex::new((VecDeque::with_capacity(capacity), 0)) }
    }

    pub(crate) fn record(&self, seq: u64, start_ns: u64, end_ns: u64) {
        if self.capacity == 0 {
            return;
        }
        let mut state = lock(&self.state);
        if state.0.len() == self.capacity {
            state.0.pop_front();
            state.1 += 1;
        }
        state.0.push_back((seq, start_ns, end_ns));
    }

    pub(crate) fn export(&self, actor: usize, trace: &mut Trace) {
        let state = lock(&self.state);
        trace.dropped += state.1;
        let events = state.0.iter().map(|&(seq, start_ns, end_ns)| TraceEvent {
            actor,
            seq,
            start_ns,
            end_ns,
        });
        trace.events.extend(events);
    }
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

    /// The trace in the Chrome trace format, which Perfetto opens: one lane per actor, and one flow
    /// arrow per item from actor to actor. The number of dropped events is in `otherData`.
    #[must_use]
    pub fn to_chrome_json(&self) -> String {
        let mut json = String::from("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"pipeline\":");
        text(&mut json, &self.pipeline);
        let _ = write!(json, ",\"dropped\":{}}},\"traceEvents\":[", self.dropped);
        json.push_str("{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":");
        text(&mut json, &self.pipeline);
        json.push_str("}}");
        for (lane, actor) in self.actors.iter().enumerate() {
            let _ = write!(
                json,
                ",{{\"ph\":\"M\",\"pid\":1,\"tid\":{lane},\"name\":\"thread_name\",\"args\":{{\"name\":"
            );
            text(&mut json, &format!("{} [{}]", actor.name, actor.device));
            json.push_str("}}");
            let _ = write!(
                json,
                ",{{\"ph\":\"M\",\"pid\":1,\"tid\":{lane},\"name\":\"thread_sort_index\",\
                 \"args\":{{\"sort_index\":{lane}}}}}"
            );
        }
        let mut last: HashMap<u64, usize> = HashMap::new();
        for (place, event) in self.events.iter().enumerate() {
            last.insert(event.seq, place);
        }
        let mut seen: HashMap<u64, usize> = HashMap::new();
        for (place, event) in self.events.iter().enumerate() {
            let (lane, seq) = (event.actor, event.seq);
            let start = micros(event.start_ns);
            let _ = write!(
                json,
                ",{{\"ph\":\"X\",\"pid\":1,\"tid\":{lane},\"ts\":{start},\"dur\":{},\"cat\":\"firing\",\
                 \"name\":\"item {seq}\",\"args\":{{\"seq\":{seq}}}}}",
                micros(event.end_ns.saturating_sub(event.start_ns))
            );
            let first = seen.insert(seq, place).is_none();
            let only = first && last.get(&seq) == Some(&place);
            if !only {
                let phase = match (first, last.get(&seq) == Some(&place)) {
                    (true, _) => "\"s\"",
                    (false, true) => "\"f\",\"bp\":\"e\"",
                    (false, false) => "\"t\"",
                };
                let _ = write!(
                    json,
                    ",{{\"ph\":{phase},\"pid\":1,\"tid\":{lane},\"ts\":{start},\"id\":{seq},\
                     \"cat\":\"item\",\"name\":\"item\"}}"
                );
            }
        }
        json.push_str("]}");
        json
    }
}

/// Nanoseconds as the format's microseconds, to the nanosecond.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

fn text(json: &mut String, text: &str) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            control if control < ' ' => {
                let _ = write!(json, "\\u{:04x}", u32::from(control));
            }
            other => json.push(other),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_full_ring_drops_the_oldest_and_counts() {
        let ring = Ring::new(2);
        for seq in 0..5 {
            ring.record(seq, seq, seq + 1);
        }
        let mut trace = Trace::default();
        ring.export(3, &mut trace);
        assert_eq!(trace.dropped, 3);
        assert_eq!(trace.events, [event(3, 3, 3, 4), event(3, 4, 4, 5)]);
    }

    #[test]
    fn the_chrome_trace_is_json_with_lanes_and_arrows() {
        let actor = |name: &str| TraceActor { name: name.into(), device: "cpu".into() };
        let trace = Trace {
            pipeline: "a \"quoted\"\nname".into(),
            actors: vec![actor("first"), actor("second"), actor("third")],
            events: vec![event(0, 7, 1000, 2500), event(1, 7, 2500, 4001), event(2, 7, 5000, 6000)],
            dropped: 2,
        };
        let json: serde_json::Value = serde_json::from_str(&trace.to_chrome_json()).unwrap();
        assert_eq!(json["otherData"]["dropped"], 2);
        assert_eq!(json["otherData"]["pipeline"], trace.pipeline);
        let events = json["traceEvents"].as_array().unwrap();
        let of = |phase: &str| {
            events.iter().filter(|event| event["ph"] == phase).cloned().collect::<Vec<_>>()
        };
        assert_eq!(of("X").len(), 3);
        assert_eq!(of("X")[1]["ts"], 2.5);
        assert_eq!(of("X")[1]["dur"], 1.501);
        assert_eq!((of("s").len(), of("t").len(), of("f").len()), (1, 1, 1));
        let names: Vec<_> = of("M").iter().map(|meta| meta["args"]["name"].clone()).collect();
        assert!(names.contains(&"second [cpu]".into()));
    }
}

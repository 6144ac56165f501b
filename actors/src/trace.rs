//! Who computed what, when.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;

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

/// An edge of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEdge {
    /// Its two ports, in words.
    pub name: String,
    /// The number of the giving actor in [`Trace::actors`]; `None` for a source.
    pub from: Option<usize>,
    /// The number of the taking actor; `None` for a sink.
    pub to: Option<usize>,
}

/// An item of a trace. Times are nanoseconds since the spawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceItem {
    /// Its number.
    pub seq: u64,
    /// When it was admitted.
    pub admitted_ns: u64,
    /// When it left the pipeline; `None` while it is in flight.
    pub completed_ns: Option<u64>,
}

/// The events of a run, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The name of the pipeline.
    pub pipeline: String,
    /// The actors, in the order of the topology.
    pub actors: Vec<TraceActor>,
    /// The edges, in the order of the topology.
    pub edges: Vec<TraceEdge>,
    /// The items, by their number.
    pub items: Vec<TraceItem>,
    /// The events, by their start.
    pub events: Vec<TraceEvent>,
    /// Events and items that were dropped because the rings were full: the oldest go first.
    pub dropped: u64,
}

/// The last events of one actor. Written by the actor's thread alone, so its lock is free but for
/// the moment of an export.
pub(crate) struct Ring {
    capacity: usize,
    state: Mutex<(VecDeque<(u64, u64, u64)>, u64)>,
}

/// Events for which there is room from the start; more is made as they come.
const FIRST: usize = 1024;

impl Ring {
    pub(crate) fn new(capacity: usize) -> Self {
        let events = VecDeque::with_capacity(capacity.min(FIRST));
        Self { capacity, state: Mutex::new((events, 0)) }
    }

    /// Whether it keeps anything.
    pub(crate) const fn is_on(&self) -> bool {
        self.capacity > 0
    }

    pub(crate) fn record(&self, seq: u64, start_ns: u64, end_ns: u64) {
        if self.capacity == 0 {
            return;
        }
        let mut state = lock(&self.state);
        let full = state.0.len() == self.capacity;
        if full || (state.0.len() == state.0.capacity() && state.0.try_reserve(1).is_err()) {
            state.1 += 1;
            if state.0.pop_front().is_none() {
                return;
            }
        }
        state.0.push_back((seq, start_ns, end_ns));
    }

    /// Adds what the ring of the items holds to a trace, and the items that are in flight.
    pub(crate) fn export_items(&self, in_flight: Vec<(u64, u64)>, trace: &mut Trace) {
        if self.capacity == 0 {
            return;
        }
        let open = in_flight.into_iter().map(|(seq, admitted_ns)| (seq, admitted_ns, None));
        let mut items: BTreeMap<u64, TraceItem> = open
            .map(|(seq, admitted_ns, completed_ns)| {
                (seq, TraceItem { seq, admitted_ns, completed_ns })
            })
            .collect();
        let state = lock(&self.state);
        trace.dropped += state.1;
        for &(seq, admitted_ns, completed_ns) in &state.0 {
            items.insert(seq, TraceItem { seq, admitted_ns, completed_ns: Some(completed_ns) });
        }
        trace.items.extend(items.into_values());
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
    /// The trace in the Chrome trace format, which Perfetto opens: one lane per actor, one flow arrow
    /// per item from actor to actor, one counter per edge (the items that lie in it) and one for the
    /// items in flight. The number of dropped events is in `otherData`; what misses its other half
    /// because of that is in no counter. An item that fans out, or is batched, counts once on each edge
    /// that its parts take, as long as one of them may lie there.
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
        let firings = self.firings();
        for edge in &self.edges {
            let stays = self.items.iter().filter_map(|item| self.stay(edge, item, &firings));
            counter(&mut json, &format!("level: {}", edge.name), stays);
        }
        let flights = self.items.iter().map(|item| (item.admitted_ns, item.completed_ns));
        counter(&mut json, "in flight", flights);
        json.push_str("]}");
        json
    }

    /// For each actor and item, when its first firing ended and when its last one started: children
    /// and batches have the number of their item.
    fn firings(&self) -> HashMap<(usize, u64), (u64, u64)> {
        let mut firings = HashMap::new();
        for event in &self.events {
            let known = firings.entry((event.actor, event.seq));
            let (ended, started) = known.or_insert((event.end_ns, event.start_ns));
            *ended = event.end_ns.min(*ended);
            *started = event.start_ns.max(*started);
        }
        firings
    }

    /// When an item was put onto an edge, and when it left it, as far as the events tell. An item
    /// that was passed on without a firing left with its completion.
    fn stay(
        &self,
        edge: &TraceEdge,
        item: &TraceItem,
        firings: &HashMap<(usize, u64), (u64, u64)>,
    ) -> Option<(u64, Option<u64>)> {
        let entered = match edge.from {
            None => item.admitted_ns,
            Some(actor) => firings.get(&(actor, item.seq))?.0,
        };
        let taken = edge.to.and_then(|actor| firings.get(&(actor, item.seq)));
        let left = taken.map(|(_, started)| *started).or(item.completed_ns);
        Some((entered, left.map(|left| left.max(entered))))
    }
}

/// Writes a counter of how many of these stays are under way.
fn counter(json: &mut String, name: &str, stays: impl Iterator<Item = (u64, Option<u64>)>) {
    let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
    for (from, to) in stays {
        *changes.entry(from).or_default() += 1;
        if let Some(to) = to {
            *changes.entry(to).or_default() -= 1;
        }
    }
    let mut level = 0;
    for (at, change) in changes {
        level += change;
        json.push_str(",{\"ph\":\"C\",\"pid\":1,\"name\":");
        text(json, name);
        let _ = write!(json, ",\"ts\":{},\"args\":{{\"items\":{level}}}}}", micros(at));
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
            ..Trace::default()
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

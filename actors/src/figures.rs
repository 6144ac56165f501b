//! The figures and the trace of a pipeline, read off its parts.

use std::time::Instant;

use crate::counts::load;
use crate::cpu::CpuStats;
use crate::engine::{EdgeCell, Engine};
use crate::metrics::{
    ActorStats, AdmissionStats, DeviceStats, EdgeStats, FanOutStats, PipelineState, Stats, nanos,
};
use crate::sync::{Ordering, lock};
use crate::topology::InPort;
use crate::trace::{Trace, TraceActor, TraceEdge};
use crate::watch::Watch;

impl<P: 'static> Engine<P> {
    pub(crate) fn stats(&self) -> Stats {
        let now = Instant::now();
        let actors: Vec<ActorStats> = self
            .actors
            .iter()
            .map(|cell| {
                let meter = cell.meter.snapshot(&cell.name, &cell.actor, &cell.device, now);
                let core =
                    lock(&cell.pinned).as_ref().and_then(|pinned| pinned.as_ref().ok().copied());
                ActorStats { threads: cell.threads, core, ..meter }
            })
            .collect();
        let edges = self.edges.iter().enumerate().map(|(number, edge)| {
            let (taker, _, wait_sum_ns) = self.taken_from(number);
            let (sent, mut peak) = edge.meter.snapshot();
            if let (Some(taker), false) = (taker, edge.gathers) {
                let peaks = self.replicas(taker).iter().map(|cell| cell.meter.peak());
                peak = peaks.fold(peak, u64::max);
            }
            EdgeStats {
                from: edge.from.clone(),
                to: edge.to.clone(),
                giver: edge.giver(),
                taker,
                sent,
                level: self.level(number),
                peak,
                capacity: edge.capacity,
                wait_sum_ns,
            }
        });
        let devices = self.devices.iter().map(|lanes| {
            let (total, held, poisoned, busy) = lanes.snapshot(now);
            let computing =
                self.computing.iter().rev().find(|(device, _)| **device == *lanes.device);
            DeviceStats {
                device: lanes.device.to_string(),
                lanes: total,
                held,
                poisoned,
                busy_ns: nanos(busy),
                computing: computing.map_or(total, |(_, computing)| *computing),
            }
        });
        let fan_outs = self.regions.iter().filter_map(|region| {
            let (maker, budget) = region.budget.as_ref()?;
            let (children, peak) = budget.level();
            let actor = self.actors[*maker].name.to_string();
            Some(FanOutStats { actor, children, peak, limit: budget.limit() })
        });
        let counts = self.credits.counts();
        let detached = self.exits.left_behind();
        let (budget, used) = self.budget.level();
        let (stalls, stall_count) = self.watch.as_ref().map(Watch::snapshot).unwrap_or_default();
        Stats {
            name: self.name.clone(),
            state: self.ending().map_or(PipelineState::Running, |(state, _)| state),
            uptime_ns: self.time(now),
            in_flight: self.credits.used(),
            in_flight_limit: self.credits.limit(),
            admission: self.admission(),
            admitted: counts.admitted,
            completed: counts.completed,
            failed: counts.failed,
            filtered: counts.filtered,
            latency: self.latency.snapshot(),
            first: counts.first(),
            began: counts.began(),
            filled: counts.filled(),
            fed: counts.fed(),
            last: counts.last(),
            actors,
            edges: edges.collect(),
            devices: devices.collect(),
            fan_outs: fan_outs.collect(),
            cpu: CpuStats { budget, used },
            notices: self.notices(),
            stalls,
            stall_count,
            detached: detached.iter().map(|&me| self.actors[me].name.to_string()).collect(),
        }
    }

    fn notices(&self) -> Vec<String> {
        let mut notices = self.notices.clone();
        for cell in &self.actors {
            if let Some(Err(why)) = &*lock(&cell.pinned) {
                notices.push(format!("the thread of actor `{}` is not pinned: {why}", cell.name));
            }
        }
        notices
    }

    /// Of an edge: the actor that takes from it, the items that left it if they lie there at all, and
    /// the sum of their waits.
    pub(crate) fn taken_from(&self, edge: usize) -> (Option<usize>, Option<u64>, u64) {
        match self.edges[edge].taker {
            InPort::Actor { actor, .. } => {
                // The edges of an actor in the order of the topology; ports may be in another.
                let ends_there = |other: &&EdgeCell| matches!(other.taker, InPort::Actor { actor: a, .. } if a == actor);
                let place = self.edges[..edge].iter().filter(ends_there).count();
                let replicas = self.replicas(actor).iter();
                let waits = replicas.filter_map(|cell| cell.waited_ns.get(place));
                let waited = waits.map(load).sum();
                let left = (!self.edges[edge].gathers).then(|| self.taken(actor));
                (Some(actor), left, waited)
            }
            InPort::Sink(_) => {
                if self.sink.ports == 1 && !self.edges[edge].gathers {
                    return (None, Some(self.edges[edge].meter.snapshot().0), 0);
                }
                let sink = self.sink_edges.iter().find(|sink| sink.edge == edge);
                sink.map_or((None, None, 0), |sink| {
                    (None, Some(load(&sink.left)), load(&sink.waited_ns))
                })
            }
        }
    }

    fn admission(&self) -> AdmissionStats {
        let (held, peak) = self.bytes.snapshot();
        AdmissionStats {
            queued: self.credits.queued(),
            queue_capacity: self.queue.capacity,
            dropped: self.queue.dropped.load(Ordering::Relaxed),
            expired: self.queue.expired.load(Ordering::Relaxed),
            // What a stop left behind is not counted down any more.
            bytes: if self.has_stopped() { 0 } else { held as u64 },
            bytes_peak: peak as u64,
            byte_budget: self.byte_budget.map(|bytes| bytes as u64),
            in_flight_max: self.capacity,
        }
    }

    pub(crate) fn trace(&self) -> Trace {
        let mut trace = Trace { pipeline: self.name.clone(), ..Trace::default() };
        for (number, edge) in self.edges.iter().enumerate() {
            let name = format!("{} to {}", edge.from, edge.to);
            let to = self.taken_from(number).0;
            trace.edges.push(TraceEdge { name, from: edge.giver(), to });
        }
        // An item is in one list or the other, or in both; never in none.
        let in_flight = self.flight.open();
        let in_flight = in_flight.into_iter().map(|(seq, at_ns)| (seq.number(), at_ns));
        self.items.export_items(in_flight.collect(), &mut trace);
        for (me, actor) in self.actors.iter().enumerate() {
            trace.actors.push(TraceActor {
                name: actor.name.to_string(),
                device: actor.device.to_string(),
            });
            actor.ring.export(me, &mut trace);
        }
        trace.events.sort_by_key(|event| (event.start_ns, event.actor));
        trace
    }
}

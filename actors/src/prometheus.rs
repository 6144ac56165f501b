//! The figures in the text format that Prometheus scrapes.

use std::fmt::Write as _;

use crate::histogram::Histogram;
use crate::metrics::{ActorStats, DeviceStats, EdgeStats, PipelineState, Stats};

/// The bounds of the latency buckets, as powers of two in nanoseconds: 1 µs to 69 s. A bound just
/// below a power of two cuts no bucket of a [`Histogram`].
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=36;

impl Stats {
    /// The figures in the text exposition format of Prometheus, version 0.0.4: times in seconds, the
    /// latency as a histogram, one sample per actor, edge and device.
    ///
    /// ```
    /// use brigade_actors::{Options, Pipeline, Topology, stage_fn};
    ///
    /// let mut builder = Topology::<i64>::builder();
    /// let x = builder.source("x");
    /// let inc = builder.actor("inc", "cpu:0", 1, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] + 1])));
    /// let y = builder.sink("y");
    /// builder.connect(x, inc.input(0)).connect(inc.output(0), y);
    /// let pipeline = Pipeline::spawn(builder.build()?, Options::new().name("p"))?;
    /// pipeline.push(vec![1])?.wait()?;
    /// let text = pipeline.stats().to_prometheus();
    /// assert!(text.contains("brigade_items_completed_total{pipeline=\"p\"} 1\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        Self::all_to_prometheus(std::slice::from_ref(self))
    }

    /// Like [`to_prometheus`](Self::to_prometheus), for several pipelines in one page: the format
    /// wants the samples of one metric together.
    #[must_use]
    pub fn all_to_prometheus(pipelines: &[Self]) -> String {
        let mut page = Page(String::new());
        page.pipelines(pipelines);
        page.actors(pipelines);
        page.edges(pipelines);
        page.devices(pipelines);
        page.0
    }
}

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        self.0.push_str(name);
        for (place, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if place == 0 { '{' } else { ',' });
            for character in text.chars() {
                match character {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    other => self.0.push(other),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    fn pipelines(&mut self, pipelines: &[Stats]) {
        type Row = (&'static str, &'static str, &'static str, fn(&Stats) -> String);
        let rows: [Row; 14] = [
            ("uptime_seconds", "gauge", "Time since the pipeline was spawned.", |s| {
                seconds(s.uptime_ns)
            }),
            ("in_flight", "gauge", "Items that hold a credit.", |s| s.in_flight.to_string()),
            ("in_flight_limit", "gauge", "The most items that may be in flight.", |s| {
                s.in_flight_limit.to_string()
            }),
            ("items_admitted_total", "counter", "Items admitted.", |s| s.admitted.to_string()),
            ("items_completed_total", "counter", "Items with a result, value or error.", |s| {
                s.completed.to_string()
            }),
            ("items_failed_total", "counter", "Items whose result is an error.", |s| {
                s.failed.to_string()
            }),
            ("items_filtered_total", "counter", "Items that a filter took out.", |s| {
                s.filtered.to_string()
            }),
            ("in_flight_bytes", "gauge", "Bytes in flight, under a byte budget.", |s| {
                s.admission.bytes.to_string()
            }),
            ("in_flight_bytes_peak", "gauge", "The most bytes that were in flight.", |s| {
                s.admission.bytes_peak.to_string()
            }),
            ("queued", "gauge", "Items that wait in front of the credits.", |s| {
                s.admission.queued.to_string()
            }),
            ("items_dropped_total", "counter", "Items that a full queue turned away.", |s| {
                s.admission.dropped.to_string()
            }),
            (
                "items_expired_total",
                "counter",
                "Items that were too old before they started.",
                |s| s.admission.expired.to_string(),
            ),
            ("stalls_total", "counter", "Times that nothing moved.", |s| s.stall_count.to_string()),
            ("detached_actors", "gauge", "Actors whose stuck thread was left behind.", |s| {
                s.detached.len().to_string()
            }),
        ];
        for (name, kind, help, value) in rows {
            let name = format!("brigade_{name}");
            self.family(&name, kind, help);
            for stats in pipelines {
                self.sample(&name, &[("pipeline", &stats.name)], &value(stats));
            }
        }
        self.family("brigade_state", "gauge", "1 for the state that the pipeline is in.");
        for stats in pipelines {
            for (state, word) in [
                (PipelineState::Running, "running"),
                (PipelineState::Draining, "draining"),
                (PipelineState::Stopped, "stopped"),
                (PipelineState::Failed, "failed"),
            ] {
                let labels = [("pipeline", stats.name.as_str()), ("state", word)];
                let here = if stats.state == state { "1" } else { "0" };
                self.sample("brigade_state", &labels, here);
            }
        }
        let name = "brigade_latency_seconds";
        self.family(name, "histogram", "Time from admission to result.");
        for stats in pipelines {
            self.histogram(name, &stats.name, &stats.latency);
        }
    }

    fn histogram(&mut self, name: &str, pipeline: &str, histogram: &Histogram) {
        let bucket = format!("{name}_bucket");
        for bits in BOUNDS {
            let bound = (1_u64 << bits) - 1;
            let labels = [("pipeline", pipeline), ("le", &seconds(bound))];
            self.sample(&bucket, &labels, &histogram.count_up_to(bound).to_string());
        }
        let count = histogram.count().to_string();
        self.sample(&bucket, &[("pipeline", pipeline), ("le", "+Inf")], &count);
        self.sample(
            &format!("{name}_sum"),
            &[("pipeline", pipeline)],
            &seconds(histogram.sum_ns()),
        );
        self.sample(&format!("{name}_count"), &[("pipeline", pipeline)], &count);
    }

    fn actors(&mut self, pipelines: &[Stats]) {
        type Row = (&'static str, &'static str, fn(&ActorStats) -> String);
        let rows: [Row; 7] = [
            ("actor_firings_total", "Firings given to the stage.", |a| a.items.to_string()),
            ("actor_errors_total", "Firings that ended in an error.", |a| a.errors.to_string()),
            ("actor_skipped_total", "Items passed on as errors.", |a| a.skipped.to_string()),
            ("actor_retries_total", "Firings that were tried again.", |a| a.retries.to_string()),
            ("actor_restarts_total", "Times the stage was built anew.", |a| a.restarts.to_string()),
            ("actor_service_seconds_total", "Time from begin to end of all firings.", |a| {
                seconds(a.service_sum_ns)
            }),
            (
                "actor_computed_seconds_total",
                "Time that the device computed, of firings whose stage told it.",
                |a| seconds(a.computed_ns),
            ),
        ];
        for (name, help, value) in rows {
            let name = format!("brigade_{name}");
            self.family(&name, "counter", help);
            for (stats, actor) in each(pipelines, |stats| &stats.actors) {
                self.sample(&name, &labels_of(stats, actor), &value(actor));
            }
        }
        let name = "brigade_actor_phase_seconds_total";
        self.family(name, "counter", "Time of the actor in each phase; they add up to the uptime.");
        for (stats, actor) in each(pipelines, |stats| &stats.actors) {
            let phases = [
                ("busy", actor.busy_ns),
                ("starved", actor.starved_ns),
                ("blocked", actor.blocked_ns),
                ("other", actor.other_ns),
            ];
            for (phase, ns) in phases {
                let [pipeline, actor, device] = labels_of(stats, actor);
                self.sample(name, &[pipeline, actor, device, ("phase", phase)], &seconds(ns));
            }
        }
    }

    fn edges(&mut self, pipelines: &[Stats]) {
        type Row = (&'static str, &'static str, &'static str, fn(&EdgeStats) -> String);
        let rows: [Row; 5] = [
            ("edge_items_total", "counter", "Items given to the edge.", |e| e.sent.to_string()),
            ("edge_level", "gauge", "Items that lie in the edge.", |e| e.level.to_string()),
            ("edge_level_peak", "gauge", "The most that lay in it.", |e| e.peak.to_string()),
            ("edge_capacity", "gauge", "The most that can lie in it.", |e| e.capacity.to_string()),
            ("edge_wait_seconds_total", "counter", "Time that items lay in the edge.", |e| {
                seconds(e.wait_sum_ns)
            }),
        ];
        for (name, kind, help, value) in rows {
            let name = format!("brigade_{name}");
            self.family(&name, kind, help);
            for (stats, edge) in each(pipelines, |stats| &stats.edges) {
                let labels = [("pipeline", &*stats.name), ("from", &edge.from), ("to", &edge.to)];
                self.sample(&name, &labels, &value(edge));
            }
        }
    }

    fn devices(&mut self, pipelines: &[Stats]) {
        type Row = (&'static str, &'static str, &'static str, fn(&DeviceStats) -> String);
        let rows: [Row; 4] = [
            ("device_lanes", "gauge", "Lanes of the device.", |d| d.lanes.to_string()),
            ("device_lanes_held", "gauge", "Lanes that are held.", |d| d.held.to_string()),
            ("device_lanes_lost", "gauge", "Lanes held by threads left behind.", |d| {
                d.poisoned.to_string()
            }),
            ("device_busy_seconds_total", "counter", "Time with at least one lane in use.", |d| {
                seconds(d.busy_ns)
            }),
        ];
        for (name, kind, help, value) in rows {
            let name = format!("brigade_{name}");
            self.family(&name, kind, help);
            for (stats, device) in each(pipelines, |stats| &stats.devices) {
                let labels = [("pipeline", &*stats.name), ("device", &device.device)];
                self.sample(&name, &labels, &value(device));
            }
        }
    }
}

fn each<'a, T: 'a>(
    pipelines: &'a [Stats],
    of: fn(&Stats) -> &Vec<T>,
) -> impl Iterator<Item = (&'a Stats, &'a T)> {
    pipelines.iter().flat_map(move |stats| of(stats).iter().map(move |part| (stats, part)))
}

fn labels_of<'a>(stats: &'a Stats, actor: &'a ActorStats) -> [(&'static str, &'a str); 3] {
    [("pipeline", &stats.name), ("actor", &actor.name), ("device", &actor.device)]
}

/// Nanoseconds as seconds, to the nanosecond.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    struct Sample {
        name: String,
        labels: Vec<(String, String)>,
        value: f64,
    }

    fn is_name(name: &str) -> bool {
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        !name.is_empty()
            && name.chars().all(legal)
            && !name.starts_with(|c: char| c.is_ascii_digit())
    }

    fn sample(line: &str) -> Sample {
        let (name, mut rest) = line.split_at(line.find(['{', ' ']).unwrap());
        assert!(is_name(name), "{line}");
        let mut labels = Vec::new();
        if let Some(after) = rest.strip_prefix('{') {
            rest = after;
            while !rest.starts_with('}') {
                let (label, after) = rest.split_once("=\"").unwrap();
                assert!(is_name(label) && !label.contains(':'), "{line}");
                let (mut text, mut chars) = (String::new(), after.char_indices());
                let end = loop {
                    match chars.next().unwrap() {
                        (at, '"') => break at + 1,
                        (_, '\\') => text.push(match chars.next().unwrap().1 {
                            'n' => '\n',
                            escaped @ ('\\' | '"') => escaped,
                            other => panic!("\\{other} in {line}"),
                        }),
                        (_, plain) => text.push(plain),
                    }
                };
                labels.push((label.to_owned(), text));
                rest = after[end..].strip_prefix(',').unwrap_or(&after[end..]);
            }
            rest = &rest[1..];
        }
        let value = rest.strip_prefix(' ').unwrap();
        Sample { name: name.to_owned(), labels, value: value.parse().unwrap() }
    }

    /// Reads a page, and checks what the format asks for: a type before the samples of a family, each
    /// family at one place, no sample twice, buckets that add up.
    fn parse(page: &str) -> HashMap<String, Vec<Sample>> {
        assert!(page.ends_with('\n'));
        let mut families: HashMap<String, Vec<Sample>> = HashMap::new();
        let (mut current, mut kind, mut help) = (String::new(), String::new(), String::new());
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, text) = rest.split_once(' ').unwrap();
                assert!(is_name(name) && !text.is_empty());
                name.clone_into(&mut help);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, text) = rest.split_once(' ').unwrap();
                assert_eq!(name, help);
                assert!(["counter", "gauge", "histogram"].contains(&text), "{line}");
                assert_eq!(text == "counter", name.ends_with("_total"), "{line}");
                (current, kind) = (name.to_owned(), text.to_owned());
                assert!(families.insert(current.clone(), Vec::new()).is_none(), "{line} again");
            } else {
                let sample = sample(line);
                let base = if kind == "histogram" {
                    let ends = ["_bucket", "_sum", "_count"];
                    ends.iter().find_map(|end| sample.name.strip_suffix(end)).unwrap()
                } else {
                    &*sample.name
                };
                assert_eq!(base, current);
                families.get_mut(&current).unwrap().push(sample);
            }
        }
        let mut seen = HashSet::new();
        for sample in families.values().flatten() {
            assert!(seen.insert((&sample.name, &sample.labels)), "{} twice", sample.name);
        }
        families
    }

    fn stats(name: &str) -> Stats {
        let mut latency = Histogram::default();
        [900, 1500, 70_000, 3_000_000, 200_000_000_000]
            .into_iter()
            .for_each(|ns| latency.record(ns));
        let actor = ActorStats {
            name: "say \"a\\b\"\nc".into(),
            device: "cpu:0".into(),
            busy_ns: 1_500_000_000,
            starved_ns: 1,
            ..ActorStats::default()
        };
        let edge = |port: usize| EdgeStats {
            from: format!("output {port} of actor `a`"),
            to: "sink `y`".into(),
            level: 3,
            ..EdgeStats::default()
        };
        let device = DeviceStats { device: "cpu:0".into(), lanes: 2, ..DeviceStats::default() };
        Stats {
            name: name.into(),
            state: PipelineState::Draining,
            latency,
            actors: vec![actor],
            edges: vec![edge(0), edge(1)],
            devices: vec![device],
            ..Stats::default()
        }
    }

    #[test]
    fn the_page_follows_the_format_and_says_what_the_figures_say() {
        for page in [
            stats("one").to_prometheus(),
            Stats::all_to_prometheus(&[stats("one"), stats("t\\w\"o")]),
            Stats::all_to_prometheus(&[]),
        ] {
            parse(&page);
        }
        let families = parse(&stats("p").to_prometheus());
        let phases = &families["brigade_actor_phase_seconds_total"];
        assert_eq!(phases[0].labels[1], ("actor".into(), "say \"a\\b\"\nc".into()));
        assert_eq!((phases[0].value, phases[1].value), (1.5, 1e-9));
        assert_eq!(families["brigade_edge_level"].iter().map(|s| s.value).sum::<f64>(), 6.0);
        let states = families["brigade_state"].iter().filter(|s| s.value == 1.0);
        let states: Vec<_> = states.map(|s| s.labels[1].1.clone()).collect();
        assert_eq!(states, ["draining"]);
    }

    #[test]
    fn the_latency_buckets_are_cumulative_and_end_in_the_count() {
        let families = parse(&stats("p").to_prometheus());
        let latency = &families["brigade_latency_seconds"];
        let buckets: Vec<(f64, f64)> = latency
            .iter()
            .filter(|sample| sample.name.ends_with("_bucket"))
            .map(|sample| (sample.labels[1].1.parse().unwrap(), sample.value))
            .collect();
        assert!(buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1));
        assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, 5.0));
        for (bound, count) in &buckets[..buckets.len() - 1] {
            let exact = [9e-7, 1.5e-6, 7e-5, 3e-3, 200.0].iter().filter(|s| *s <= bound).count();
            assert_eq!(*count, exact as f64, "up to {bound}");
        }
        let of = |name: &str| latency.iter().find(|s| s.name.ends_with(name)).unwrap().value;
        assert_eq!((of("_count"), of("_sum")), (5.0, 200.003_072_4));
    }

    #[test]
    fn seconds_are_exact() {
        let texts = [0, 1, 1023, 1_000_000_000, u64::MAX].map(seconds);
        assert_eq!(texts, ["0", "0.000000001", "0.000001023", "1", "18446744073.709551615"]);
    }
}

//! The plan file: rules that place nodes, and how the pipeline runs.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::fmt;
use std::io::Read as _;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::placement::{check_stage_id, unplaced};
use super::rules::{Rule, Rules};
use super::{DeviceId, DeviceMap, MAX_IN_FLIGHT, Matcher, MeasuredLink, Notice, Placement};
use crate::device::{Precision, check_in_flight, check_replicas, check_threads};
use crate::error::{Error, Result, bail, err};
use crate::graph::Graph;

/// The version of the plan file that this crate writes, and the only one that it reads.
pub const PLAN_SCHEMA: u32 = 1;

/// Plan files that are larger are refused.
const MAX_BYTES: u64 = 64 << 20;

/// How many items are in flight at most; in files `"auto"` or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InFlight {
    /// As many as keep all devices busy.
    Auto,
    /// This many, at least one.
    Count(u32),
}

impl Serialize for InFlight {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self, serializer.is_human_readable()) {
            (Self::Auto, true) => serializer.serialize_str("auto"),
            (Self::Auto, false) => serializer.serialize_u32(0),
            (Self::Count(n), _) => serializer.serialize_u32(*n),
        }
    }
}

impl<'de> Deserialize<'de> for InFlight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = InFlight;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "`\"auto\"` or a number of items, at least 1 and at most {MAX_IN_FLIGHT}")
            }

            fn visit_str<E: de::Error>(self, s: &str) -> Result<InFlight, E> {
                match s {
                    "auto" => Ok(InFlight::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(s), &self)),
                }
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<InFlight, E> {
                match u32::try_from(n) {
                    Ok(n) if n > 0 => Ok(InFlight::Count(n)),
                    _ => Err(E::invalid_value(de::Unexpected::Unsigned(n), &self)),
                }
            }
        }
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(Words)
        } else {
            let n = u32::deserialize(deserializer)?;
            Ok(if n == 0 { Self::Auto } else { Self::Count(n) })
        }
    }
}

/// A placement by rules, and how the pipeline runs: the plan file.
///
/// The first rule that matches a node places it; a node that none matches goes to
/// `default_device`, and without one it is an error. As JSON:
///
/// ```
/// use brigade::graph::{Fact, Graph};
/// use brigade::partition::Plan;
/// let mut graph = Graph::new("g");
/// let x = graph.add_input("x", Fact::unknown()).unwrap();
/// let y = graph.add_value("y", Fact::unknown()).unwrap();
/// graph.add_node("/enc/conv", "Conv", [Some(x)], [Some(y)]);
/// graph.set_outputs([y]);
///
/// let plan = Plan::parse(
///     r#"{"schema":1, "rules":[{"match":"name:/enc/*", "device":"cpu:1"}], "in_flight":4}"#,
/// )
/// .unwrap();
/// let map = plan.resolve(&graph, None).unwrap();
/// assert_eq!(map.devices().next().unwrap().to_string(), "cpu:1");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "File", into = "File")]
pub struct Plan {
    /// The SHA-256 of the model file that the plan is for, in hexadecimal.
    pub model_sha256: Option<String>,
    /// The rules, in order.
    pub rules: Vec<Rule>,
    /// Where nodes run that no rule matches.
    pub default_device: Option<DeviceId>,
    /// Rows per micro-batch.
    pub micro_batch: Option<u32>,
    /// How many items are in flight, at most [`MAX_IN_FLIGHT`].
    pub in_flight: Option<InFlight>,
    /// Threads by device, at most [`MAX_THREADS`](super::MAX_THREADS) each.
    pub threads: BTreeMap<DeviceId, u32>,
    /// What products are computed in, by device; f32 where nothing is said.
    pub precision: BTreeMap<DeviceId, Precision>,
    /// How many instances of a segment run, by the segment's index; at most
    /// [`MAX_REPLICAS`](super::MAX_REPLICAS) each.
    pub replicas: BTreeMap<u32, u32>,
    /// What was measured of links when the plan was made; what runs measures anew.
    pub links: Vec<MeasuredLink>,
}

/// The file form; what is not said may be left out of JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    model_sha256: Option<String>,
    rules: Option<Vec<Rule>>,
    default_device: Option<DeviceId>,
    micro_batch: Option<u32>,
    in_flight: Option<InFlight>,
    threads: Option<ByKey<DeviceId, u32>>,
    precision: Option<ByKey<DeviceId, Precision>>,
    replicas: Option<ByKey<u32, u32>>,
    links: Option<Vec<MeasuredLink>>,
}

/// Entries by key; giving a key twice (also as `cpu` and `cpu:0`) is an error.
struct ByKey<K, V>(BTreeMap<K, V>);

impl<K: Serialize, V: Serialize> Serialize for ByKey<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, K, V> Deserialize<'de> for ByKey<K, V>
where
    K: Deserialize<'de> + Ord + fmt::Display,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);
        impl<'de, K, V> Visitor<'de> for Entries<K, V>
        where
            K: Deserialize<'de> + Ord + fmt::Display,
            V: Deserialize<'de>,
        {
            type Value = ByKey<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ByKey<K, V>, A::Error> {
                let mut out = BTreeMap::new();
                while let Some((key, value)) = map.next_entry()? {
                    match out.entry(key) {
                        btree_map::Entry::Vacant(entry) => {
                            entry.insert(value);
                        }
                        btree_map::Entry::Occupied(entry) => {
                            let text = format!("`{}` is given twice", entry.key());
                            return Err(de::Error::custom(text));
                        }
                    }
                }
                Ok(ByKey(out))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

impl TryFrom<File> for Plan {
    type Error = Error;

    fn try_from(file: File) -> Result<Self> {
        check_schema(file.schema)?;
        let plan = Self {
            model_sha256: file.model_sha256,
            rules: file.rules.unwrap_or_default(),
            default_device: file.default_device,
            micro_batch: file.micro_batch,
            in_flight: file.in_flight,
            threads: file.threads.map(|c| c.0).unwrap_or_default(),
            precision: file.precision.map(|c| c.0).unwrap_or_default(),
            replicas: file.replicas.map(|c| c.0).unwrap_or_default(),
            links: file.links.unwrap_or_default(),
        };
        plan.check()?;
        Ok(plan)
    }
}

impl From<Plan> for File {
    fn from(plan: Plan) -> Self {
        Self {
            schema: PLAN_SCHEMA,
            model_sha256: plan.model_sha256,
            rules: Some(plan.rules),
            default_device: plan.default_device,
            micro_batch: plan.micro_batch,
            in_flight: plan.in_flight,
            threads: Some(ByKey(plan.threads)),
            precision: Some(ByKey(plan.precision)),
            replicas: Some(ByKey(plan.replicas)),
            links: (!plan.links.is_empty()).then_some(plan.links),
        }
    }
}

fn check_schema(schema: u32) -> Result<()> {
    if schema == PLAN_SCHEMA {
        return Ok(());
    }
    Err(err!(Plan, "the plan is of schema {schema}; this version reads schema {PLAN_SCHEMA}")
        .with_help("write the plan anew with `brigade plan`"))
}

impl Plan {
    /// The plan in this JSON text.
    ///
    /// # Errors
    /// If it is not JSON, of another schema, or has unknown, missing, repeated or impossible
    /// entries; with line and column where they are known.
    pub fn parse(json: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
        }
        let malformed = |e: &serde_json::Error| err!(Plan, "the plan cannot be read: {e}");
        // serde would take an array, too, for the fields in order.
        if json.trim_start().starts_with(|c| c != '{') {
            bail!(Plan, "the plan cannot be read: it is no JSON object");
        }
        // A later schema may have other fields; its number is the better message.
        let head: Head = serde_json::from_str(json).map_err(|e| malformed(&e))?;
        check_schema(head.schema)?;
        serde_json::from_str(json).map_err(|e| malformed(&e))
    }

    /// The plan in this file.
    ///
    /// # Errors
    /// If the file cannot be read or is above 64 MiB, and as [`parse`](Self::parse).
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let io = |e: std::io::Error| err!(Io, "cannot read the plan `{shown}`").with_source(e);
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > MAX_BYTES {
            bail!(Limit, "the plan `{shown}` has more than {MAX_BYTES} bytes");
        }
        Self::parse(&text).map_err(|e| err!(Plan, "in `{shown}`: {e}"))
    }

    /// The plan as JSON text, one rule a line or more.
    ///
    /// # Errors
    /// Never for a plan that [`check`](Self::check) accepts.
    pub fn to_json(&self) -> Result<String> {
        self.check()?;
        serde_json::to_string_pretty(self)
            .map_err(|e| err!(Internal, "a plan cannot be written: {e}"))
    }

    /// Whether the numbers, the hash, the patterns, the datapaths and the links are possible.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<()> {
        if let Some(hash) = &self.model_sha256
            && !(hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()))
        {
            bail!(Plan, "the plan's model_sha256 `{hash}` is not 64 hexadecimal digits");
        }
        if self.micro_batch == Some(0) {
            bail!(Plan, "the plan's micro_batch is 0; a micro-batch has one row or more");
        }
        let within = |e: Error, what: &str| {
            let out = err!(Plan, "the plan's {what}: {}", e.message());
            out.with_help(e.help().unwrap_or_default())
        };
        if let Some(InFlight::Count(n)) = self.in_flight {
            check_in_flight(n as usize).map_err(|e| within(e, "in_flight"))?;
        }
        for (device, n) in &self.threads {
            check_threads(*n as usize).map_err(|e| within(e, &format!("threads of `{device}`")))?;
        }
        for (segment, n) in &self.replicas {
            check_replicas(*n as usize)
                .map_err(|e| within(e, &format!("replicas of segment {segment}")))?;
        }
        for (at, rule) in self.rules.iter().enumerate() {
            rule.matcher.pattern()?;
            if let Some(id) = &rule.stage_id {
                check_stage_id(&rule.device, id)
                    .map_err(|e| e.within(&format!("rule {at} of the plan")))?;
            }
        }
        self.check_links()
    }

    /// Whether what is said of links can be: each pair once, of two ends that are one of the plan's
    /// workers and another one or the coordinator.
    fn check_links(&self) -> Result<()> {
        let devices = self.rules.iter().map(|rule| &rule.device).chain(&self.default_device);
        let workers: BTreeSet<&str> = devices.filter_map(DeviceId::worker).collect();
        // A plan does not say what its coordinator is called.
        let mut coordinator = None;
        for (at, link) in self.links.iter().enumerate() {
            let (from, to) = (link.from.as_str(), link.to.as_str());
            let what = format!("link {at} of the plan, `{from}` to `{to}`");
            for end in [from, to] {
                if workers.contains(end) || coordinator == Some(end) {
                    continue;
                }
                DeviceId::cpu(0).at(end).map_err(|e| err!(Plan, "{what}: {}", e.message()))?;
                if let Some(other) = coordinator.replace(end) {
                    return Err(err!(Plan, "{what}: nothing is placed on `{end}` or `{other}`")
                        .with_help(
                            "links are between workers that rules or default_device name, and \
                             from each to the coordinator",
                        ));
                }
            }
            if from == to {
                bail!(Plan, "{what}: a link has two ends");
            }
            if link.bytes_per_s == 0 {
                bail!(Plan, "{what}: its bytes_per_s is 0; leave out a link that carries nothing");
            }
            if self.links[..at].iter().any(|other| other.is_between(from, to)) {
                bail!(Plan, "{what}: the link is given twice");
            }
        }
        Ok(())
    }

    /// Places the nodes of `graph` by the rules; `model_sha256` is the hash of the file that it
    /// came from, if it came from one.
    ///
    /// Rules that place nothing, and a hash that had nothing to be compared with, are among the
    /// map's [notices](DeviceMap::notices).
    ///
    /// # Errors
    /// If the plan is for another model, or nodes are matched by no rule and there is no default
    /// device (all of them are named), and as [`check`](Self::check).
    pub fn resolve(&self, graph: &Graph, model_sha256: Option<&str>) -> Result<DeviceMap> {
        self.check()?;
        if let (Some(wanted), Some(given)) = (&self.model_sha256, model_sha256)
            && !wanted.eq_ignore_ascii_case(given)
        {
            return Err(err!(
                Plan,
                "the plan is for the model with SHA-256 {wanted}, and graph \
                `{}` came from {given}",
                graph.name
            )
            .with_help("plan this model anew with `brigade plan`, or remove model_sha256"));
        }
        let rules = Rules::new(&self.rules)?;
        let mut used = vec![false; self.rules.len()];
        let mut places: Vec<Option<Placement>> = Vec::with_capacity(graph.nodes().len());
        let mut bare = Vec::new();
        for node in graph.nodes() {
            let place = match rules.first(node) {
                Some(i) => {
                    used[i] = true;
                    let rule = &self.rules[i];
                    Some(Placement {
                        device: rule.device.clone(),
                        stage: rule.stage,
                        stage_id: rule.stage_id.as_deref().map(Into::into),
                    })
                }
                None => self.default_device.clone().map(Placement::from),
            };
            if place.is_none() {
                bare.push(node.name.as_str());
            }
            places.push(place);
        }
        if !bare.is_empty() {
            return Err(unplaced(graph, &bare)
                .with_help("add rules for them, or give the plan a default_device"));
        }
        let mut map = if self.rules.is_empty()
            && let Some(device) = &self.default_device
        {
            DeviceMap::single(device.clone())
        } else {
            let mut places = places.into_iter().flatten();
            DeviceMap::from_placements(graph, |_, _| {
                places.next().unwrap_or_else(|| DeviceId::cpu(0).into())
            })
        };
        for (i, _) in used.iter().enumerate().filter(|(_, used)| !**used) {
            let matcher = &self.rules[i].matcher;
            let pattern = matcher.pattern()?;
            map.push_notice(Notice::UnusedRule {
                rule: i,
                pattern: matcher.to_string(),
                shadowed: graph.nodes().iter().any(|n| matcher.matches(&pattern, n)),
            });
        }
        for device in self.threads.keys() {
            if map.devices().all(|d| d != device) {
                map.push_notice(Notice::UnusedThreads { device: device.clone() });
            }
        }
        for device in self.precision.keys() {
            if map.devices().all(|d| d != device) {
                map.push_notice(Notice::UnusedPrecision { device: device.clone() });
            }
        }
        if self.model_sha256.is_some() && model_sha256.is_none() {
            map.push_notice(Notice::ModelNotCompared);
        }
        Ok(map)
    }

    /// A plan that places the nodes of `graph` as `map` does: a rule for each node by name, or
    /// one default device for a map that is [`single`](DeviceMap::single).
    ///
    /// # Errors
    /// If the map was made for another graph.
    pub fn from_map(graph: &Graph, map: &DeviceMap) -> Result<Self> {
        map.check(graph)?;
        if let Some(place) = map.everywhere().filter(|place| place.stage_id.is_none()) {
            return Ok(Self { default_device: Some(place.device.clone()), ..Self::default() });
        }
        let mut rules = Vec::with_capacity(graph.nodes().len());
        for (id, node) in graph.node_ids() {
            let place = map.placement(id)?;
            rules.push(Rule {
                matcher: Matcher::exactly(&node.name),
                device: place.device.clone(),
                stage: place.stage,
                stage_id: place.stage_id.as_deref().map(str::to_owned),
            });
        }
        Ok(Self { rules, ..Self::default() })
    }
}

#[cfg(test)]
mod tests;

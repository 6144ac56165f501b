//! The plan file: rules that place nodes, and how the pipeline runs.

use std::collections::{BTreeMap, HashMap, btree_map};
use std::fmt;
use std::io::Read as _;
use std::marker::PhantomData;
use std::path::Path;
use std::str::FromStr;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::names::{Pattern, escape};
use super::placement::unplaced;
use super::{DeviceId, DeviceMap, MAX_IN_FLIGHT, MeasuredLink, Notice, Placement};
use crate::device::{check_in_flight, check_replicas, check_threads};
use crate::error::{Error, Result, bail, err};
use crate::graph::{Graph, Node};

/// The version of the plan file that this crate writes, and the only one that it reads.
pub const PLAN_SCHEMA: u32 = 1;

/// Plan files that are larger are refused.
const MAX_BYTES: u64 = 64 << 20;

/// Which nodes a rule is for, by a pattern over the whole operator or the whole name.
///
/// `*` stands for any characters (`/` too), `?` for one, and `\` takes the next character as it
/// is. Operators of other domains than ai.onnx are written with theirs, as
/// `op:com.microsoft.Gelu`. In files it is a string.
///
/// ```
/// use brigade::partition::Matcher;
/// let matcher: Matcher = "name:/enc/*".parse().unwrap();
/// assert_eq!(matcher, Matcher::Name("/enc/*".to_owned()));
/// assert!("/enc/*".parse::<Matcher>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Matcher {
    /// `op:PATTERN`
    Op(String),
    /// `name:PATTERN`
    Name(String),
}

impl Matcher {
    /// Matches the one node of this name, whatever characters are in it.
    pub fn exactly(name: &str) -> Self {
        Self::Name(escape(name))
    }

    fn pattern(&self) -> Result<Pattern> {
        let (Self::Op(text) | Self::Name(text)) = self;
        Pattern::parse(text).ok_or_else(|| {
            err!(Plan, "the pattern `{self}` ends in a lone `\\`")
                .with_help("write `\\\\` for a backslash")
        })
    }
}

impl FromStr for Matcher {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let matcher = match s.split_once(':') {
            Some(("op", pattern)) => Self::Op(pattern.to_owned()),
            Some(("name", pattern)) => Self::Name(pattern.to_owned()),
            _ => {
                return Err(err!(Plan, "`{s}` does not say what to match").with_help(
                    "write `op:` or `name:` and a pattern, such as `op:Conv` or `name:/enc/*`",
                ));
            }
        };
        matcher.pattern().map(|_| matcher)
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Op(pattern) => write!(f, "op:{pattern}"),
            Self::Name(pattern) => write!(f, "name:{pattern}"),
        }
    }
}

impl TryFrom<String> for Matcher {
    type Error = Error;

    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

impl From<Matcher> for String {
    fn from(matcher: Matcher) -> Self {
        matcher.to_string()
    }
}

/// Places the nodes that it matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which nodes.
    #[serde(rename = "match")]
    pub matcher: Matcher,
    /// Where they run.
    pub device: DeviceId,
    /// Their stage: nodes of different stages are in different segments, also on one device.
    pub stage: Option<u32>,
    /// The fixed datapath that they stand for: a worker that owns it runs it in their place.
    pub stage_id: Option<String>,
}

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
    threads: Option<Counts<DeviceId>>,
    replicas: Option<Counts<u32>>,
    links: Option<Vec<MeasuredLink>>,
}

/// Numbers by key; giving a key twice (also as `cpu` and `cpu:0`) is an error.
struct Counts<K>(BTreeMap<K, u32>);

impl<K: Serialize> Serialize for Counts<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, K: Deserialize<'de> + Ord + fmt::Display> Deserialize<'de> for Counts<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K>(PhantomData<K>);
        impl<'de, K: Deserialize<'de> + Ord + fmt::Display> Visitor<'de> for Entries<K> {
            type Value = Counts<K>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Counts<K>, A::Error> {
                let mut out = BTreeMap::new();
                while let Some((key, count)) = map.next_entry()? {
                    match out.entry(key) {
                        btree_map::Entry::Vacant(entry) => {
                            entry.insert(count);
                        }
                        btree_map::Entry::Occupied(entry) => {
                            let text = format!("`{}` is given twice", entry.key());
                            return Err(de::Error::custom(text));
                        }
                    }
                }
                Ok(Counts(out))
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
            threads: Some(Counts(plan.threads)),
            replicas: Some(Counts(plan.replicas)),
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

    /// Whether the numbers, the hash and the patterns are possible.
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
        self.rules.iter().try_for_each(|rule| rule.matcher.pattern().map(|_| ()))
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

impl Matcher {
    fn matches(&self, pattern: &Pattern, node: &Node) -> bool {
        match self {
            Self::Op(_) => pattern.matches(&node.qualified_op()),
            Self::Name(_) => pattern.matches(&node.name),
        }
    }
}

/// Rules, made ready so that a rule per node does not take nodes² comparisons.
struct Rules<'a> {
    exact: HashMap<String, usize>,
    others: Vec<(usize, &'a Matcher, Pattern)>,
}

impl<'a> Rules<'a> {
    fn new(rules: &'a [Rule]) -> Result<Self> {
        let (mut exact, mut others) = (HashMap::new(), Vec::new());
        for (i, rule) in rules.iter().enumerate() {
            let pattern = rule.matcher.pattern()?;
            match (&rule.matcher, pattern.literal()) {
                (Matcher::Name(_), Some(name)) => {
                    exact.entry(name).or_insert(i);
                }
                _ => others.push((i, &rule.matcher, pattern)),
            }
        }
        Ok(Self { exact, others })
    }

    fn first(&self, node: &Node) -> Option<usize> {
        let exact = self.exact.get(&node.name).copied();
        let other = self
            .others
            .iter()
            .take_while(|(i, ..)| exact.is_none_or(|e| *i < e))
            .find(|(_, matcher, pattern)| matcher.matches(pattern, node));
        other.map(|(i, ..)| *i).or(exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::graph::Fact;
    use crate::partition::Segmentation;

    fn chain(names: &[(&str, &str)]) -> Graph {
        let mut g = Graph::new("chain");
        let mut last = g.add_input("x", Fact::unknown()).unwrap();
        for (name, op) in names {
            let next = g.add_value(format!("{name}.out"), Fact::unknown()).unwrap();
            g.add_node(*name, *op, [Some(last)], [Some(next)]);
            last = next;
        }
        g.set_outputs([last]);
        g
    }

    fn model() -> Graph {
        chain(&[
            ("/enc/conv", "Conv"),
            ("/enc/relu", "Relu"),
            ("/dec/conv", "Conv"),
            ("fc", "Gemm"),
        ])
    }

    fn devices(graph: &Graph, map: &DeviceMap) -> Vec<String> {
        graph.node_ids().map(|(id, _)| map.placement(id).unwrap().device.to_string()).collect()
    }

    #[test]
    fn the_first_rule_that_matches_wins() {
        let g = model();
        let plan = Plan::parse(
            r#"{"schema":1,"rules":[
                {"match":"name:/dec/conv","device":"cpu:3"},
                {"match":"op:C*","device":"cpu:1"},
                {"match":"name:/enc/*","device":"cpu:2"}],
              "default_device":"cpu"}"#,
        )
        .unwrap();
        let map = plan.resolve(&g, None).unwrap();
        assert_eq!(devices(&g, &map), ["cpu:1", "cpu:2", "cpu:3", "cpu:0"]);
        assert!(map.notices().is_empty());
    }

    #[test]
    fn what_no_rule_places_is_named() {
        let plan = Plan::parse(r#"{"schema":1,"rules":[{"match":"name:/enc/*","device":"cpu"}]}"#)
            .unwrap();
        let error = plan.resolve(&model(), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Plan);
        assert!(error.message().contains("`/dec/conv`, `fc`"), "{error}");
        assert!(error.to_string().contains("default_device"), "{error}");
    }

    #[test]
    fn useless_entries_are_noticed() {
        let hash = "ab".repeat(32);
        let plan = Plan::parse(&format!(
            r#"{{"schema":1,"model_sha256":"{hash}","rules":[
                {{"match":"op:Conv","device":"cpu:1"}},
                {{"match":"name:/dec/*","device":"cpu:2"}},
                {{"match":"op:Cnov","device":"cpu:3"}}],
              "default_device":"cpu:0","threads":{{"cpu:9":2,"cpu:1":1}}}}"#
        ))
        .unwrap();
        let map = plan.resolve(&model(), None).unwrap();
        let said: Vec<String> = map.notices().iter().map(Notice::to_string).collect();
        assert_eq!(said.len(), 4, "{said:?}");
        assert!(said[0].contains("rule 1") && said[0].contains("earlier rules"), "{said:?}");
        assert!(said[1].contains("`op:Cnov`") && said[1].contains("no node"), "{said:?}");
        assert!(said[2].contains("cpu:9") && said[3].contains("model_sha256"), "{said:?}");

        assert_eq!(plan.resolve(&model(), Some(&hash.to_uppercase())).unwrap().notices().len(), 3);
        let error = plan.resolve(&model(), Some(&"cd".repeat(32))).unwrap_err();
        assert!(error.kind() == ErrorKind::Plan && error.message().contains(&hash), "{error}");
    }

    #[test]
    fn faults_of_the_file_are_named() {
        for (json, word) in [
            ("", "EOF"),
            ("[]", "object"),
            ("[1]", "object"),
            ("7", "object"),
            ("{}", "schema"),
            (r#"{"schema":2,"new_field":1}"#, "schema 2"),
            (r#"{"schema":1,"rule":[]}"#, "unknown field `rule`"),
            (r#"{"schema":1,"rules":[{"match":"Conv","device":"cpu"}]}"#, "`op:` or `name:`"),
            (r#"{"schema":1,"rules":[{"match":"op:Conv"}]}"#, "missing field `device`"),
            (r#"{"schema":1,"rules":[{"match":"op:a\\","device":"cpu"}]}"#, "lone"),
            (r#"{"schema":1,"rules":[{"match":"op:a","device":"CPU"}]}"#, "[a-z][a-z0-9_-]*(:N)?"),
            (r#"{"schema":1,"threads":{"cpu":1,"cpu:0":2}}"#, "`cpu:0` is given twice"),
            (r#"{"schema":1,"threads":{"cpu":0}}"#, "0 kernel threads"),
            (r#"{"schema":1,"threads":{"cpu":257}}"#, "`cpu:0`: 257 kernel threads"),
            (r#"{"schema":1,"replicas":{"1":257}}"#, "at most 256"),
            (r#"{"schema":1,"in_flight":65537}"#, "at most 65536"),
            (r#"{"schema":1,"replicas":{"1":0}}"#, "0 replicas"),
            (r#"{"schema":1,"in_flight":0}"#, "at least 1"),
            (r#"{"schema":1,"in_flight":"lots"}"#, "auto"),
            (r#"{"schema":1,"in_flight":4294967296}"#, "at least 1"),
            (r#"{"schema":1,"micro_batch":0}"#, "micro_batch"),
            (r#"{"schema":1,"micro_batch":-1}"#, "-1"),
            (r#"{"schema":1,"model_sha256":"abc"}"#, "64 hexadecimal"),
            (r#"{"schema":1,"schema":1}"#, "duplicate field"),
        ] {
            let error = Plan::parse(json).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Plan, "{json}");
            assert!(error.to_string().contains(word), "{json}: {error}");
        }
    }

    fn full() -> Plan {
        Plan {
            model_sha256: Some("0f".repeat(32)),
            rules: vec![
                Rule {
                    matcher: Matcher::Op("Conv".into()),
                    device: DeviceId::cpu(1),
                    stage: None,
                    stage_id: Some("fft".into()),
                },
                Rule {
                    matcher: Matcher::exactly("a*b?c\\d"),
                    device: DeviceId::new("wgpu", 0).unwrap(),
                    stage: Some(2),
                    stage_id: None,
                },
            ],
            default_device: Some(DeviceId::cpu(0)),
            micro_batch: Some(8),
            in_flight: Some(InFlight::Auto),
            threads: BTreeMap::from([(DeviceId::cpu(0), 2)]),
            replicas: BTreeMap::from([(1, 3)]),
            links: vec![MeasuredLink {
                from: "w1".into(),
                to: "w2".into(),
                latency_us: 120,
                bytes_per_s: 1 << 27,
            }],
        }
    }

    #[test]
    fn json_and_bincode_give_the_same_plan_back() {
        let counted = Plan { in_flight: Some(InFlight::Count(5)), ..full() };
        for plan in [full(), counted, Plan::default()] {
            let json = plan.to_json().unwrap();
            assert_eq!(Plan::parse(&json).unwrap(), plan, "{json}");
            let bytes = bincode::serialize(&plan).unwrap();
            assert_eq!(bincode::deserialize::<Plan>(&bytes).unwrap(), plan);
        }
        let json = full().to_json().unwrap();
        for part in [r#""schema": 1"#, r#""in_flight": "auto""#, r#""match": "op:Conv""#] {
            assert!(json.contains(part), "{json}");
        }
        // bincode gets no schema that this version does not know either.
        let mut bytes = bincode::serialize(&full()).unwrap();
        bytes[0] = 9;
        assert!(bincode::deserialize::<Plan>(&bytes).unwrap_err().to_string().contains("schema 9"));
    }

    #[test]
    fn maps_round_trip_through_plans() {
        let g = chain(&[
            ("a*", "Relu"),
            ("a?", "Relu"),
            ("ab", "Relu"),
            (r"a\*", "Relu"),
            ("", "Relu"),
        ]);
        let two = [DeviceId::cpu(0), DeviceId::cpu(1)];
        for map in [
            DeviceMap::single(DeviceId::cpu(2)),
            DeviceMap::from_placements(&g, |id, _| DeviceId::cpu(id.index() as u32 % 2).into()),
            DeviceMap::balanced(&g, &two, 3, &|_| 1.0, &|_| 1.0).unwrap(),
        ] {
            let plan = Plan::from_map(&g, &map).unwrap();
            let again = Plan::parse(&plan.to_json().unwrap()).unwrap().resolve(&g, None).unwrap();
            assert_eq!(again, map);
            let (a, b) = (Segmentation::new(&g, &map), Segmentation::new(&g, &again));
            assert_eq!(a.unwrap().segments().len(), b.unwrap().segments().len());
        }
        let other = model();
        let map = DeviceMap::from_fn(&g, |_| DeviceId::cpu(0));
        assert_eq!(Plan::from_map(&other, &map).unwrap_err().kind(), ErrorKind::Plan);
    }

    #[test]
    fn plans_are_read_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        let g = model();
        let error = DeviceMap::from_file(&g, &path, None).unwrap_err();
        assert!(error.kind() == ErrorKind::Io && error.message().contains("plan.json"), "{error}");
        std::fs::write(&path, r#"{"schema":1,"default_device":"cpu:4"}"#).unwrap();
        let map = DeviceMap::from_file(&g, &path, None).unwrap();
        assert_eq!(map, DeviceMap::single(DeviceId::cpu(4)));
        std::fs::write(&path, b"\xff\xfe").unwrap();
        assert!(DeviceMap::from_file(&g, &path, None).is_err());
        std::fs::write(&path, "{").unwrap();
        let error = DeviceMap::from_file(&g, &path, None).unwrap_err();
        assert!(error.message().contains("plan.json"), "{error}");
    }
}

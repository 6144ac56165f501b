//! The rules of a plan file: which nodes go where.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::DeviceId;
use super::names::{Pattern, escape};
use crate::error::{Error, Result, err};
use crate::graph::Node;

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

    pub(super) fn pattern(&self) -> Result<Pattern> {
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

impl Matcher {
    pub(super) fn matches(&self, pattern: &Pattern, node: &Node) -> bool {
        match self {
            Self::Op(_) => pattern.matches(&node.qualified_op()),
            Self::Name(_) => pattern.matches(&node.name),
        }
    }
}

/// Rules, made ready so that a rule per node does not take nodes² comparisons.
pub(super) struct Rules<'a> {
    exact: HashMap<String, usize>,
    others: Vec<(usize, &'a Matcher, Pattern)>,
}

impl<'a> Rules<'a> {
    pub(super) fn new(rules: &'a [Rule]) -> Result<Self> {
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

    pub(super) fn first(&self, node: &Node) -> Option<usize> {
        let exact = self.exact.get(&node.name).copied();
        let other = self
            .others
            .iter()
            .take_while(|(i, ..)| exact.is_none_or(|e| *i < e))
            .find(|(_, matcher, pattern)| matcher.matches(pattern, node));
        other.map(|(i, ..)| *i).or(exact)
    }
}

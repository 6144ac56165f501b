//! Regions: which items an edge carries.
//!
//! The edges of a topology fall into regions. The items of the source flow in the *root* region. A
//! `flat_map` opens a region of *children* inside its own, which a `collect` (or a sink) closes; a
//! `batch` opens a region of *batches*, which an `unbatch` closes. Inside a region its items are
//! ordinary items, with matching cells of their own: joins, skips and every operator work there as
//! they do at the root.

use crate::error::BuildError;
use crate::operator::Role;
use crate::packet::Seq;
use crate::topology::{ActorSpec, Edge, InPort, OutPort, Words};

/// The number of a region.
pub(crate) type RegionId = usize;

/// The region of the items that the source numbers.
pub(crate) const ROOT: RegionId = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Root,
    /// The children that fan-out `actor` makes of the items of `parent`.
    Children {
        parent: RegionId,
        actor: usize,
    },
    /// The batches that `actor` makes of the items of `parent`.
    Batches {
        parent: RegionId,
        actor: usize,
    },
}

/// The regions of a topology.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    pub(crate) kinds: Vec<Kind>,
    /// For each actor, the region of what it takes and of what it gives.
    pub(crate) takes: Vec<RegionId>,
    pub(crate) gives: Vec<RegionId>,
    /// For each sink, the region of what it takes.
    pub(crate) sinks: Vec<RegionId>,
}

impl Regions {
    /// The regions from `region` outwards, without the root.
    pub(crate) fn outwards(&self, region: RegionId) -> impl Iterator<Item = RegionId> {
        let mut next = region;
        std::iter::from_fn(move || {
            let here = next;
            next = self.parent(here)?;
            Some(here)
        })
    }

    pub(crate) fn parent(&self, region: RegionId) -> Option<RegionId> {
        match self.kinds[region] {
            Kind::Root => None,
            Kind::Children { parent, .. } | Kind::Batches { parent, .. } => Some(parent),
        }
    }

    /// The most actors that can lie one behind the other inside region `region`, each as often as it
    /// has replicas.
    pub(crate) fn depth<P>(
        &self,
        region: RegionId,
        actors: &[ActorSpec<P>],
        edges: &[Edge],
    ) -> usize {
        let inside = |actor: usize| self.outwards(self.takes[actor]).any(|here| here == region);
        let mut longest = vec![0; actors.len()];
        for actor in by_height(actors).rev().filter(|&actor| inside(actor)) {
            let next = edges.iter().filter_map(|edge| match (edge.from, edge.to) {
                (OutPort::Actor { actor: from, .. }, InPort::Actor { actor: to, .. })
                    if from == actor && inside(to) =>
                {
                    Some(longest[to])
                }
                _ => None,
            });
            longest[actor] = next.max().unwrap_or(0) + actors[actor].replicas;
        }
        longest.into_iter().max().unwrap_or(0)
    }
}

/// The actors, each after those that it takes from.
fn by_height<P>(actors: &[ActorSpec<P>]) -> impl DoubleEndedIterator<Item = usize> {
    let mut order: Vec<usize> = (0..actors.len()).collect();
    order.sort_by_key(|&actor| std::cmp::Reverse(actors[actor].height));
    order.into_iter()
}

/// Gives every edge its region, or says what does not fit. The heights of the actors are known.
pub(crate) fn infer<P>(
    actors: &[ActorSpec<P>],
    edges: &[Edge],
    words: &Words<'_, P>,
) -> Result<Regions, BuildError> {
    let mut regions = Regions {
        kinds: vec![Kind::Root],
        takes: vec![ROOT; actors.len()],
        gives: vec![ROOT; actors.len()],
        sinks: vec![ROOT; words.sinks.len()],
    };
    let mut fed = vec![Vec::new(); actors.len()];
    for edge in edges {
        if let InPort::Actor { actor, port } = edge.to {
            fed[actor].push((port, edge.from));
        }
    }
    for actor in by_height(actors) {
        ports(&actors[actor])?;
        let fed = &mut fed[actor];
        fed.sort_unstable_by_key(|(port, _)| *port);
        let mut first: Option<(usize, RegionId)> = None;
        for &(port, from) in fed.iter() {
            let region = regions.of(from);
            match first {
                None => first = Some((port, region)),
                Some((_, known)) if known == region => {}
                Some((known_port, known)) => {
                    let carries = |port: usize, region| {
                        format!("input {port} carries {}", regions.items(region, actors))
                    };
                    return Err(BuildError::MixedRegions {
                        actor: actors[actor].name.to_string(),
                        first: carries(known_port, known),
                        second: carries(port, region),
                    });
                }
            }
        }
        let takes = first.map_or(ROOT, |(_, region)| region);
        regions.takes[actor] = takes;
        regions.gives[actor] = regions.after(actor, takes, actors)?;
    }
    for edge in edges {
        if let InPort::Sink(sink) = edge.to {
            regions.sinks[sink] = regions.of(edge.from);
        }
    }
    regions.check_ends(actors, edges, words)?;
    Ok(regions)
}

/// For each actor, whether somebody takes from it.
pub(crate) fn leading_on(actors: usize, edges: &[Edge]) -> Vec<bool> {
    let mut leads_on = vec![false; actors];
    for edge in edges {
        if let OutPort::Actor { actor, .. } = edge.from {
            leads_on[actor] = true;
        }
    }
    leads_on
}

fn ports<P>(spec: &ActorSpec<P>) -> Result<(), BuildError> {
    let wanted = match spec.role {
        Role::Collect | Role::Batch(_) if spec.inputs != 1 => "one input",
        Role::Merge if spec.outputs != 1 => "any number of inputs and one output",
        _ => return Ok(()),
    };
    let actor = spec.name.to_string();
    Err(BuildError::Ports { actor, operator: spec.role.words(), wanted })
}

impl Regions {
    fn of(&self, port: OutPort) -> RegionId {
        match port {
            OutPort::Source(_) => ROOT,
            OutPort::Actor { actor, .. } => self.gives[actor],
        }
    }

    /// The items of a region, in words.
    fn items<P>(&self, region: RegionId, actors: &[ActorSpec<P>]) -> String {
        match self.kinds[region] {
            Kind::Root => "items of the source".into(),
            Kind::Children { actor, .. } => {
                format!("the children of actor `{}`", actors[actor].name)
            }
            Kind::Batches { actor, .. } => format!("the batches of actor `{}`", actors[actor].name),
        }
    }

    /// The region of what an actor gives that takes items of `takes`.
    fn after<P>(
        &mut self,
        actor: usize,
        takes: RegionId,
        actors: &[ActorSpec<P>],
    ) -> Result<RegionId, BuildError> {
        let spec = &actors[actor];
        let kind = match (&spec.role, self.kinds[takes]) {
            (Role::Plain | Role::Merge, _) => return Ok(takes),
            (Role::Collect, Kind::Children { parent, .. })
            | (Role::Unbatch, Kind::Batches { parent, .. }) => return Ok(parent),
            (Role::Collect | Role::Unbatch, found) => {
                let advice = match (&spec.role, found) {
                    (Role::Collect, Kind::Batches { .. }) => "put an `unbatch` before it",
                    (Role::Collect, _) => "put a `flat_map` before it, or leave it out",
                    (_, Kind::Children { .. }) => "put the `batch` behind the `flat_map`",
                    _ => "put a `batch` before it, or leave it out",
                };
                return Err(BuildError::ClosesNothing {
                    actor: spec.name.to_string(),
                    operator: spec.role.words(),
                    found: self.items(takes, actors),
                    advice: advice.into(),
                });
            }
            (Role::FlatMap, _) => {
                let nested =
                    |region: &RegionId| matches!(self.kinds[*region], Kind::Children { .. });
                if self.outwards(takes).filter(nested).count() >= Seq::NESTING {
                    let actor = spec.name.to_string();
                    return Err(BuildError::TooDeep { actor, limit: Seq::NESTING });
                }
                Kind::Children { parent: takes, actor }
            }
            (Role::Batch(_), _) => Kind::Batches { parent: takes, actor },
        };
        self.kinds.push(kind);
        Ok(self.kinds.len() - 1)
    }

    /// Checks what the regions end at.
    fn check_ends<P>(
        &self,
        actors: &[ActorSpec<P>],
        edges: &[Edge],
        words: &Words<'_, P>,
    ) -> Result<(), BuildError> {
        for (sink, &region) in self.sinks.iter().enumerate() {
            for here in self.outwards(region) {
                match self.kinds[here] {
                    Kind::Batches { actor, .. } => {
                        let batch = actors[actor].name.to_string();
                        let end = words.in_port(InPort::Sink(sink));
                        return Err(BuildError::OpenBatch { batch, end });
                    }
                    Kind::Children { actor, .. } if self.sinks.len() > 1 => {
                        let fan_out = actors[actor].name.to_string();
                        let sink = words.in_port(InPort::Sink(sink));
                        return Err(BuildError::OpenChildren { fan_out, sink });
                    }
                    Kind::Children { .. } | Kind::Root => {}
                }
            }
        }
        let leads_on = leading_on(actors.len(), edges);
        for (actor, spec) in actors.iter().enumerate() {
            let Role::Batch(batching) = &spec.role else {
                continue;
            };
            let batch = spec.name.to_string();
            if !leads_on[actor] {
                return Err(BuildError::OpenBatch { batch, end: "nobody".into() });
            }
            if !batching.retry {
                continue;
            }
            let inside =
                |other: usize| self.outwards(self.takes[other]).any(|r| r == self.gives[actor]);
            let closing = (0..actors.len()).filter(|&other| {
                self.takes[other] == self.gives[actor]
                    && matches!(actors[other].role, Role::Unbatch)
            });
            let ends = (0..actors.len()).filter(|&other| inside(other) && !leads_on[other]);
            let closing: Vec<_> = closing.collect();
            let stray = ends.into_iter().any(|end| !closing.contains(&end));
            if closing.len() != 1 || stray {
                return Err(BuildError::RetryEnds { batch });
            }
        }
        Ok(())
    }
}

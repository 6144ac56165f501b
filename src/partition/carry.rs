//! A placement of a graph, carried over to what the passes made of that graph.

use std::collections::{HashMap, HashSet};

use super::{DeviceMap, Placement};
use crate::error::{Result, bail};
use crate::graph::Graph;

impl DeviceMap {
    /// The map for `after`, which the passes made of `before`: nodes keep their places by name;
    /// the nodes of an inlined subgraph, whose names begin with the name of the node that they
    /// were in, take that node's place.
    ///
    /// # Errors
    /// If the map is not of `before`, or a node of `after` comes from no node of it.
    pub fn carry_over(&self, before: &Graph, after: &Graph) -> Result<Self> {
        self.check(before)?;
        if self.everywhere().is_some() {
            return Ok(self.clone());
        }
        let mut places: HashMap<&str, &Placement> = HashMap::new();
        for (id, node) in before.node_ids() {
            places.insert(&node.name, self.placement(id)?);
        }
        let mut found = Vec::with_capacity(after.nodes().len());
        for node in after.nodes() {
            let inside = node.name.match_indices('/').rev().map(|(i, _)| &node.name[..i]);
            let place =
                std::iter::once(node.name.as_str()).chain(inside).find_map(|n| places.get(n));
            match place {
                Some(place) => found.push((*place).clone()),
                None => bail!(Plan, "node `{}` ({}) has no place", node.name, node.op),
            }
        }
        let mut found = found.into_iter();
        let first = self.placement(crate::graph::NodeId(0)).ok().cloned();
        let mut map = Self::from_placements(after, |_, _| {
            found.next().or_else(|| first.clone()).unwrap_or_else(|| super::DeviceId::cpu(0).into())
        });
        for notice in self.notices() {
            map.push_notice(notice.clone());
        }
        let pinned: HashSet<&str> = before
            .node_ids()
            .filter(|(id, _)| self.is_pinned(*id))
            .map(|(_, node)| node.name.as_str())
            .collect();
        for (id, _) in after.node_ids().filter(|(_, node)| pinned.contains(node.name.as_str())) {
            map.pin(id);
        }
        Ok(map)
    }
}

//! Grouping of nodes into segments: as few groups as greedy merging gives, never a cycle of groups.
//!
//! Finding the fewest groups is hard in general, so several greedy orders are tried and the best
//! result is taken. Each of them keeps the *quotient* (the graph of the groups) acyclic: a node
//! may join a group unless the group also reaches that node through another group.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// A set of small numbers.
#[derive(Clone, Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn insert(&mut self, i: usize) {
        let word = i / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (i % 64);
    }

    fn remove(&mut self, i: usize) {
        if let Some(w) = self.0.get_mut(i / 64) {
            *w &= !(1 << (i % 64));
        }
    }

    fn contains(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    /// Adds all of `other`; says whether that changed anything.
    fn extend(&mut self, other: &Self) -> bool {
        if other.0.len() > self.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut new = 0;
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            new |= b & !*a;
            *a |= b;
        }
        new != 0
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            (0..64).filter(move |b| bits >> b & 1 == 1).map(move |b| word * 64 + b)
        })
    }

    fn word(&self, i: usize) -> u64 {
        self.0.get(i).copied().unwrap_or(0)
    }

    /// The members that `not` lacks, lowest or highest one first.
    fn pick_without(&self, not: &Self, highest: bool) -> Option<usize> {
        let free = |i: usize| self.0[i] & !not.word(i);
        if highest {
            let i = (0..self.0.len()).rev().find(|i| free(*i) != 0)?;
            Some(i * 64 + 63 - free(i).leading_zeros() as usize)
        } else {
            let i = (0..self.0.len()).find(|i| free(*i) != 0)?;
            Some(i * 64 + free(i).trailing_zeros() as usize)
        }
    }
}

/// What is to be grouped: nodes in a topological order.
#[derive(Debug)]
pub(super) struct Nodes {
    /// Nodes with different keys never share a group.
    pub(super) keys: Vec<usize>,
    /// What each node depends on: lower numbers than its own.
    pub(super) sources: Vec<Vec<usize>>,
}

/// Beyond this many bit operations, only the linear-time order is tried.
const WORK_LIMIT: u128 = 4_000_000_000;

impl Nodes {
    /// The group of each node; groups are numbered in a topological order of the quotient.
    pub(super) fn group(&self) -> Vec<usize> {
        let by_level = self.by_level();
        let groups = by_level.iter().max().map_or(0, |m| m + 1) as u128;
        let mut tries = vec![by_level];
        if self.keys.len() as u128 * groups * groups / 64 <= WORK_LIMIT {
            tries.push(self.by_joining(true));
            tries.push(self.by_joining(false));
        }
        tries
            .into_iter()
            .map(|groups| self.merged(&groups))
            .min_by_key(|groups| (groups.iter().max().copied(), self.crossings(groups)))
            .unwrap_or_default()
    }

    /// Groups by key and level, the level being the most changes of key on any path to the node:
    /// edges between groups go to a higher level, so they form no cycle.
    fn by_level(&self) -> Vec<usize> {
        let mut levels: Vec<usize> = Vec::with_capacity(self.keys.len());
        let mut numbers = HashMap::new();
        let mut groups = Vec::with_capacity(self.keys.len());
        for (key, sources) in self.keys.iter().zip(&self.sources) {
            let level = sources
                .iter()
                .map(|s| levels[*s] + usize::from(self.keys[*s] != *key))
                .max()
                .unwrap_or(0);
            levels.push(level);
            let next = numbers.len();
            groups.push(*numbers.entry((*key, level)).or_insert(next));
        }
        groups
    }

    /// Node by node, each joins the latest or earliest group that it may join.
    fn by_joining(&self, latest: bool) -> Vec<usize> {
        let mut groups: Vec<usize> = Vec::with_capacity(self.keys.len());
        // Per group, all groups that it depends on, through others too.
        let mut before: Vec<Bits> = Vec::new();
        let mut of_key: HashMap<usize, Bits> = HashMap::new();
        for (key, sources) in self.keys.iter().zip(&self.sources) {
            let (mut direct, mut through) = (Bits::default(), Bits::default());
            for s in sources {
                direct.insert(groups[*s]);
            }
            for d in direct.iter() {
                through.extend(&before[d]);
            }
            let same = of_key.entry(*key).or_default();
            let group = match same.pick_without(&through, latest) {
                Some(group) => group,
                None => {
                    before.push(Bits::default());
                    same.insert(before.len() - 1);
                    before.len() - 1
                }
            };
            groups.push(group);
            through.extend(&direct);
            through.remove(group);
            if before[group].extend(&through) {
                let news = before[group].clone();
                for later in &mut before {
                    if later.contains(group) {
                        later.extend(&news);
                    }
                }
            }
        }
        groups
    }

    /// Merges pairs of groups until no two can be merged, and numbers what remains.
    fn merged(&self, groups: &[usize]) -> Vec<usize> {
        let ordered = self.numbered(groups);
        let count = ordered.iter().max().map_or(0, |m| m + 1);
        let mut keys = vec![0; count];
        let mut direct = vec![Bits::default(); count];
        for (node, group) in ordered.iter().enumerate() {
            keys[*group] = self.keys[node];
            for s in &self.sources[node] {
                if ordered[*s] != *group {
                    direct[*group].insert(ordered[*s]);
                }
            }
        }
        let mut before: Vec<Bits> = Vec::with_capacity(count);
        let mut same: HashMap<usize, Bits> = HashMap::new();
        for group in 0..count {
            let mut all = direct[group].clone();
            for d in direct[group].iter() {
                all.extend(&before[d]);
            }
            before.push(all);
            same.entry(keys[group]).or_default().insert(group);
        }
        let mut into: Vec<usize> = (0..count).collect();
        let mut quotient = Quotient { direct, before, alive: vec![true; count] };
        loop {
            let mut changed = false;
            for group in 0..count {
                while quotient.alive[group] {
                    let of_key = &same[&keys[group]];
                    let Some(other) = quotient.partner(group, of_key) else { break };
                    quotient.merge(other, group);
                    into[group] = other;
                    if let Some(of_key) = same.get_mut(&keys[group]) {
                        of_key.remove(group);
                    }
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        let merged: Vec<usize> = ordered
            .into_iter()
            .map(|mut group| {
                while into[group] != group {
                    group = into[group];
                }
                group
            })
            .collect();
        self.numbered(&merged)
    }

    /// The same groups, numbered in a topological order: of those that are ready, the one with
    /// the first node comes first.
    fn numbered(&self, groups: &[usize]) -> Vec<usize> {
        let count = groups.iter().max().map_or(0, |m| m + 1);
        let mut first = vec![usize::MAX; count];
        let mut sources: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (node, group) in groups.iter().enumerate() {
            first[*group] = first[*group].min(node);
            sources[*group].extend(
                self.sources[node].iter().map(|s| groups[*s]).filter(|source| source != group),
            );
        }
        let mut missing = vec![0; count];
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (group, sources) in sources.iter_mut().enumerate() {
            sources.sort_unstable();
            sources.dedup();
            missing[group] = sources.len();
            for s in sources {
                readers[*s].push(group);
            }
        }
        let mut ready: BinaryHeap<Reverse<(usize, usize)>> = (0..count)
            .filter(|g| first[*g] != usize::MAX && missing[*g] == 0)
            .map(|g| Reverse((first[g], g)))
            .collect();
        let mut numbers = vec![0; count];
        let mut next = 0;
        while let Some(Reverse((_, group))) = ready.pop() {
            numbers[group] = next;
            next += 1;
            for r in &readers[group] {
                missing[*r] -= 1;
                if missing[*r] == 0 {
                    ready.push(Reverse((first[*r], *r)));
                }
            }
        }
        groups.iter().map(|g| numbers[*g]).collect()
    }

    /// How many pairs of a node and a foreign group that reads it there are.
    fn crossings(&self, groups: &[usize]) -> usize {
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for (node, group) in groups.iter().enumerate() {
            let foreign = self.sources[node].iter().filter(|s| groups[**s] != *group);
            pairs.extend(foreign.map(|s| (*s, *group)));
        }
        pairs.sort_unstable();
        pairs.dedup();
        pairs.len()
    }
}

/// The graph of groups, while they are merged.
struct Quotient {
    direct: Vec<Bits>,
    before: Vec<Bits>,
    alive: Vec<bool>,
}

impl Quotient {
    /// A group of the same key with which `group` may be merged: one that it reads and reaches in
    /// no other way, else the latest one that neither leads to it nor depends on it.
    fn partner(&self, group: usize, same: &Bits) -> Option<usize> {
        let mut through = Bits::default();
        for d in self.direct[group].iter() {
            through.extend(&self.before[d]);
        }
        let read = self.direct[group].iter().rev();
        if let Some(d) = read.filter(|d| same.contains(*d)).find(|d| !through.contains(*d)) {
            return Some(d);
        }
        let (all, before) = (&same.0, &self.before[group]);
        for word in (0..all.len()).rev() {
            let mut free = all[word] & !before.word(word);
            while free != 0 {
                let bit = 63 - free.leading_zeros() as usize;
                free &= !(1 << bit);
                let other = word * 64 + bit;
                if other != group && !self.before[other].contains(group) {
                    return Some(other);
                }
            }
        }
        None
    }

    /// Merges `gone` into `kept`.
    fn merge(&mut self, kept: usize, gone: usize) {
        for sets in [&mut self.direct, &mut self.before] {
            let moved = std::mem::take(&mut sets[gone]);
            sets[kept].extend(&moved);
            sets[kept].remove(kept);
            sets[kept].remove(gone);
        }
        self.alive[gone] = false;
        let news = self.before[kept].clone();
        for group in 0..self.alive.len() {
            if !self.alive[group] || group == kept {
                continue;
            }
            if self.direct[group].contains(gone) {
                self.direct[group].remove(gone);
                self.direct[group].insert(kept);
            }
            if self.before[group].contains(gone) || self.before[group].contains(kept) {
                self.before[group].remove(gone);
                self.before[group].insert(kept);
                self.before[group].extend(&news);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(keys: &[usize], sources: &[&[usize]]) -> Vec<usize> {
        Nodes { keys: keys.to_vec(), sources: sources.iter().map(|s| s.to_vec()).collect() }.group()
    }

    #[test]
    fn interleaved_chains_are_two_groups() {
        let keys: Vec<usize> = (0..32).map(|i| i % 2).collect();
        let sources: Vec<Vec<usize>> =
            (0..32).map(|i| if i < 2 { vec![] } else { vec![i - 2] }).collect();
        assert_eq!(Nodes { keys: keys.clone(), sources }.group(), keys);
    }

    #[test]
    fn a_detour_through_another_key_splits() {
        // 0 → 1 → 2 with 0 → 2: joining 0 and 2 would make a cycle with 1.
        assert_eq!(group(&[0, 1, 0], &[&[], &[0], &[0, 1]]), [0, 1, 2]);
        // A node beside them joins one of the two.
        assert_eq!(group(&[0, 1, 0, 0], &[&[], &[0], &[0, 1], &[]]).iter().max(), Some(&2));
    }

    #[test]
    fn levels_alone_would_be_too_many() {
        // A→B→A and, apart from it, B→A: the second B joins the first.
        let got = group(&[0, 1, 0, 1, 0], &[&[], &[0], &[1], &[], &[3]]);
        assert_eq!(got.iter().max(), Some(&2), "{got:?}");
    }

    #[test]
    fn nothing_is_nothing() {
        assert!(group(&[], &[]).is_empty());
    }
}

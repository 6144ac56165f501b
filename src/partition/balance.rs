//! Cutting a sequence of nodes into contiguous stages of about equal cost.

use super::LinkFigures;

/// How much more than the best possible the bottleneck may cost, if that makes the cuts cheaper.
const SLACK: f64 = 1.05;

/// The bytes that memory is taken to move in a second where links are compared with none.
const LOCAL_BYTES_PER_S: f64 = 15e9;

/// What crosses a cut, and what has to carry it.
struct Crossings<'a> {
    /// Bytes across a cut in front of each node.
    bytes: &'a [f64],
    /// Between each stage and the next.
    links: &'a [Option<LinkFigures>],
    /// Whether there is any of them.
    carried: bool,
}

impl Crossings<'_> {
    /// The seconds that the link of this cut is occupied by an item.
    fn occupied(&self, cut: usize, node: usize) -> f64 {
        self.links[cut].map_or(0.0, |link| link.occupied_s(self.bytes[node]))
    }

    /// What a cut in front of this node costs: bytes, or the seconds that carrying them takes.
    fn price(&self, cut: usize, node: usize) -> f64 {
        match self.links[cut] {
            Some(link) => link.latency().as_secs_f64() + link.occupied_s(self.bytes[node]),
            None if self.carried => self.bytes[node] / LOCAL_BYTES_PER_S,
            None => self.bytes[node],
        }
    }
}

/// Where to cut `costs.len()` nodes into contiguous, non-empty stages, one more than there are
/// `links` between them: the index of the first node of each stage but the first. `crossing[i]` is the
/// number of bytes that cross a cut in front of node `i`.
///
/// The costliest stage, or the link that is occupied longest if that takes longer, is as cheap as it
/// can be, or up to 5 % dearer where that moves fewer bytes, or takes less time to move them. Costs and
/// bytes are finite and not negative, and there are no more stages than nodes. Where there is a link,
/// costs are in seconds.
pub(super) fn cuts(costs: &[f64], crossing: &[f64], links: &[Option<LinkFigures>]) -> Vec<usize> {
    let mut sums = Vec::with_capacity(costs.len() + 1);
    sums.push(0.0);
    for c in costs {
        sums.push(sums[sums.len() - 1] + c);
    }
    let stages = links.len() + 1;
    let carried = links.iter().any(Option::is_some);
    let crossings = Crossings { bytes: crossing, links, carried };
    let mut bottleneck = least_bottleneck(&sums, stages);
    if carried && cheapest(&sums, &crossings, bottleneck).is_none() {
        bottleneck = least_occupied(&sums, &crossings, bottleneck);
    }
    let exact = cheapest(&sums, &crossings, bottleneck);
    let slack = cheapest(&sums, &crossings, bottleneck * SLACK);
    match (exact, slack) {
        // Imbalance must buy something.
        (Some(exact), Some(slack)) if slack.0 < exact.0 => slack.1,
        (Some((_, cuts)), _) | (None, Some((_, cuts))) => cuts,
        (None, None) => (1..stages).collect(),
    }
}

/// The least bottleneck where links are slower than `too_little`: no cut keeps within that.
fn least_occupied(sums: &[f64], crossings: &Crossings<'_>, too_little: f64) -> f64 {
    /// Halvings: enough for a thousandth of what lies between a nanosecond and an hour.
    const STEPS: usize = 52;
    let links = 0..crossings.links.len();
    let longest = links
        .flat_map(|cut| (1..crossings.bytes.len()).map(move |node| (cut, node)))
        .map(|(cut, node)| crossings.occupied(cut, node))
        .fold(0.0, f64::max);
    let (mut low, mut high) = (too_little, longest.max(too_little));
    for _ in 0..STEPS {
        if high - low <= high * 1e-9 {
            break;
        }
        let middle = low + (high - low) / 2.0;
        if cheapest(sums, crossings, middle).is_some() {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// The cost of the costliest stage of the best cut.
fn least_bottleneck(sums: &[f64], stages: usize) -> f64 {
    let nodes = sums.len() - 1;
    // best[j]: the least bottleneck of the first j nodes in as many stages as rounds passed.
    let mut best = sums.to_vec();
    for stage in 2..=stages {
        let mut next = vec![f64::INFINITY; nodes + 1];
        // Over i, best[i] grows and the cost of i..j shrinks: the best i is where they meet, and
        // it only moves up as j does.
        let mut i = stage - 1;
        for j in stage..=nodes {
            let bottleneck = |i: usize| best[i].max(sums[j] - sums[i]);
            while i + 1 < j && bottleneck(i + 1) <= bottleneck(i) {
                i += 1;
            }
            next[j] = bottleneck(i);
        }
        best = next;
    }
    best[nodes]
}

/// The cut with the lowest price among those without a stage or a link above `limit`, with the price.
fn cheapest(sums: &[f64], crossings: &Crossings<'_>, limit: f64) -> Option<(f64, Vec<usize>)> {
    let stages = crossings.links.len() + 1;
    let nodes = sums.len() - 1;
    // Sums of floats differ in the last bits by the way they are formed.
    let limit = limit + sums[nodes] * 1e-12;
    let mut best: Vec<f64> =
        (0..=nodes).map(|j| if j > 0 && sums[j] <= limit { 0.0 } else { f64::INFINITY }).collect();
    let mut chosen: Vec<Vec<usize>> = Vec::with_capacity(stages);
    for stage in 2..=stages {
        let mut next = vec![f64::INFINITY; nodes + 1];
        let mut from = vec![0; nodes + 1];
        // Candidates for the cut, cheapest first; those too far back for the limit drop out.
        let mut window: std::collections::VecDeque<usize> = std::collections::VecDeque::new();
        let cut = stage - 2;
        let price = |i: usize| best[i] + crossings.price(cut, i);
        for j in stage..=nodes {
            let new = j - 1;
            // A cut that its link does not carry in time is none.
            let carried = crossings.occupied(cut, new) <= limit;
            while carried && window.back().is_some_and(|b| price(*b) >= price(new)) {
                window.pop_back();
            }
            if carried {
                window.push_back(new);
            }
            while window.front().is_some_and(|f| sums[j] - sums[*f] > limit) {
                window.pop_front();
            }
            if let Some(i) = window.front() {
                next[j] = price(*i);
                from[j] = *i;
            }
        }
        best = next;
        chosen.push(from);
    }
    if !best[nodes].is_finite() {
        return None;
    }
    let mut at = nodes;
    let mut cuts: Vec<usize> = chosen
        .iter()
        .rev()
        .map(|from| {
            at = from[at];
            at
        })
        .collect();
    cuts.reverse();
    Some((best[nodes], cuts))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use proptest::prelude::*;

    fn bottleneck(costs: &[f64], cuts: &[usize]) -> f64 {
        let mut ends = cuts.to_vec();
        ends.push(costs.len());
        let mut start = 0;
        let mut worst = 0.0_f64;
        for end in ends {
            assert!(end > start, "{cuts:?} has an empty stage");
            worst = worst.max(costs[start..end].iter().sum());
            start = end;
        }
        worst
    }

    /// All cuts, by trying them.
    fn every(nodes: usize, stages: usize) -> Vec<Vec<usize>> {
        fn go(
            from: usize,
            nodes: usize,
            left: usize,
            at: &mut Vec<usize>,
            out: &mut Vec<Vec<usize>>,
        ) {
            if left == 0 {
                out.push(at.clone());
                return;
            }
            for c in from..nodes {
                at.push(c);
                go(c + 1, nodes, left - 1, at, out);
                at.pop();
            }
        }
        let mut out = Vec::new();
        go(1, nodes, stages - 1, &mut Vec::new(), &mut out);
        out
    }

    fn cuts(costs: &[f64], crossing: &[f64], stages: usize) -> Vec<usize> {
        super::cuts(costs, crossing, &vec![None; stages - 1])
    }

    fn link(latency_ms: u64, bytes_per_s: u64) -> Option<LinkFigures> {
        Some(LinkFigures::new(Duration::from_millis(latency_ms), bytes_per_s))
    }

    #[test]
    fn a_slow_link_moves_the_cut_to_where_little_crosses_and_a_fast_one_does_not() {
        // Ten nodes of a millisecond; a megabyte crosses, but in front of the eighth ten kilobytes.
        let (costs, mut crossing) = ([1e-3; 10], [1e6; 10]);
        crossing[7] = 1e4;
        assert_eq!(super::cuts(&costs, &crossing, &[link(1, 1 << 30)]), [5]);
        assert_eq!(super::cuts(&costs, &crossing, &[link(1, 10_000_000)]), [7]);
        // It carries a megabyte in just the time of the half: then the half is best.
        assert_eq!(super::cuts(&costs, &crossing, &[link(1, 200_000_001)]), [5]);
        // Latency passes while others are computed: it does not unbalance stages.
        assert_eq!(super::cuts(&costs, &crossing, &[link(500, 1 << 30)]), [5]);
        // Of three stages the first cut is in one memory, the second over a slow link.
        let links = [None, link(1, 10_000_000)];
        assert_eq!(super::cuts(&costs, &crossing, &links)[1], 7);
        // Where nothing is small, the least bad is taken.
        assert_eq!(super::cuts(&[1e-3; 4], &[9e6, 9e6, 7e6, 8e6], &[link(0, 1_000_000)]), [2]);
    }

    #[test]
    fn equal_costs_are_cut_evenly() {
        assert_eq!(cuts(&[1.0; 12], &[0.0; 12], 4), [3, 6, 9]);
        assert_eq!(cuts(&[1.0; 3], &[0.0; 3], 1), Vec::<usize>::new());
        assert_eq!(cuts(&[0.0; 3], &[9.0; 3], 3), [1, 2]);
    }

    #[test]
    fn bytes_decide_within_the_slack() {
        let mut crossing = [100.0; 40];
        crossing[21] = 1.0;
        // 21 : 19 is 5 % off the even cut and moves a hundredth of the bytes.
        assert_eq!(cuts(&[1.0; 40], &crossing, 2), [21]);
        crossing[21] = 100.0;
        crossing[24] = 1.0;
        assert_eq!(cuts(&[1.0; 40], &crossing, 2), [20]);
    }

    proptest! {
        #[test]
        fn no_cut_is_better(
            nodes in prop::collection::vec((0u32..20, 0u32..5), 1..9),
            stages in 1usize..5,
        ) {
            let stages = stages.min(nodes.len());
            let costs: Vec<f64> = nodes.iter().map(|n| f64::from(n.0)).collect();
            let crossing: Vec<f64> = nodes.iter().map(|n| f64::from(n.1)).collect();
            let bytes = |cuts: &[usize]| cuts.iter().map(|c| crossing[*c]).sum::<f64>();
            let got = cuts(&costs, &crossing, stages);
            prop_assert_eq!(got.len(), stages - 1);
            let all = every(nodes.len(), stages);
            let best = all.iter().map(|c| bottleneck(&costs, c)).fold(f64::INFINITY, f64::min);
            let limit = best * SLACK + 1e-9;
            prop_assert!(bottleneck(&costs, &got) <= limit);
            let fewest = all
                .iter()
                .filter(|c| bottleneck(&costs, c) <= limit)
                .map(|c| bytes(c))
                .fold(f64::INFINITY, f64::min);
            prop_assert_eq!(bytes(&got), fewest);
        }

        #[test]
        fn no_cut_over_links_is_better(
            nodes in prop::collection::vec((0u32..20, 0u32..50), 2..9),
            rates in prop::collection::vec(prop::option::of(1u64..40), 1..4),
        ) {
            let links: Vec<Option<LinkFigures>> =
                rates.iter().take(nodes.len() - 1).map(|r| r.and_then(|r| link(300, r))).collect();
            let stages = links.len() + 1;
            let costs: Vec<f64> = nodes.iter().map(|n| f64::from(n.0)).collect();
            let crossing: Vec<f64> = nodes.iter().map(|n| f64::from(n.1)).collect();
            let carried = links.iter().any(Option::is_some);
            let crossings = Crossings { bytes: &crossing, links: &links, carried };
            let slowest = |c: &[usize]| {
                let at = c.iter().enumerate().map(|(cut, node)| crossings.occupied(cut, *node));
                at.fold(bottleneck(&costs, c), f64::max)
            };
            let price = |c: &[usize]| -> f64 {
                c.iter().enumerate().map(|(cut, node)| crossings.price(cut, *node)).sum()
            };
            let got = super::cuts(&costs, &crossing, &links);
            prop_assert_eq!(got.len(), stages - 1);
            let all = every(nodes.len(), stages);
            let best = all.iter().map(|c| slowest(c)).fold(f64::INFINITY, f64::min);
            let limit = best * SLACK * (1.0 + 1e-6) + 1e-9;
            prop_assert!(slowest(&got) <= limit, "{} {best} {got:?}", slowest(&got));
            let cheapest = all
                .iter()
                .filter(|c| slowest(c) <= best * SLACK)
                .map(|c| price(c))
                .fold(f64::INFINITY, f64::min);
            prop_assert!(price(&got) <= cheapest * (1.0 + 1e-9) + 1e-9);
        }
    }
}

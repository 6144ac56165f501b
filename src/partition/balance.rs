//! Cutting a sequence of nodes into contiguous stages of about equal cost.

/// How much more than the best possible the costliest stage may cost, if that moves fewer bytes.
const SLACK: f64 = 1.05;

/// Where to cut `costs.len()` nodes into `stages` contiguous, non-empty stages: the index of the
/// first node of each stage but the first. `crossing[i]` is the number of bytes that cross a cut
/// in front of node `i`.
///
/// The costliest stage is as cheap as it can be, or up to 5 % dearer where that moves fewer bytes.
/// Costs and bytes are finite and not negative, and `1 <= stages <= costs.len()`.
pub(super) fn cuts(costs: &[f64], crossing: &[f64], stages: usize) -> Vec<usize> {
    let mut sums = Vec::with_capacity(costs.len() + 1);
    sums.push(0.0);
    for c in costs {
        sums.push(sums[sums.len() - 1] + c);
    }
    let bottleneck = least_bottleneck(&sums, stages);
    let exact = fewest_bytes(&sums, crossing, stages, bottleneck);
    let slack = fewest_bytes(&sums, crossing, stages, bottleneck * SLACK);
    match (exact, slack) {
        // Imbalance must buy something.
        (Some(exact), Some(slack)) if slack.0 < exact.0 => slack.1,
        (Some((_, cuts)), _) | (None, Some((_, cuts))) => cuts,
        (None, None) => (1..stages).collect(),
    }
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

/// The cut that moves the fewest bytes among those without a stage above `limit`, with the bytes.
fn fewest_bytes(
    sums: &[f64],
    crossing: &[f64],
    stages: usize,
    limit: f64,
) -> Option<(f64, Vec<usize>)> {
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
        let price = |i: usize| best[i] + crossing[i];
        for j in stage..=nodes {
            let new = j - 1;
            while window.back().is_some_and(|b| price(*b) >= price(new)) {
                window.pop_back();
            }
            window.push_back(new);
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
    }
}

//! Which buffers of a run lie in the same memory.

/// A buffer of a run: its size, and between which two events of the run it was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    /// Its size, in lines of memory.
    pub(super) lines: usize,
    pub(super) from: usize,
    /// When it was let go; `None` if it outlived the run.
    pub(super) until: Option<usize>,
}

/// Memory for every buffer of a run, in the order in which they are asked for: blocks that those
/// take turns in which are never held at the same time.
///
/// Blocks, not ranges of one piece of memory, so that each buffer owns what it writes to. Found
/// greedily, the largest buffer first, which wastes little.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Lines that each buffer takes, and its block; none for what outlives the run.
    places: Vec<(usize, Option<usize>)>,
    /// Lines of each block, the largest first.
    blocks: Vec<usize>,
}

impl Layout {
    pub(super) fn new(lifetimes: &[Lifetime]) -> Self {
        let mut order: Vec<(usize, Lifetime, usize)> = lifetimes
            .iter()
            .enumerate()
            .filter_map(|(i, l)| l.until.map(|until| (i, *l, until)))
            .filter(|(_, l, _)| l.lines > 0)
            .collect();
        order.sort_by_key(|(i, l, _)| (std::cmp::Reverse(l.lines), *i));
        let mut places: Vec<_> = lifetimes.iter().map(|l| (l.lines, None)).collect();
        let mut blocks: Vec<(usize, Vec<(usize, usize)>)> = Vec::new();
        let end = order.iter().map(|(_, _, until)| *until).max().unwrap_or(0);
        for (i, Lifetime { lines, from, .. }, until) in order {
            // Every block is large enough; the one that it leaves the least time idle in serves best.
            let idle = |held: &[(usize, usize)]| {
                let (mut before, mut after) = (0, usize::MAX);
                for (f, u) in held {
                    match (*u < from, until < *f) {
                        (true, _) => before = before.max(*u),
                        (_, true) => after = after.min(*f),
                        _ => return None,
                    }
                }
                Some((from - before).saturating_add(after.min(end) - until))
            };
            let fits = blocks.iter().enumerate();
            let fits = fits.filter_map(|(at, (_, held))| Some((idle(held)?, at)));
            let at = fits.min().map(|(_, at)| at).unwrap_or_else(|| {
                blocks.push((lines, Vec::new()));
                blocks.len() - 1
            });
            blocks[at].1.push((from, until));
            places[i].1 = Some(at);
        }
        Self { places, blocks: blocks.into_iter().map(|(lines, _)| lines).collect() }
    }

    /// The block of the buffer that is asked for in this place, if it is as large as expected.
    pub(super) fn block(&self, place: usize, lines: usize) -> Option<usize> {
        let (expected, block) = self.places.get(place)?;
        block.filter(|_| *expected == lines)
    }

    /// Lines of each block, the largest first.
    pub(super) fn blocks(&self) -> &[usize] {
        &self.blocks
    }

    /// Lines of all blocks.
    #[cfg(test)]
    fn lines(&self) -> usize {
        self.blocks.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(lines: usize, from: usize, until: usize) -> Lifetime {
        Lifetime { lines, from, until: Some(until) }
    }

    /// The most lines that are held at once.
    fn most_alive(all: &[Lifetime]) -> usize {
        let during = |at: usize| {
            let held = all.iter().filter(|l| l.from <= at && l.until.is_none_or(|u| at <= u));
            held.map(|l| l.lines).sum()
        };
        all.iter().map(|l| during(l.from)).max().unwrap_or(0)
    }

    #[test]
    fn buffers_take_turns() {
        // A chain: each is let go after the next was made.
        let chain: Vec<_> = (0..6).map(|i| held(10 + i, 2 * i, 2 * i + 3)).collect();
        let layout = Layout::new(&chain);
        assert_eq!(layout.blocks(), [15, 14]);
        assert_eq!(most_alive(&chain), 15 + 14);
        assert_eq!(layout.block(0, 10), Some(1));
        // Another size than the one that was laid out, and one more buffer.
        assert_eq!(layout.block(0, 11), None);
        assert_eq!(layout.block(6, 10), None);
    }

    #[test]
    fn what_outlives_the_run_has_no_block() {
        let layout = Layout::new(&[Lifetime { lines: 9, from: 0, until: None }, held(3, 1, 2)]);
        assert_eq!((layout.block(0, 9), layout.block(1, 3)), (None, Some(0)));
        assert_eq!(layout.lines(), 3);
    }

    #[test]
    fn no_two_in_a_block_are_held_at_once_and_little_is_wasted() {
        let mut state = 7_u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut wasted = 0.0;
        for _ in 0..50 {
            let mut all = Vec::new();
            for at in 0..100 {
                all.push(held(1 + next(1000), 1000 * at, 1000 * (at + 1 + next(5)) + 500));
            }
            let layout = Layout::new(&all);
            for (i, a) in all.iter().enumerate() {
                let block = layout.block(i, a.lines).unwrap();
                assert!(layout.blocks()[block] >= a.lines);
                for (j, b) in all.iter().enumerate().skip(i + 1) {
                    let apart = a.until.unwrap() < b.from || b.until.unwrap() < a.from;
                    assert!(apart || layout.block(j, b.lines) != Some(block), "{i} {j}");
                }
            }
            assert!(layout.blocks().is_sorted_by(|a, b| a >= b));
            let alive = most_alive(&all);
            assert!(layout.lines() >= alive);
            wasted += layout.lines() as f64 / alive as f64 / 50.0;
        }
        assert!(wasted < 1.25, "{wasted}");
    }
}

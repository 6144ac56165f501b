//! How much of a mapped file is in memory, as Linux tells it.

use std::path::Path;

/// Bytes of a mapped file that are in memory for this process.
pub(crate) fn resident(path: &Path) -> usize {
    let path = path.canonicalize().unwrap();
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut here = false;
    let mut sum = 0;
    let mut maps = 0;
    for line in text.lines() {
        let is_map = line.split(' ').next().is_some_and(|w| w.contains('-') && !w.ends_with(':'));
        if is_map {
            here = line.ends_with(path.to_str().unwrap());
            maps += usize::from(here);
        } else if here && let Some(kib) = line.strip_prefix("Rss:") {
            sum += kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024;
        }
    }
    assert!(maps > 0, "the file is not mapped");
    sum
}

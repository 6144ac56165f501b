//! What memory this process holds.

/// Bytes of this process that are in memory now; `None` where the system does not tell.
pub fn resident_bytes() -> Option<u64> {
    status("VmRSS:")
}

/// The most that [`resident_bytes`] ever was.
pub fn peak_resident_bytes() -> Option<u64> {
    status("VmHWM:")
}

fn status(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with(field))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_written_to_is_seen() {
        let before = resident_bytes().unwrap();
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(resident_bytes().unwrap() >= before + (32 << 20));
        assert!(peak_resident_bytes().unwrap() >= before + (32 << 20));
        drop(held);
    }
}

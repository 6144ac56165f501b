//! Text in columns, and numbers with units.

/// Characters of a cell that are shown: one that is longer makes every row as long.
const SHOWN: usize = 120;

/// What is shown of a text that may be of any length.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Rows whose columns line up; the first row is the head. Cells beyond some length are cut.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| shortened(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        out += cells.join("  ").trim_end();
        out.push('\n');
    }
    out
}

/// Cells as owned text.
pub(super) fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Bytes with a binary prefix; `?` where they are not known.
pub(super) fn bytes(n: Option<u64>) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let Some(n) = n else { return "?".to_owned() };
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_by_characters() {
        let text = table(&[row(["a", "b"]), row(["é é", "c"])]);
        assert_eq!(text, "a    b\né é  c\n");
        let long = table(&[row([&"é".repeat(70_000), "b"]), row(["a", "b"])]);
        assert!(long.starts_with("é") && long.contains("…  b\n") && long.len() < 1000);
        assert_eq!(bytes(Some(1536)), "1.5 KiB");
        assert_eq!(bytes(None), "?");
    }
}

//! Node names: patterns that match them, and the nearest one to a misspelt one.

/// A pattern over whole names: `*` stands for any characters (`/` too), `?` for one, and `\` takes
/// the next character as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Piece>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Char(char),
    One,
    Any,
}

impl Pattern {
    /// The pattern; `None` if it ends in a lone `\`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut pieces = Vec::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let piece = match c {
                '*' => Piece::Any,
                '?' => Piece::One,
                '\\' => Piece::Char(chars.next()?),
                c => Piece::Char(c),
            };
            if piece != Piece::Any || pieces.last() != Some(&Piece::Any) {
                pieces.push(piece);
            }
        }
        Some(Self(pieces))
    }

    /// The one name that it matches, if it has no wildcard.
    pub(super) fn literal(&self) -> Option<String> {
        self.0
            .iter()
            .map(|p| match p {
                Piece::Char(c) => Some(*c),
                Piece::One | Piece::Any => None,
            })
            .collect()
    }

    /// Whether it matches the whole of `name`.
    pub(super) fn matches(&self, name: &str) -> bool {
        let (pieces, mut rest) = (&self.0, name);
        let mut at = 0;
        // Where to go on if what follows the last `*` does not fit: one character further.
        let mut retry: Option<(usize, &str)> = None;
        loop {
            let mut after = rest.chars();
            let fits = match (pieces.get(at), after.next()) {
                (None, None) => return true,
                (Some(Piece::Any), _) => {
                    retry = Some((at + 1, rest));
                    at += 1;
                    continue;
                }
                (Some(Piece::One), Some(_)) => true,
                (Some(Piece::Char(p)), Some(c)) => *p == c,
                (None, Some(_)) | (Some(_), None) => false,
            };
            if fits {
                at += 1;
                rest = after.as_str();
                continue;
            }
            let Some((piece, from)) = retry else { return false };
            let mut further = from.chars();
            if further.next().is_none() {
                return false;
            }
            (at, rest) = (piece, further.as_str());
            retry = Some((piece, rest));
        }
    }
}

/// The pattern text that matches exactly `name`.
pub(super) fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if matches!(c, '*' | '?' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The name that needs the fewest changes to become `wanted`, if that is not too many.
pub(super) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wanted: Vec<char> = wanted.chars().take(256).collect();
    let mut limit = wanted.len() / 3 + 1;
    let mut best = None;
    for name in names {
        if let Some(d) = distance(&wanted, name, limit) {
            best = Some(name);
            match d.checked_sub(1) {
                Some(l) => limit = l,
                None => return best,
            }
        }
    }
    best
}

/// How many characters have to be inserted, removed or replaced, if at most `limit`.
fn distance(a: &[char], b: &str, limit: usize) -> Option<usize> {
    let length = b.chars().count();
    if length.abs_diff(a.len()) > limit {
        return None;
    }
    let mut row: Vec<usize> = (0..=a.len()).collect();
    for (j, c) in b.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], j + 1);
        let mut least = row[0];
        for i in 0..a.len() {
            let swap = diagonal + usize::from(a[i] != c);
            diagonal = row[i + 1];
            row[i + 1] = swap.min(row[i] + 1).min(diagonal + 1);
            least = least.min(row[i + 1]);
        }
        if least > limit {
            return None;
        }
    }
    row.last().copied().filter(|d| *d <= limit)
}

/// Names in backticks, the first few of them, for messages.
pub(super) fn list<S: AsRef<str>>(names: &[S]) -> String {
    const SHOWN: usize = 20;
    let mut out: Vec<String> =
        names.iter().take(SHOWN).map(|n| format!("`{}`", n.as_ref())).collect();
    if names.len() > SHOWN {
        out.push(format!("and {} more", names.len() - SHOWN));
    }
    out.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(name)
    }

    #[test]
    fn wildcards() {
        assert!(matches("/enc/*", "/enc/layer.0/MatMul"));
        assert!(!matches("/enc/*", "/dec/enc/x"));
        assert!(matches("*MatMul", "/a/MatMul") && !matches("*MatMul", "/a/MatMul_1"));
        assert!(matches("a?c", "aéc") && !matches("a?c", "ac"));
        assert!(matches("*a*b*", "xxaxbab") && !matches("*a*b*", "bbbba"));
        assert!(matches("", "") && matches("**", "") && !matches("", "x"));
        assert!(matches(r"a\*b", "a*b") && !matches(r"a\*b", "axb"));
        assert_eq!(Pattern::parse("a\\"), None);
    }

    #[test]
    fn literals_have_no_wildcards() {
        assert_eq!(Pattern::parse(r"a\?b").unwrap().literal().as_deref(), Some("a?b"));
        assert_eq!(Pattern::parse("a?b").unwrap().literal(), None);
    }

    #[test]
    fn the_nearest_name_is_near() {
        let names = ["/conv1/Conv", "/conv2/Conv", "/fc/Gemm"];
        assert_eq!(nearest("/conv2/Cnov", names.into_iter()), Some("/conv2/Conv"));
        assert_eq!(nearest("softmax", names.into_iter()), None);
        assert_eq!(nearest("/fc/Gemm", names.into_iter()), Some("/fc/Gemm"));
    }

    /// The textbook recursion, as an independent expectation.
    fn slow(p: &[char], n: &[char]) -> bool {
        match (p, n) {
            ([], []) => true,
            (['*', rest @ ..], _) => slow(rest, n) || (!n.is_empty() && slow(p, &n[1..])),
            (['?', rest @ ..], [_, tail @ ..]) => slow(rest, tail),
            ([c, rest @ ..], [d, tail @ ..]) if c == d => slow(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_recursion(p in "[ab*?]{0,8}", n in "[ab]{0,10}") {
            let (pc, nc): (Vec<_>, Vec<_>) = (p.chars().collect(), n.chars().collect());
            prop_assert_eq!(matches(&p, &n), slow(&pc, &nc));
        }

        #[test]
        fn an_escaped_name_matches_itself_only(a in "[ab*?\\\\é]{0,6}", b in "[ab*?\\\\é]{0,6}") {
            prop_assert_eq!(matches(&escape(&a), &b), a == b);
        }
    }
}

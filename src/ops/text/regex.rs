//! Regular expressions in the syntax of RE2, without the classes of Unicode properties. The time
//! of a match is bounded by the lengths of text and pattern multiplied.

/// A pattern made ready.
#[derive(Debug)]
pub(super) struct Regex {
    code: Vec<Step>,
}

/// Patterns that compile to more steps than this are refused.
const MOST_STEPS: usize = 1 << 16;
/// Groups nested deeper than this are refused.
const DEEPEST: usize = 200;
/// As RE2 has it.
const MOST_REPEATS: u32 = 1000;

#[derive(Clone, Debug)]
enum Step {
    /// Takes a character of a class.
    One(Class),
    /// Goes on at both.
    Fork(usize, usize),
    Jump(usize),
    /// Goes on if this is true here.
    If(Anchor),
    End,
}

#[derive(Clone, Debug)]
struct Class {
    ranges: Vec<(char, char)>,
    negated: bool,
    any_case: bool,
}

impl Class {
    fn has(&self, c: char) -> bool {
        let within = |c: char| self.ranges.iter().any(|(low, high)| (*low..=*high).contains(&c));
        let found = within(c)
            || self.any_case && (c.to_lowercase().any(within) || c.to_uppercase().any(within));
        found != self.negated
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Anchor {
    TextStart,
    TextEnd,
    LineStart,
    LineEnd,
    Boundary,
    NoBoundary,
}

#[derive(Clone, Debug)]
enum Tree {
    Empty,
    One(Class),
    If(Anchor),
    Row(Vec<Self>),
    Either(Vec<Self>),
    Repeat(Box<Self>, u32, Option<u32>),
}

#[derive(Clone, Copy, Default)]
struct Flags {
    any_case: bool,
    dot_all: bool,
    lines: bool,
}

struct Parser<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    depth: usize,
}

impl Regex {
    /// # Errors
    /// Words that say what is wrong with the pattern.
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        let mut parser = Parser { rest: pattern.chars().peekable(), depth: 0 };
        let tree = parser.either(&mut Flags::default())?;
        if parser.rest.peek().is_some() {
            return Err("a `)` has no `(`".to_owned());
        }
        let mut code = Vec::new();
        compile(&tree, &mut code)?;
        code.push(Step::End);
        Ok(Self { code })
    }

    /// Whether it matches the text from beginning to end.
    pub(super) fn matches_all(&self, text: &str) -> bool {
        let chars: Vec<char> = text.chars().collect();
        let mut now = vec![false; self.code.len()];
        let mut next = now.clone();
        let mut waiting = Vec::new();
        self.reach(0, &chars, 0, &mut now, &mut waiting);
        for (at, c) in chars.iter().enumerate() {
            next.fill(false);
            for (k, step) in self.code.iter().enumerate().filter(|(k, _)| now[*k]) {
                if let Step::One(class) = step
                    && class.has(*c)
                {
                    self.reach(k + 1, &chars, at + 1, &mut next, &mut waiting);
                }
            }
            std::mem::swap(&mut now, &mut next);
        }
        now.last().copied().unwrap_or(false)
    }

    /// Marks all steps that can be reached from `step` without taking a character.
    fn reach(
        &self,
        step: usize,
        text: &[char],
        at: usize,
        marked: &mut [bool],
        waiting: &mut Vec<usize>,
    ) {
        waiting.push(step);
        while let Some(k) = waiting.pop() {
            if std::mem::replace(&mut marked[k], true) {
                continue;
            }
            match &self.code[k] {
                Step::Fork(a, b) => waiting.extend([*b, *a]),
                Step::Jump(to) => waiting.push(*to),
                Step::If(anchor) if holds(*anchor, text, at) => waiting.push(k + 1),
                _ => {}
            }
        }
    }
}

fn holds(anchor: Anchor, text: &[char], at: usize) -> bool {
    let word = |c: Option<&char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || *c == '_');
    let before = at.checked_sub(1).and_then(|k| text.get(k));
    match anchor {
        Anchor::TextStart => at == 0,
        Anchor::TextEnd => at == text.len(),
        Anchor::LineStart => before.is_none_or(|c| *c == '\n'),
        Anchor::LineEnd => text.get(at).is_none_or(|c| *c == '\n'),
        Anchor::Boundary => word(before) != word(text.get(at)),
        Anchor::NoBoundary => word(before) == word(text.get(at)),
    }
}

fn compile(tree: &Tree, code: &mut Vec<Step>) -> Result<(), String> {
    if code.len() > MOST_STEPS {
        return Err("it is too large".to_owned());
    }
    match tree {
        Tree::Empty => {}
        Tree::One(class) => code.push(Step::One(class.clone())),
        Tree::If(anchor) => code.push(Step::If(*anchor)),
        Tree::Row(all) => all.iter().try_for_each(|t| compile(t, code))?,
        Tree::Either(all) => {
            let mut ends = Vec::new();
            for (k, t) in all.iter().enumerate() {
                let last = k + 1 == all.len();
                let fork = code.len();
                if !last {
                    code.push(Step::Jump(0));
                }
                compile(t, code)?;
                if !last {
                    ends.push(code.len());
                    code.push(Step::Jump(0));
                    code[fork] = Step::Fork(fork + 1, code.len());
                }
            }
            for end in ends {
                code[end] = Step::Jump(code.len());
            }
        }
        Tree::Repeat(inner, least, most) => {
            for _ in 0..*least {
                compile(inner, code)?;
            }
            match most {
                None => {
                    let fork = code.len();
                    code.push(Step::Jump(0));
                    compile(inner, code)?;
                    code.push(Step::Jump(fork));
                    code[fork] = Step::Fork(fork + 1, code.len());
                }
                Some(most) => {
                    let mut forks = Vec::new();
                    for _ in *least..*most {
                        forks.push(code.len());
                        code.push(Step::Jump(0));
                        compile(inner, code)?;
                    }
                    for fork in forks {
                        code[fork] = Step::Fork(fork + 1, code.len());
                    }
                }
            }
        }
    }
    Ok(())
}

fn single(c: char) -> (char, char) {
    (c, c)
}

/// The ranges of a letter after a backslash, and whether the others are meant.
fn shorthand(c: char) -> Option<(Vec<(char, char)>, bool)> {
    let ranges = match c.to_ascii_lowercase() {
        'd' => vec![('0', '9')],
        'w' => vec![('0', '9'), ('A', 'Z'), single('_'), ('a', 'z')],
        's' => vec![('\t', '\n'), ('\x0C', '\r'), single(' ')],
        _ => return None,
    };
    Some((ranges, c.is_ascii_uppercase()))
}

/// All characters but those in the ranges.
fn others(ranges: &[(char, char)]) -> Vec<(char, char)> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut out = Vec::new();
    let mut next = 0_u32;
    for (low, high) in sorted {
        if let (Some(a), Some(b)) =
            (char::from_u32(next), (low as u32).checked_sub(1).and_then(char::from_u32))
            && a <= b
        {
            out.push((a, b));
        }
        next = next.max(high as u32 + 1);
    }
    if let Some(a) = char::from_u32(next) {
        out.push((a, char::MAX));
    }
    out
}

impl Parser<'_> {
    fn either(&mut self, flags: &mut Flags) -> Result<Tree, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("its groups are nested too deep".to_owned());
        }
        let mut all = vec![self.row(flags)?];
        while self.rest.next_if_eq(&'|').is_some() {
            all.push(self.row(flags)?);
        }
        self.depth -= 1;
        Ok(if all.len() == 1 { all.remove(0) } else { Tree::Either(all) })
    }

    fn row(&mut self, flags: &mut Flags) -> Result<Tree, String> {
        let mut all = Vec::new();
        while let Some(c) = self.rest.peek().copied().filter(|c| !matches!(c, '|' | ')')) {
            self.rest.next();
            let one = self.one(c, flags)?;
            all.push(self.repeated(one)?);
        }
        Ok(Tree::Row(all))
    }

    fn repeated(&mut self, mut tree: Tree) -> Result<Tree, String> {
        loop {
            let (least, most) = match self.rest.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => match self.counts() {
                    Some(counts) => {
                        let (least, most) = counts;
                        if most.is_some_and(|m| m < least)
                            || least > MOST_REPEATS
                            || most.is_some_and(|m| m > MOST_REPEATS)
                        {
                            return Err(format!("it repeats {least} to {most:?} times"));
                        }
                        (least, most)
                    }
                    // Braces that are no counts stand for themselves.
                    None => return Ok(tree),
                },
                _ => return Ok(tree),
            };
            self.skip_operator();
            // What is preferred makes no difference to whether all of a text matches.
            self.rest.next_if_eq(&'?');
            tree = Tree::Repeat(Box::new(tree), least, most);
        }
    }

    /// Takes `*`, `+`, `?` or a `{…}`.
    fn skip_operator(&mut self) {
        if self.rest.next() == Some('{') {
            for c in self.rest.by_ref() {
                if c == '}' {
                    return;
                }
            }
        }
    }

    /// The numbers of the `{…}` that is ahead, which is not taken; `None` if they are none.
    fn counts(&self) -> Option<(u32, Option<u32>)> {
        let mut ahead = self.rest.clone();
        ahead.next();
        let text: String = ahead.by_ref().take_while(|c| *c != '}').take(32).collect();
        let number = |s: &str| {
            let digits = !s.is_empty() && s.chars().all(|c| c.is_ascii_digit());
            digits.then(|| s.parse().unwrap_or(u32::MAX))
        };
        match text.split_once(',') {
            None => number(&text).map(|n| (n, Some(n))),
            Some((least, "")) => number(least).map(|n| (n, None)),
            Some((least, most)) => Some((number(least)?, Some(number(most)?))),
        }
    }

    fn one(&mut self, c: char, flags: &mut Flags) -> Result<Tree, String> {
        let class = |ranges: Vec<(char, char)>, negated: bool, flags: &Flags| {
            Tree::One(Class { ranges, negated, any_case: flags.any_case })
        };
        Ok(match c {
            '.' if flags.dot_all => class(vec![('\0', char::MAX)], false, flags),
            '.' => class(vec![single('\n')], true, flags),
            '^' => Tree::If(if flags.lines { Anchor::LineStart } else { Anchor::TextStart }),
            '$' => Tree::If(if flags.lines { Anchor::LineEnd } else { Anchor::TextEnd }),
            '[' => self.class(*flags)?,
            '(' => self.group(flags)?,
            '*' | '+' | '?' => return Err(format!("there is nothing that `{c}` repeats")),
            '\\' => {
                let Some(c) = self.rest.next() else {
                    return Err("it ends with a `\\`".to_owned());
                };
                match c {
                    'b' => Tree::If(Anchor::Boundary),
                    'B' => Tree::If(Anchor::NoBoundary),
                    'A' => Tree::If(Anchor::TextStart),
                    'z' => Tree::If(Anchor::TextEnd),
                    'Q' => self.quoted(flags),
                    c => match shorthand(c) {
                        Some((ranges, negated)) => class(ranges, negated, flags),
                        None => class(vec![single(self.escaped(c)?)], false, flags),
                    },
                }
            }
            c => class(vec![single(c)], false, flags),
        })
    }

    /// Everything up to `\E`, as it stands.
    fn quoted(&mut self, flags: &Flags) -> Tree {
        let mut all = Vec::new();
        while let Some(c) = self.rest.next() {
            if c == '\\' && self.rest.next_if_eq(&'E').is_some() {
                break;
            }
            let any_case = flags.any_case;
            all.push(Tree::One(Class { ranges: vec![single(c)], negated: false, any_case }));
        }
        Tree::Row(all)
    }

    fn escaped(&mut self, c: char) -> Result<char, String> {
        Ok(match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'f' => '\x0C',
            'v' => '\x0B',
            'a' => '\x07',
            'x' => {
                let digits: String = if self.rest.next_if_eq(&'{').is_some() {
                    self.rest.by_ref().take_while(|c| *c != '}').collect()
                } else {
                    self.rest.by_ref().take(2).collect()
                };
                let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                code.ok_or_else(|| format!("`\\x{digits}` is no character"))?
            }
            c if c.is_ascii_alphanumeric() => return Err(format!("`\\{c}` is not known")),
            c => c,
        })
    }

    fn group(&mut self, flags: &mut Flags) -> Result<Tree, String> {
        let mut inner = *flags;
        if self.rest.next_if_eq(&'?').is_some() {
            let mut on = true;
            loop {
                match self.rest.next() {
                    Some(':') => break,
                    // Flags for the rest of the group around.
                    Some(')') => {
                        *flags = inner;
                        return Ok(Tree::Empty);
                    }
                    Some('-') => on = false,
                    Some('i') => inner.any_case = on,
                    Some('s') => inner.dot_all = on,
                    Some('m') => inner.lines = on,
                    Some('U') => {}
                    Some('P' | '<') => {
                        for c in self.rest.by_ref() {
                            if c == '>' {
                                break;
                            }
                        }
                        break;
                    }
                    other => return Err(format!("`(?{}` is not known", other.unwrap_or(' '))),
                }
            }
        }
        let tree = self.either(&mut inner)?;
        if self.rest.next() != Some(')') {
            return Err("a `(` has no `)`".to_owned());
        }
        Ok(tree)
    }

    fn class(&mut self, flags: Flags) -> Result<Tree, String> {
        let negated = self.rest.next_if_eq(&'^').is_some();
        let mut ranges: Vec<(char, char)> = Vec::new();
        let mut first = true;
        loop {
            let Some(c) = self.rest.next() else { return Err("a `[` has no `]`".to_owned()) };
            if c == ']' && !first {
                break;
            }
            first = false;
            if c == '[' && self.rest.peek() == Some(&':') {
                ranges.extend(self.named()?);
                continue;
            }
            let low = match c {
                '\\' => {
                    let c = self.rest.next().ok_or("it ends with a `\\`")?;
                    if let Some((own, other)) = shorthand(c) {
                        ranges.extend(if other { others(&own) } else { own });
                        continue;
                    }
                    self.escaped(c)?
                }
                c => c,
            };
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']');
            if !is_range {
                ranges.push(single(low));
                continue;
            }
            self.rest.next();
            let high = match self.rest.next() {
                Some('\\') => {
                    let c = self.rest.next().ok_or("it ends with a `\\`")?;
                    self.escaped(c)?
                }
                Some(c) => c,
                None => return Err("a `[` has no `]`".to_owned()),
            };
            if high < low {
                return Err(format!("`{low}-{high}` is no range"));
            }
            ranges.push((low, high));
        }
        Ok(Tree::One(Class { ranges, negated, any_case: flags.any_case }))
    }

    /// A class such as `[:alpha:]` within another one, after its first bracket.
    fn named(&mut self) -> Result<Vec<(char, char)>, String> {
        self.rest.next();
        let name: String = self.rest.by_ref().take_while(|c| *c != ':').collect();
        if self.rest.next() != Some(']') {
            return Err(format!("`[:{name}` has no `:]`"));
        }
        let (other, name) = match name.strip_prefix('^') {
            Some(name) => (true, name),
            None => (false, name.as_str()),
        };
        let ranges = match name {
            "alpha" => vec![('A', 'Z'), ('a', 'z')],
            "alnum" => vec![('0', '9'), ('A', 'Z'), ('a', 'z')],
            "digit" => vec![('0', '9')],
            "lower" => vec![('a', 'z')],
            "upper" => vec![('A', 'Z')],
            "punct" => vec![('!', '/'), (':', '@'), ('[', '`'), ('{', '~')],
            "space" => vec![('\t', '\r'), single(' ')],
            "blank" => vec![single('\t'), single(' ')],
            "word" => vec![('0', '9'), ('A', 'Z'), single('_'), ('a', 'z')],
            "xdigit" => vec![('0', '9'), ('A', 'F'), ('a', 'f')],
            "print" => vec![(' ', '~')],
            "graph" => vec![('!', '~')],
            "cntrl" => vec![('\0', '\x1F'), single('\x7F')],
            "ascii" => vec![('\0', '\x7F')],
            _ => return Err(format!("`[:{name}:]` is not known")),
        };
        Ok(if other { others(&ranges) } else { ranges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_they_should() {
        for (pattern, yes, no) in [
            ("", &[""][..], &["a"][..]),
            ("a*", &["", "aaa"], &["ab"]),
            ("a+b?|c", &["a", "aab", "c"], &["", "b", "cc"]),
            ("(ab){2,3}", &["abab", "ababab"], &["ab", "abababab"]),
            ("x{2}", &["xx"], &["x", "xxx"]),
            ("x{2,}", &["xx", "xxxx"], &["x"]),
            ("a{,2}", &["a{,2}"], &["a"]),
            ("[a-c]+", &["abc"], &["abd"]),
            ("[^a-c]", &["d", "\n"], &["a", "dd"]),
            ("[]-]+", &["]-"], &["a"]),
            (r"[\d_-]+", &["1_-2"], &["a"]),
            (r"[\D]", &["x"], &["1"]),
            (r"\w+\s\W", &["ab !"], &["ab a"]),
            (".", &["x", "ß"], &["\n", ""]),
            ("(?s).", &["\n"], &[""]),
            ("(?i)straße", &["STRAßE", "straße"], &["strasse"]),
            ("a(?i:b)c", &["aBc"], &["ABc"]),
            (r"\bfoo\b.*", &["foo bar"], &["foobar"]),
            ("^a$", &["a"], &["a\n"]),
            (r"\x41\x{df}", &["Aß"], &["A"]),
            ("[[:alpha:]]+[[:^digit:]]", &["abc!"], &["ab1"]),
            ("(?P<name>a|b)+", &["abba"], &["c"]),
            (r"\Qa.b\E.", &["a.bx"], &["axbx"]),
            ("(a*)*b", &["aaab", "b"], &["aaa"]),
            ("(?:)*", &[""], &["a"]),
        ] {
            let regex = Regex::new(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
            yes.iter().for_each(|t| assert!(regex.matches_all(t), "`{pattern}` on `{t}`"));
            no.iter().for_each(|t| assert!(!regex.matches_all(t), "`{pattern}` on `{t}`"));
        }
    }

    #[test]
    fn what_is_no_pattern_is_an_error_and_nothing_takes_forever() {
        for bad in ["(", ")", "[a", "*", r"\", r"\q", "a{3,2}", "a{2000}", "[b-a]", "(?x)"] {
            assert!(Regex::new(bad).is_err(), "{bad}");
        }
        assert!(Regex::new(&"(".repeat(10_000)).is_err());
        assert!(Regex::new("((a{1000}){1000}){1000}").is_err());
        let regex = Regex::new("(a*)*(a*)*c").unwrap();
        assert!(!regex.matches_all(&"a".repeat(5_000)));
    }
}

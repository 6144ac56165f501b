//! Text to tokens and back, with the vocabulary in a GGUF file: pairs of pieces are merged, the best
//! score first, and what has no piece is spelt in bytes (SentencePiece's BPE).

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use brigade::import::{GgufMetadata, GgufValue};
use brigade::{Error, ErrorKind, Result};

/// What stands for a space in pieces.
const SPACE: &str = "\u{2581}";

/// Kinds of pieces, as the file numbers them.
const NORMAL: i32 = 1;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// A vocabulary.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    pieces: Vec<String>,
    scores: Vec<f32>,
    kinds: Vec<i32>,
    /// Pieces that text is made of.
    ids: HashMap<String, usize>,
    bytes: Vec<Option<usize>>,
    /// Lengths in bytes of the pieces that are taken out of a text before anything is merged.
    defined: BTreeSet<usize>,
    space_prefix: bool,
    /// What stands before every text.
    first: Option<i64>,
    end: i64,
    unknown: i64,
}

impl Tokenizer {
    /// The vocabulary in a file's metadata.
    ///
    /// # Errors
    /// If there is none, or one of another kind; names the key.
    pub(crate) fn read(metadata: &GgufMetadata) -> Result<Self> {
        let wrong = |message: String| Error::new(ErrorKind::Format, message);
        let model = metadata.text("tokenizer.ggml.model")?;
        if model != "llama" {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("the tokenizer is of the kind `{model}`, not `llama` (SentencePiece)"),
            ));
        }
        let list = |key: &str| metadata.list(key);
        let tokens = list("tokenizer.ggml.tokens")?.as_strings();
        let scores = list("tokenizer.ggml.scores")?.as_f32();
        let kinds = list("tokenizer.ggml.token_type")?.as_i32();
        let (Some(tokens), Some(scores), Some(kinds)) = (tokens, scores, kinds) else {
            return Err(wrong("the lists of the tokenizer are not of texts, f32 and i32".into()));
        };
        if tokens.len() != scores.len() || tokens.len() != kinds.len() {
            return Err(wrong(format!(
                "the tokenizer has {} pieces, {} scores and {} kinds",
                tokens.len(),
                scores.len(),
                kinds.len()
            )));
        }
        let flag = |key: &str| metadata.get(key).and_then(GgufValue::as_bool);
        let id = |key: &str| match metadata.number(key) {
            Ok(n) if n < tokens.len() as u64 => Ok(n as i64),
            Ok(n) => Err(wrong(format!("`{key}` is {n}, there are {} pieces", tokens.len()))),
            Err(error) => Err(error),
        };
        let first = match flag("tokenizer.ggml.add_bos_token") {
            Some(false) => None,
            _ => Some(id("tokenizer.ggml.bos_token_id")?),
        };
        let mut out = Self {
            pieces: tokens.to_vec(),
            scores: scores.to_vec(),
            kinds: kinds.to_vec(),
            ids: HashMap::with_capacity(tokens.len()),
            bytes: vec![None; 256],
            defined: BTreeSet::new(),
            space_prefix: flag("tokenizer.ggml.add_space_prefix").unwrap_or(true),
            first,
            end: id("tokenizer.ggml.eos_token_id")?,
            unknown: id("tokenizer.ggml.unknown_token_id")?,
        };
        for (id, (piece, kind)) in tokens.iter().zip(kinds).enumerate() {
            match *kind {
                NORMAL => {
                    out.ids.insert(piece.clone(), id);
                }
                USER_DEFINED => {
                    let piece = piece.replace(' ', SPACE);
                    out.defined.insert(piece.len());
                    out.ids.insert(piece, id);
                }
                BYTE => {
                    if let Some(byte) = byte_of(piece) {
                        out.bytes[usize::from(byte)] = Some(id);
                    }
                }
                _ => {}
            }
        }
        Ok(out)
    }

    /// The token that ends a text.
    pub(crate) fn end(&self) -> i64 {
        self.end
    }

    /// The tokens of a text, behind what stands before every text. Markup of control tokens is text
    /// like any other.
    pub(crate) fn encode(&self, text: &str) -> Vec<i64> {
        let prefix = if self.space_prefix && !text.is_empty() { " " } else { "" };
        let text = format!("{prefix}{text}").replace(' ', SPACE);
        let mut tokens: Vec<i64> = self.first.into_iter().collect();
        for piece in self.merged(&text) {
            match self.ids.get(piece) {
                Some(id) => tokens.push(*id as i64),
                None => tokens.extend(
                    piece
                        .bytes()
                        .map(|b| self.bytes[usize::from(b)].map_or(self.unknown, |id| id as i64)),
                ),
            }
        }
        tokens
    }

    /// The text of tokens; control tokens have none.
    pub(crate) fn decode(&self, tokens: &[i64]) -> String {
        let mut bytes = Vec::new();
        for token in tokens {
            let Some(at) = usize::try_from(*token).ok().filter(|at| *at < self.pieces.len()) else {
                continue;
            };
            let piece = &self.pieces[at];
            match self.kinds[at] {
                NORMAL => bytes.extend(piece.replace(SPACE, " ").into_bytes()),
                USER_DEFINED => bytes.extend(piece.bytes()),
                BYTE => bytes.extend(byte_of(piece)),
                _ => {}
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A text cut into pieces.
    fn merged<'a>(&self, text: &'a str) -> Vec<&'a str> {
        // Where each symbol starts and ends; merging makes the right one of two empty.
        let mut symbols: Vec<Symbol> = Vec::new();
        let mut at = 0;
        while let Some(c) = text[at..].chars().next() {
            let defined = self.defined_at(text, at);
            let end = at + defined.unwrap_or(c.len_utf8());
            let k = symbols.len();
            symbols.push(Symbol {
                start: at,
                end,
                before: k.checked_sub(1),
                after: Some(k + 1),
                fixed: defined.is_some(),
            });
            at = end;
        }
        if let Some(last) = symbols.last_mut() {
            last.after = None;
        }
        let mut waiting = BinaryHeap::new();
        for k in 1..symbols.len() {
            waiting.extend(self.pair(text, &symbols, k - 1, k));
        }
        while let Some(pair) = waiting.pop() {
            let (left, right) = (pair.left.0, pair.right);
            let (from, to) = (symbols[left].start, symbols[right].end);
            // One of them has been merged with another since.
            let stale = symbols[left].after != Some(right) || to - from != pair.len;
            if stale || symbols[left].is_empty() {
                continue;
            }
            symbols[left].end = to;
            let after = symbols[right].after;
            symbols[left].after = after;
            symbols[right].start = to;
            if let Some(after) = after {
                symbols[after].before = Some(left);
                waiting.extend(self.pair(text, &symbols, left, after));
            }
            if let Some(before) = symbols[left].before {
                waiting.extend(self.pair(text, &symbols, before, left));
            }
        }
        symbols.iter().filter(|s| !s.is_empty()).map(|s| &text[s.start..s.end]).collect()
    }

    /// Bytes of the longest piece at this place that is taken out before anything is merged.
    fn defined_at(&self, text: &str, at: usize) -> Option<usize> {
        self.defined.iter().rev().copied().find(|len| {
            let piece = text.get(at..at + len).and_then(|piece| self.ids.get(piece));
            piece.is_some_and(|id| self.kinds[*id] == USER_DEFINED)
        })
    }

    /// Two neighbours, if together they are a piece.
    fn pair(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Pair> {
        let (a, b) = (&symbols[left], &symbols[right]);
        if a.fixed || b.fixed {
            return None;
        }
        let id = self.ids.get(&text[a.start..b.end])?;
        let score = Score(self.scores[*id]);
        Some(Pair { score, left: Reverse(left), right, len: b.end - a.start })
    }
}

#[derive(Debug)]
struct Symbol {
    start: usize,
    end: usize,
    before: Option<usize>,
    after: Option<usize>,
    /// It is never merged.
    fixed: bool,
}

impl Symbol {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// A possible merger: the best score first, of equal ones the first in the text.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    score: Score,
    left: Reverse<usize>,
    right: usize,
    len: usize,
}

#[derive(Debug)]
struct Score(f32);

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The byte that a piece such as `<0x0A>` stands for.
fn byte_of(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok()
}

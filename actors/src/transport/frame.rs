//! What a link between processes carries, byte by byte.
//!
//! The messages of a link are messages of gRPC. All integers but the length, which is gRPC's, are
//! little-endian and of a fixed width.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | 0: gRPC's flag for "compressed", which nothing is |
//! | 1..5 | the length of all that follows, big-endian |
//! | 5 | the kind: 1 greeting, 2 frame, 3 end |
//! | 6..8 | zero |
//! | 8..12 | the length of the head |
//! | 12.. | the head, then the payload |
//!
//! The first message each way is a greeting, whose layout is the same in all versions of the protocol:
//! `BRGL`, the version (4 bytes), the release (UTF-8, at most 64 bytes). After that come frames. The
//! last message is an end: a byte (0 closed, 1 refused) and words (UTF-8, at most 4096 bytes). Whoever
//! was called may refuse with an end in place of the greeting.

use super::HEAD_LIMIT;
use super::error::LinkError;

/// The version of the protocol of links that this release speaks, and the only one.
pub const LINK_VERSION: u32 = 1;

/// The bytes in front of a head.
pub(crate) const PREFIX: usize = 12;

const MAGIC: [u8; 4] = *b"BRGL";
const RELEASE_LIMIT: usize = 64;
const WORDS_LIMIT: usize = 4096;
/// What of a message stands in front of its head and is counted in its length.
const COUNTED: u64 = (PREFIX - 5) as u64;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Greeting,
    Frame,
    End,
}

impl Kind {
    /// The most bytes that a head of this kind may have.
    const fn limit(self) -> usize {
        match self {
            Self::Greeting => MAGIC.len() + 4 + RELEASE_LIMIT,
            Self::Frame => HEAD_LIMIT,
            Self::End => 1 + WORDS_LIMIT,
        }
    }
}

/// What the other side said first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) version: u32,
    pub(crate) release: String,
}

impl Greeting {
    /// Whether the two can speak.
    pub(crate) fn check(&self, ours: u32) -> Result<(), LinkError> {
        if self.version == ours {
            return Ok(());
        }
        Err(LinkError::Version { ours, theirs: self.version, release: self.release.clone() })
    }
}

fn malformed<T>(why: impl Into<String>) -> Result<T, LinkError> {
    Err(LinkError::Malformed { why: why.into() })
}

/// Reads the head of a greeting.
pub(crate) fn read_greeting(head: &[u8]) -> Result<Greeting, LinkError> {
    let Some(rest) = head.strip_prefix(&MAGIC) else {
        return malformed("the peer does not greet as this protocol does");
    };
    let Some((version, release)) = rest.split_first_chunk::<4>() else {
        return malformed("a greeting without a version");
    };
    Ok(Greeting { version: u32::from_le_bytes(*version), release: printable(release) })
}

/// Reads the head of an end, as the reason of the link's end on this side.
pub(crate) fn read_end(head: &[u8]) -> Result<LinkError, LinkError> {
    match head.split_first() {
        Some((0, _)) => Ok(LinkError::Closed),
        Some((1, words)) => Ok(LinkError::Refused { why: printable(words) }),
        _ => malformed("an end of an unknown kind"),
    }
}

/// Words of the peer's, fit to be shown: what controls a terminal is left out.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control() || *c == '\n').collect()
}

/// Writes the prefix and the head of a message with a payload of `payload` bytes, which has been
/// checked to fit.
pub(crate) fn write(kind: Kind, head: &[u8], payload: u64) -> Vec<u8> {
    let length = u32::try_from(COUNTED + head.len() as u64 + payload).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(PREFIX + head.len());
    bytes.push(0);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.push(match kind {
        Kind::Greeting => 1,
        Kind::Frame => 2,
        Kind::End => 3,
    });
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(head);
    bytes
}

/// A greeting.
pub(crate) fn write_greeting(version: u32, release: &str) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&version.to_le_bytes());
    head.extend_from_slice(cut(release, RELEASE_LIMIT).as_bytes());
    write(Kind::Greeting, &head, 0)
}

/// An end; what the other side gets to know of `why`.
pub(crate) fn write_end(why: &LinkError) -> Vec<u8> {
    let head = match why.told() {
        LinkError::Refused { why } => {
            let mut head = vec![1];
            head.extend_from_slice(cut(&why, WORDS_LIMIT).as_bytes());
            head
        }
        _ => vec![0],
    };
    write(Kind::End, &head, 0)
}

fn cut(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// What a reader has come upon.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// A head is whole ([`Decoder::head`] has it), and so many bytes of payload follow.
    Head(Kind, u64),
    /// The next piece of the payload.
    Payload(&'a [u8]),
}

/// Reads messages out of pieces of any size. Takes no memory but for one head.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// Prefix and head of the message, as far as they have come.
    head: Vec<u8>,
    /// What is missing of the payload of the message.
    payload: u64,
    /// Whether `head` is whole, and has been given out.
    given: bool,
}

impl Decoder {
    /// The next thing in `input`, which is moved on behind it. `None` when all of it is read.
    pub(crate) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<Found<'a>>, LinkError> {
        if self.payload > 0 {
            if input.is_empty() {
                return Ok(None);
            }
            let now = usize::try_from(self.payload).map_or(input.len(), |p| p.min(input.len()));
            let (piece, rest) = input.split_at(now);
            *input = rest;
            self.payload -= now as u64;
            return Ok(Some(Found::Payload(piece)));
        }
        if self.given {
            self.given = false;
            self.head.clear();
        }
        if !self.take(PREFIX, input) {
            return Ok(None);
        }
        let (kind, head, payload) = read_prefix(&self.head)?;
        if !self.take(PREFIX + head, input) {
            return Ok(None);
        }
        self.payload = payload;
        self.given = true;
        Ok(Some(Found::Head(kind, payload)))
    }

    /// Moves bytes from `input` to the head until it has `length`; whether it has.
    fn take(&mut self, length: usize, input: &mut &[u8]) -> bool {
        let missing = length.saturating_sub(self.head.len());
        let (piece, rest) = input.split_at(missing.min(input.len()));
        self.head.extend_from_slice(piece);
        *input = rest;
        self.head.len() >= length
    }

    /// The head of the message that was found last.
    pub(crate) fn head(&self) -> &[u8] {
        self.head.get(PREFIX..).unwrap_or_default()
    }

    /// Whether a message has begun that has not ended.
    pub(crate) const fn is_amid(&self) -> bool {
        self.payload > 0 || (!self.given && !self.head.is_empty())
    }
}

/// The kind, the length of the head, the length of the payload.
fn read_prefix(bytes: &[u8]) -> Result<(Kind, usize, u64), LinkError> {
    let Some((prefix, _)) = bytes.split_first_chunk::<PREFIX>() else {
        return malformed("a message without its prefix");
    };
    let [flag, l0, l1, l2, l3, kind, z0, z1, h0, h1, h2, h3] = *prefix;
    if flag != 0 {
        return malformed("a compressed message");
    }
    let kind = match kind {
        1 => Kind::Greeting,
        2 => Kind::Frame,
        3 => Kind::End,
        other => return malformed(format!("a message of the unknown kind {other}")),
    };
    if z0 != 0 || z1 != 0 {
        return malformed("reserved bytes that are not zero");
    }
    let length = u64::from(u32::from_be_bytes([l0, l1, l2, l3]));
    let head = u64::from(u32::from_le_bytes([h0, h1, h2, h3]));
    if head > kind.limit() as u64 {
        return Err(LinkError::TooLong { what: "head", length: head, limit: kind.limit() as u64 });
    }
    let Some(payload) = length.checked_sub(COUNTED + head) else {
        return malformed(format!("a message of {length} bytes with a head of {head}"));
    };
    if kind != Kind::Frame && payload != 0 {
        return malformed("a payload where there can be none");
    }
    // At most the limit of a head, so it fits.
    Ok((kind, head as usize, payload))
}

/// A fuzz target: reads any bytes, in pieces whose sizes come from the first bytes of them, and holds
/// the reader to what it promises.
///
/// # Panics
///
/// If a promise is broken, which is what a fuzzer looks for.
#[doc(hidden)]
pub fn fuzz_frames(bytes: &[u8]) {
    let whole = read_in_pieces(bytes, &[usize::MAX]);
    let sizes: Vec<usize> = bytes.iter().take(7).map(|b| usize::from(*b) + 1).collect();
    assert_eq!(whole, read_in_pieces(bytes, if sizes.is_empty() { &[1] } else { &sizes }));
}

/// What was found, with the pieces of a payload put together, and the error at the end.
fn read_in_pieces(bytes: &[u8], sizes: &[usize]) -> (Vec<(Vec<u8>, Vec<u8>)>, Option<LinkError>) {
    let mut decoder = Decoder::default();
    let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut rest = bytes;
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (mut piece, behind) = rest.split_at((*size).min(rest.len()));
        rest = behind;
        loop {
            match decoder.next(&mut piece) {
                Ok(None) => break,
                Ok(Some(Found::Head(kind, _))) => {
                    let head = decoder.head().to_vec();
                    assert!(head.len() <= HEAD_LIMIT);
                    match kind {
                        Kind::Greeting => drop(read_greeting(&head)),
                        Kind::End => drop(read_end(&head)),
                        Kind::Frame => {}
                    }
                    found.push((head, Vec::new()));
                }
                Ok(Some(Found::Payload(piece))) => {
                    assert!(!piece.is_empty());
                    if let Some((_, payload)) = found.last_mut() {
                        payload.extend_from_slice(piece);
                    }
                }
                Err(why) => return (found, Some(why)),
            }
        }
    }
    (found, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = write_greeting(LINK_VERSION, "0.1.0");
        for (head, payload) in [(&b"one"[..], &b"payload"[..]), (b"", b""), (b"two", b"")] {
            bytes.extend_from_slice(&write(Kind::Frame, head, payload.len() as u64));
            bytes.extend_from_slice(payload);
        }
        bytes.extend_from_slice(&write_end(&LinkError::Refused { why: "enough".to_owned() }));
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        for sizes in [&[usize::MAX][..], &[1], &[3, 11], &[12], &[13, 1]] {
            let (found, error) = read_in_pieces(&sample(), sizes);
            assert_eq!(error, None);
            assert_eq!(found.len(), 5);
            assert_eq!(
                read_greeting(&found[0].0),
                Ok(Greeting { version: LINK_VERSION, release: "0.1.0".to_owned() })
            );
            assert_eq!(found[1], (b"one".to_vec(), b"payload".to_vec()));
            assert_eq!(found[2], (Vec::new(), Vec::new()));
            assert_eq!(found[3], (b"two".to_vec(), Vec::new()));
            assert_eq!(read_end(&found[4].0), Ok(LinkError::Refused { why: "enough".to_owned() }));
        }
    }

    #[test]
    fn the_layout_is_the_one_that_is_written_down() {
        assert_eq!(write(Kind::Frame, b"ab", 3), [0, 0, 0, 0, 12, 2, 0, 0, 2, 0, 0, 0, b'a', b'b']);
        assert_eq!(
            write_greeting(7, "r"),
            [0, 0, 0, 0, 16, 1, 0, 0, 9, 0, 0, 0, b'B', b'R', b'G', b'L', 7, 0, 0, 0, b'r']
        );
        assert_eq!(write_end(&LinkError::Closed), [0, 0, 0, 0, 8, 3, 0, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn a_message_that_has_begun_is_known() {
        let bytes = sample();
        let mut decoder = Decoder::default();
        assert!(!decoder.is_amid());
        let mut at = 0;
        let mut amid = Vec::new();
        for byte in &bytes {
            let mut piece = std::slice::from_ref(byte);
            while decoder.next(&mut piece).unwrap().is_some() {}
            at += 1;
            if !decoder.is_amid() {
                amid.push(at);
            }
        }
        let greeting = write_greeting(LINK_VERSION, "0.1.0").len();
        let ends = [greeting, greeting + 22, greeting + 34, greeting + 49, bytes.len()];
        assert_eq!(amid, ends);
    }

    #[test]
    fn what_cannot_be_is_refused_before_memory() {
        let read = |bytes: &[u8]| read_in_pieces(bytes, &[usize::MAX]).1;
        let limit = HEAD_LIMIT as u64;
        let mut long = write(Kind::Frame, b"", 0);
        long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let length = u64::from(u32::MAX);
        assert_eq!(read(&long), Some(LinkError::TooLong { what: "head", length, limit }));
        for (at, value) in [(0, 1), (5, 0), (5, 4), (6, 1), (7, 1), (4, 0), (8, 9)] {
            let mut wrong = write(Kind::Frame, b"", 0);
            wrong[at] = value;
            assert!(matches!(read(&wrong), Some(LinkError::Malformed { .. })), "{at} = {value}");
        }
        let greeting_with_payload = write(Kind::Greeting, b"BRGL", 1);
        assert!(matches!(read(&greeting_with_payload), Some(LinkError::Malformed { .. })));
        assert!(matches!(read_greeting(b"GET / HT"), Err(LinkError::Malformed { .. })));
        assert!(matches!(read_greeting(b"BRGL\0"), Err(LinkError::Malformed { .. })));
        assert!(matches!(read_end(b""), Err(LinkError::Malformed { .. })));
        assert!(matches!(read_end(&[2]), Err(LinkError::Malformed { .. })));
    }

    #[test]
    fn words_are_cut_between_characters_and_cannot_control_a_terminal() {
        let why = format!("\x1b[31m{}", "ä".repeat(WORDS_LIMIT));
        let bytes = write_end(&LinkError::Refused { why });
        let (found, error) = read_in_pieces(&bytes, &[usize::MAX]);
        assert_eq!(error, None);
        let Ok(LinkError::Refused { why }) = read_end(&found[0].0) else { panic!() };
        assert!(why.starts_with("[31mää") && why.ends_with('ä') && why.len() > WORDS_LIMIT - 8);
    }

    #[test]
    fn any_bytes_are_read() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        fuzz_frames(&[]);
        for _ in 0..20_000 {
            let mut bytes = sample();
            for _ in 0..=random(4) {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes[at] = random(256) as u8,
                    1 => bytes[at] ^= 1 << random(8),
                    2 => bytes.truncate(at + 1),
                    _ => {
                        let from = random(bytes.len());
                        let piece = bytes[from..].to_vec();
                        bytes.splice(at..at, piece);
                    }
                }
            }
            fuzz_frames(&bytes);
        }
    }
}

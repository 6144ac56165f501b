//! Values as bytes, and bytes in frames.
//!
//! The only place that names bincode. Values are encoded with fixed-width little-endian integers;
//! decoding has a limit and rejects bytes that are left over. A frame puts a head in front of a
//! body, so that a reader knows what follows before it takes memory for it:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic, `BRGF` |
//! | 4..6 | version of the frame format, little-endian |
//! | 6..8 | zero |
//! | 8..16 | length of the body in bytes, little-endian |
//! | 16..20 | CRC-32 (IEEE) of the body, little-endian |
//! | 20.. | the body |
//!
//! ```
//! use brigade_actors::codec;
//!
//! let body = codec::encode(&("stats", 7_u32), 1024)?;
//! let frame = codec::frame(&body);
//! let mut stream: &[u8] = &frame;
//! let body = codec::read_frame(&mut stream, 1024)?;
//! assert_eq!(codec::decode::<(String, u32)>(&body, 1024)?, ("stats".to_owned(), 7));
//! # Ok::<(), codec::CodecError>(())
//! ```

use std::io::{self, Read, Write};

use bincode::Options as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first four bytes of a frame.
pub const MAGIC: [u8; 4] = *b"BRGF";

/// The version of the frame format that is written, and the only one that is read.
pub const VERSION: u16 = 1;

/// The bytes in front of the body of a frame.
pub const HEAD: usize = 20;

/// How much memory is taken for a body before any of it has arrived.
const FIRST_CHUNK: u64 = 64 * 1024;

/// Why bytes were not what they should be. No input makes this module panic, or take more memory
/// than the limit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The first bytes are not those of a frame.
    #[error("these are not the first bytes of a frame: {found:02x?}")]
    Magic {
        /// What was there.
        found: [u8; 4],
    },
    /// The frame is of another version.
    #[error(
        "the frame is of version {found}, this side speaks version {VERSION}: use one release on both sides"
    )]
    Version {
        /// The version of the frame.
        found: u16,
    },
    /// A field that has to be zero is not.
    #[error("the reserved field of the frame is {found}, not 0")]
    Reserved {
        /// What was there.
        found: u16,
    },
    /// The body is longer than is allowed here.
    #[error("a body of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// The length in the head, in bytes.
        length: u64,
        /// The most that is allowed, in bytes.
        limit: u64,
    },
    /// The bytes end before the frame does.
    #[error("the frame ends after {found} of {expected} bytes")]
    Truncated {
        /// The bytes that there are.
        found: u64,
        /// The bytes that there should be.
        expected: u64,
    },
    /// The body is not the one that was sent.
    #[error("the checksum of the body is {found:08x}, the head says {expected:08x}")]
    Checksum {
        /// What the body gives.
        found: u32,
        /// What the head says.
        expected: u32,
    },
    /// The body is not the encoding of the value, or longer than the limit.
    #[error("the value cannot be encoded or decoded: {0}")]
    Value(#[from] bincode::Error),
    /// Reading or writing failed.
    #[error("the frame could not be moved: {0}")]
    Io(#[from] io::Error),
}

fn options(limit: u64) -> impl bincode::Options {
    bincode::DefaultOptions::new()
        .with_fixint_encoding()
        .with_little_endian()
        .with_limit(limit)
        .reject_trailing_bytes()
}

/// Encodes a value in at most `limit` bytes.
///
/// # Errors
///
/// [`CodecError::Value`] if it needs more, or cannot be encoded.
pub fn encode<T: Serialize + ?Sized>(value: &T, limit: u64) -> Result<Vec<u8>, CodecError> {
    Ok(options(limit).serialize(value)?)
}

/// Decodes a value from exactly these bytes, at most `limit` of them.
///
/// # Errors
///
/// [`CodecError::Value`] if they are not the encoding of a `T`, if some are left over, or if there
/// are more than `limit`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: u64) -> Result<T, CodecError> {
    let length = bytes.len() as u64;
    if length > limit {
        return Err(CodecError::TooLong { length, limit });
    }
    Ok(options(limit).deserialize(bytes)?)
}

/// A body as a frame.
#[must_use]
pub fn frame(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEAD + body.len());
    frame.extend_from_slice(&head(body));
    frame.extend_from_slice(body);
    frame
}

fn head(body: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0..4].copy_from_slice(&MAGIC);
    head[4..6].copy_from_slice(&VERSION.to_le_bytes());
    head[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
    head[16..20].copy_from_slice(&crc32(body).to_le_bytes());
    head
}

/// Writes a body as a frame.
///
/// # Errors
///
/// [`CodecError::Io`].
pub fn write_frame(to: &mut impl Write, body: &[u8]) -> Result<(), CodecError> {
    to.write_all(&head(body))?;
    to.write_all(body)?;
    Ok(())
}

/// Reads one frame and gives its body, of at most `limit` bytes. Memory grows with what arrives, not
/// with what the head promises.
///
/// # Errors
///
/// [`CodecError`] says what is wrong with the frame. Nothing after it can be trusted to be the
/// beginning of another.
pub fn read_frame(from: &mut impl Read, limit: u64) -> Result<Vec<u8>, CodecError> {
    let mut bytes = Vec::with_capacity(HEAD);
    from.by_ref().take(HEAD as u64).read_to_end(&mut bytes)?;
    let Ok(head) = <[u8; HEAD]>::try_from(bytes.as_slice()) else {
        return Err(CodecError::Truncated { found: bytes.len() as u64, expected: HEAD as u64 });
    };
    let (length, expected) = parse_head(&head, limit)?;
    let mut body = Vec::with_capacity(usize::try_from(length.min(FIRST_CHUNK)).unwrap_or(0));
    from.by_ref().take(length).read_to_end(&mut body)?;
    if body.len() as u64 != length {
        return Err(CodecError::Truncated { found: body.len() as u64, expected: length });
    }
    let found = crc32(&body);
    if found != expected {
        return Err(CodecError::Checksum { found, expected });
    }
    Ok(body)
}

/// The body of the frame at the beginning of `bytes`, of at most `limit` bytes, and what follows.
///
/// # Errors
///
/// As [`read_frame`].
pub fn split_frame(bytes: &[u8], limit: u64) -> Result<(&[u8], &[u8]), CodecError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
        return Err(CodecError::Truncated { found: bytes.len() as u64, expected: HEAD as u64 });
    };
    let (length, expected) = parse_head(head, limit)?;
    let body = usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length));
    let Some((body, rest)) = body else {
        return Err(CodecError::Truncated { found: rest.len() as u64, expected: length });
    };
    let found = crc32(body);
    if found != expected {
        return Err(CodecError::Checksum { found, expected });
    }
    Ok((body, rest))
}

/// The length and the checksum of the body.
fn parse_head(head: &[u8; HEAD], limit: u64) -> Result<(u64, u32), CodecError> {
    let [m0, m1, m2, m3, v0, v1, r0, r1, l @ .., c0, c1, c2, c3] = *head;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(CodecError::Magic { found: [m0, m1, m2, m3] });
    }
    let version = u16::from_le_bytes([v0, v1]);
    if version != VERSION {
        return Err(CodecError::Version { found: version });
    }
    let reserved = u16::from_le_bytes([r0, r1]);
    if reserved != 0 {
        return Err(CodecError::Reserved { found: reserved });
    }
    let length = u64::from_le_bytes(l);
    if length > limit {
        return Err(CodecError::TooLong { length, limit });
    }
    Ok((length, u32::from_le_bytes([c0, c1, c2, c3])))
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0_u32; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { 0xEDB8_8320 ^ (value >> 1) } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

/// CRC-32 with the IEEE polynomial, as in zip and Ethernet.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        let [low, ..] = crc.to_le_bytes();
        (crc >> 8) ^ CRC_TABLE[usize::from(low ^ byte)]
    };
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Sample {
        name: String,
        numbers: Vec<u64>,
        inner: Option<(i8, f32)>,
    }

    fn sample() -> Sample {
        Sample { name: "x\u{e9}".into(), numbers: vec![1, u64::MAX], inner: Some((-3, 0.5)) }
    }

    #[test]
    fn the_checksum_is_the_ieee_one() {
        // The check value that catalogues of checksums give for this polynomial.
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn integers_are_fixed_width_and_little_endian() {
        assert_eq!(encode(&0x0102_0304_u32, 64).unwrap(), [4, 3, 2, 1]);
        assert_eq!(encode(&[7_u16, 8][..], 64).unwrap(), [2, 0, 0, 0, 0, 0, 0, 0, 7, 0, 8, 0]);
    }

    #[test]
    fn values_and_frames_come_back() {
        let bytes = encode(&sample(), 1024).unwrap();
        assert_eq!(decode::<Sample>(&bytes, 1024).unwrap(), sample());
        let mut wire = frame(&bytes);
        write_frame(&mut wire, b"").unwrap();
        let mut reader: &[u8] = &wire;
        assert_eq!(read_frame(&mut reader, 1024).unwrap(), bytes);
        assert_eq!(read_frame(&mut reader, 1024).unwrap(), b"");
        assert!(reader.is_empty());
        let (body, rest) = split_frame(&wire, 1024).unwrap();
        assert_eq!((body, rest.len()), (&*bytes, HEAD));
    }

    #[test]
    fn limits_hold_both_ways() {
        assert!(matches!(encode(&sample(), 8), Err(CodecError::Value(_))));
        let bytes = encode(&sample(), 1024).unwrap();
        assert!(matches!(decode::<Sample>(&bytes, 8), Err(CodecError::TooLong { .. })));
        let error = read_frame(&mut &*frame(&bytes), 8).unwrap_err();
        assert!(matches!(error, CodecError::TooLong { limit: 8, .. }), "{error}");
        let mut longer = bytes;
        longer.push(0);
        assert!(matches!(decode::<Sample>(&longer, 1024), Err(CodecError::Value(_))));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = encode(&sample(), 1024).unwrap();
        let wire = frame(&bytes);
        for end in 0..wire.len() {
            let read = read_frame(&mut &wire[..end], 1024);
            assert!(matches!(read, Err(CodecError::Truncated { .. })), "{end}: {read:?}");
            assert!(matches!(split_frame(&wire[..end], 1024), Err(CodecError::Truncated { .. })));
        }
        for end in 0..bytes.len() {
            assert!(decode::<Sample>(&bytes[..end], 1024).is_err(), "{end}");
        }
    }

    #[test]
    fn every_flipped_bit_is_an_error() {
        let wire = frame(&encode(&sample(), 1024).unwrap());
        for bit in 0..wire.len() * 8 {
            let mut bad = wire.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read_frame(&mut &*bad, 1024).is_err(), "bit {bit}");
            assert!(split_frame(&bad, 1024).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn scenario_33_a_promised_length_takes_no_memory() {
        /// Counts what is asked of it; gives a head that promises the whole limit, then ends.
        struct Liar(Vec<u8>, usize);
        impl Read for Liar {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                self.1 = self.1.max(into.len());
                let count = into.len().min(self.0.len());
                into[..count].copy_from_slice(&self.0[..count]);
                self.0.drain(..count);
                Ok(count)
            }
        }
        let mut promise = head(b"");
        promise[8..16].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        let mut liar = Liar(promise.to_vec(), 0);
        let error = read_frame(&mut liar, 1 << 41).unwrap_err();
        assert!(
            matches!(error, CodecError::Truncated { found: 0, expected } if expected == 1 << 40)
        );
        assert!(liar.1 <= FIRST_CHUNK as usize, "{} bytes were asked for at once", liar.1);
        // A vector that claims 2^60 elements: refused before memory is taken for them.
        let mut claim = (1_u64 << 60).to_le_bytes().to_vec();
        claim.extend([0; 32]);
        assert!(decode::<Vec<u64>>(&claim, 1 << 20).is_err());
        assert!(decode::<String>(&claim, 1 << 20).is_err());
    }

    #[test]
    fn garbage_is_an_error_and_never_a_panic() {
        let mut state = 9_u64;
        for round in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..round % 97 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                bytes.push((state >> 56) as u8);
            }
            assert!(read_frame(&mut &*bytes, 1 << 16).is_err());
            assert!(split_frame(&bytes, 1 << 16).is_err());
            let _ = decode::<Sample>(&bytes, 1 << 16);
            let _ = decode::<Vec<Vec<String>>>(&bytes, 1 << 16);
        }
    }

    #[test]
    fn stats_and_traces_are_equal_in_json_and_on_the_wire() {
        use crate::histogram::Histogram;
        use crate::metrics::{
            ActorStats, DeviceStats, EdgeStats, FanOutStats, Mark, PipelineState, Stats,
        };
        let mut latency = Histogram::default();
        latency.record(u64::MAX);
        let stats = Stats {
            name: "p".into(),
            state: PipelineState::Draining,
            uptime_ns: 5,
            in_flight: 1,
            in_flight_limit: 2,
            admission: Default::default(),
            admitted: 3,
            completed: 2,
            failed: 1,
            filtered: 1,
            latency: latency.clone(),
            first: None,
            began: Some(Mark { items: 0, at_ns: 1 }),
            filled: None,
            fed: None,
            last: Some(Mark { items: 2, at_ns: 4 }),
            actors: vec![ActorStats { name: "a".into(), ..ActorStats::default() }],
            edges: vec![EdgeStats { taker: Some(0), ..EdgeStats::default() }],
            devices: vec![DeviceStats {
                device: "cpu".into(),
                lanes: 1,
                held: 0,
                poisoned: 0,
                busy_ns: 4,
                computing: 2,
            }],
            fan_outs: vec![FanOutStats { actor: "f".into(), children: 1, peak: 2, limit: 3 }],
            cpu: crate::cpu::CpuStats::default(),
            notices: vec!["n".into()],
            stalls: vec![],
            stall_count: 0,
            detached: vec!["a".into()],
            ..Stats::default()
        };
        let wire: Stats = decode(&encode(&stats, 4096).unwrap(), 4096).unwrap();
        let json: Stats = serde_json::from_str(&serde_json::to_string(&stats).unwrap()).unwrap();
        assert_eq!((&wire, &json), (&stats, &stats));
    }
}

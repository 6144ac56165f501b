//! Files made by hand, byte by byte.

use super::write::Writer;
use super::*;
use crate::ErrorKind;
use crate::import::mutate::Mutator;

fn parse(bytes: &[u8]) -> Result<GgufFile> {
    GgufFile::parse(Buffer::copy_of(bytes), &Limits::default())
}

/// Two blocks of Q8_0 in a row, an f32 tensor, and metadata of several kinds.
fn sample(version: u32, big_endian: bool) -> Writer {
    let mut w = Writer::new(version, big_endian);
    let architecture = w.text("test");
    w.value("general.architecture", 8, architecture);
    let n = w.u32(7);
    w.value("test.block_count", 4, n);
    let mut list = w.u32(8);
    list.extend(w.count(2));
    list.extend(w.text("one"));
    list.extend(w.text("two"));
    w.value("test.words", 9, list);
    let plain: Vec<u8> = [1.5_f32, -2.0, 3.0, 4.0, 5.0, 6.0]
        .iter()
        .flat_map(|v| if big_endian { v.to_be_bytes() } else { v.to_le_bytes() })
        .collect();
    w.tensor("plain", &[3, 2], 0, &plain);
    let mut blocks = Vec::new();
    for scale in [0x3800_u16, 0x4000] {
        blocks.extend(if big_endian { scale.to_be_bytes() } else { scale.to_le_bytes() });
        blocks.extend((0..32).map(|i| (i as i8 - 16).cast_unsigned()));
    }
    w.tensor("blocks", &[64], 8, &blocks);
    w
}

#[test]
fn versions_and_byte_orders_are_read_alike() {
    for version in 1..=3 {
        for big_endian in [false, true] {
            let file = parse(&sample(version, big_endian).finish()).unwrap();
            assert_eq!((file.version(), file.is_big_endian()), (version, big_endian));
            assert_eq!(file.metadata().text("general.architecture").unwrap(), "test");
            assert_eq!(file.metadata().number("test.block_count").unwrap(), 7);
            let words = file.metadata().list("test.words").unwrap();
            assert_eq!(words.as_strings().unwrap(), ["one", "two"]);
            let plain = file.tensor("plain").unwrap();
            assert_eq!(plain.shape, [2, 3]);
            let plain = file.array(plain).unwrap();
            assert_eq!(plain.as_slice::<f32>().unwrap(), [1.5, -2.0, 3.0, 4.0, 5.0, 6.0]);
            let blocks = file.array(file.tensor("blocks").unwrap()).unwrap();
            let blocks = blocks.as_slice::<f32>().unwrap();
            assert_eq!((blocks[0], blocks[31]), (-8.0, 7.5));
            assert_eq!((blocks[32], blocks[63]), (-32.0, 30.0));
        }
    }
}

#[test]
fn a_format_without_kernels_is_listed_and_refused_by_name() {
    let mut w = Writer::new(3, false);
    w.tensor("odd", &[256], 19, &[0; 50]);
    let file = parse(&w.finish()).unwrap();
    let error = file.array(file.tensor("odd").unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("IQ1_S") && error.to_string().contains("`odd`"), "{error}");
}

#[test]
fn every_truncation_is_refused() {
    let whole = sample(3, false).finish();
    for end in 0..whole.len() {
        assert!(parse(&whole[..end]).is_err(), "cut at {end}");
    }
    assert!(parse(&whole).is_ok());
}

/// Scenario 36: small files that ask for gigabytes, products that overflow, absurd alignments.
#[test]
fn scenario_36_claims_are_checked_against_the_file() {
    let error = |w: &Writer| parse(&w.finish()).unwrap_err();
    // A 160-byte file with a tensor of 16 GiB.
    let mut w = Writer::new(3, false);
    w.tensors.push(("big".into(), vec![1 << 16, 1 << 16], 0, 0));
    w.data = vec![0; 64];
    let said = error(&w).to_string();
    assert!(said.contains("`big`"), "{said}");
    for extents in [vec![1 << 32, 1 << 32, 2], vec![u64::MAX, u64::MAX], vec![u64::MAX]] {
        let mut w = Writer::new(3, false);
        w.tensors.push(("over".into(), extents, 0, 0));
        let said = error(&w).to_string();
        assert!(said.contains("`over`"), "{said}");
    }
    for (offset, named) in [(u64::MAX - 31, "`t`"), (1 << 40, "`t`"), (7, "`t`")] {
        let mut w = Writer::new(3, false);
        w.tensors.push(("t".into(), vec![4], 0, offset));
        w.data = vec![0; 64];
        assert!(error(&w).to_string().contains(named));
    }
    for alignment in [0_u32, 3, 1 << 30] {
        let mut w = sample(3, false);
        let value = w.u32(alignment);
        w.value("general.alignment", 4, value);
        assert!(error(&w).to_string().contains("general.alignment"));
    }
    // Counts and lengths that the file cannot hold.
    for at in [8, 16, 24] {
        let mut bytes = sample(3, false).finish();
        bytes[at..at + 8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        let said = parse(&bytes).unwrap_err();
        assert!(said.to_string().contains("claims"), "{said}");
    }
    // Thirty lists within each other.
    let mut w = Writer::new(3, false);
    let mut list = Vec::new();
    for _ in 0..30 {
        list.extend(w.u32(9));
        list.extend(w.count(1));
    }
    w.value("deep", 9, list);
    assert_eq!(error(&w).kind(), ErrorKind::Limit);
}

/// Scenario 37: tensors that overlap, share a name, or are no whole blocks.
#[test]
fn scenario_37_tensors_that_contradict_each_other_are_refused_by_name() {
    let mut w = Writer::new(3, false);
    w.tensor("a", &[64], 0, &[0; 256]);
    w.tensors.push(("b".into(), vec![4], 0, 128));
    let said = parse(&w.finish()).unwrap_err().to_string();
    assert!(said.contains("`a`") && said.contains("`b`") && said.contains("overlap"), "{said}");
    let mut w = Writer::new(3, false);
    w.tensor("a", &[1], 0, &[0; 4]);
    w.tensor("a", &[1], 0, &[0; 4]);
    assert_eq!(parse(&w.finish()).unwrap_err().kind(), ErrorKind::Duplicate);
    let mut w = Writer::new(3, false);
    w.tensor("partial", &[33], 8, &[0; 68]);
    assert!(parse(&w.finish()).unwrap_err().to_string().contains("whole blocks"));
    // Zero elements take no bytes and lie anywhere within the file.
    let mut w = Writer::new(3, false);
    w.tensor("none", &[0, 5], 0, &[]);
    w.tensor("one", &[1], 0, &[0; 4]);
    let file = parse(&w.finish()).unwrap();
    assert!(file.array(file.tensor("none").unwrap()).unwrap().is_empty());
}

/// Each number of the header in turn is one that no file means: it is refused or harmless.
#[test]
fn every_number_of_the_header_may_be_absurd() {
    for (version, big_endian) in [(1, false), (2, true), (3, false), (3, true)] {
        let whole = sample(version, big_endian).finish();
        let header = whole.len() - 68 - 32;
        let mut refused = 0;
        for at in 4..header {
            for number in [0, 1, 1 << 30, 1 << 31, 1 << 32, 1 << 60, 1 << 63, u64::MAX] {
                let mut bytes = whole.clone();
                let wide = if big_endian { number.to_be_bytes() } else { number.to_le_bytes() };
                bytes[at..at + 8].copy_from_slice(&wide);
                refused += usize::from(parse(&bytes).is_err());
                fuzz_gguf(&bytes);
            }
        }
        assert!(refused > header * 5, "{refused} of {}", header * 8);
    }
}

#[test]
fn texts_that_are_not_utf8_are_kept_as_they_are_and_names_must_be() {
    let mut w = Writer::new(3, false);
    let mut odd = w.u64(2);
    odd.extend([0xC3, 0x28]);
    w.value("odd", 8, odd.clone());
    let mut list = w.u32(8);
    list.extend(w.count(2));
    list.extend(w.text("a"));
    list.extend(&odd);
    w.value("list", 9, list);
    let file = parse(&w.finish()).unwrap();
    assert_eq!(file.metadata().get("odd"), Some(&GgufValue::Bytes(vec![0xC3, 0x28])));
    let list = file.metadata().list("list").unwrap();
    assert!(list.as_strings().is_none());
    assert_eq!(list.get(1), Some(GgufValue::Bytes(vec![0xC3, 0x28])));
    let mut bytes = w.finish();
    let at = bytes.windows(4).position(|w| w == b"list").unwrap();
    bytes[at] = 0xFF;
    assert!(parse(&bytes).unwrap_err().to_string().contains("UTF-8"));
}

#[test]
fn types_that_the_format_gave_up_are_refused_by_name() {
    let mut w = Writer::new(3, false);
    w.tensors.push(("w".into(), vec![32], 31, 0));
    w.data = vec![0; 64];
    let error = parse(&w.finish()).unwrap_err();
    assert!(error.to_string().contains("Q4_0_4_4") && error.to_string().contains("`w`"), "{error}");
    w.tensors[0].2 = 999;
    assert!(parse(&w.finish()).unwrap_err().to_string().contains("999"));
}

#[test]
fn mutated_files_end_in_tensors_or_an_error() {
    let mut random = Mutator::new(0x66F);
    for version in 1..=3 {
        let whole = sample(version, version == 2).finish();
        for _ in 0..8000 {
            fuzz_gguf(&random.mutate(&whole));
        }
    }
}

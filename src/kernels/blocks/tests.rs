//! Blocks decoded by an independent reader (the `gguf` Python package), and formats that it lacks.

use super::*;

#[derive(serde::Deserialize)]
struct Reference {
    format: String,
    blocks: String,
    values: String,
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

#[test]
fn every_format_decodes_as_the_reference_does_to_the_bit() {
    let text = include_str!("../../../tests/weights/blocks.json");
    let references: Vec<Reference> = serde_json::from_str(text).unwrap();
    let mut seen: Vec<&str> = Vec::new();
    for r in &references {
        let format = BlockFormat::named(&r.format).unwrap();
        seen.push(format.name);
        let (blocks, values) = (hex(&r.blocks), hex(&r.values));
        let want: Vec<f32> =
            values.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
        let mut got = vec![f32::NAN; want.len()];
        format.decode(&blocks, &mut got).unwrap();
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            // The reference may subtract its way to the other zero.
            assert!(
                g.to_bits() == w.to_bits() || (*g == 0.0 && *w == 0.0),
                "{} {i}: {g} {w}",
                r.format
            );
        }
    }
    let others: Vec<&str> = FORMATS.iter().map(|f| f.name).filter(|n| !seen.contains(n)).collect();
    // Formats of activations, which the reference does not decode.
    assert_eq!(others, ["Q8_1", "Q8_K"]);
}

#[test]
fn the_formats_of_activations_are_a_scale_times_bytes() {
    let quants: Vec<u8> = (0..=255).map(|i: i32| (i - 128) as i8 as u8).collect();
    let mut q8_1 = vec![0x00, 0x38, 0xFF, 0xFF];
    q8_1.extend(&quants[112..144]);
    let mut out = [0.0; 32];
    BlockFormat::named("Q8_1").unwrap().decode(&q8_1, &mut out).unwrap();
    assert_eq!((out[0], out[16], out[31]), (-8.0, 0.0, 7.5));
    let mut q8_k = 0.25_f32.to_le_bytes().to_vec();
    q8_k.extend(&quants);
    q8_k.extend([0xFF; 32]);
    let mut out = [0.0; 256];
    BlockFormat::named("Q8_K").unwrap().decode(&q8_k, &mut out).unwrap();
    assert_eq!((out[0], out[128], out[255]), (-32.0, 0.0, 31.75));
}

#[test]
fn rows_of_the_table_are_sound() {
    for (i, f) in FORMATS.iter().enumerate() {
        assert!(FORMATS[..i].iter().all(|g| g.name != f.name && g.gguf != f.gguf), "{}", f.name);
        assert_eq!(BlockFormat::from_gguf(f.gguf).unwrap().name, f.name);
        assert!(f.fields.iter().all(|(at, size)| at + size <= f.bytes), "{}", f.name);
        assert_eq!(f.bytes_of(3 * f.weights), Some(3 * f.bytes));
        assert_eq!(f.bytes_of(f.weights + 1), None);
        let mut out = vec![0.0; f.weights];
        assert!(f.decode(&vec![0; f.bytes - 1], &mut out).is_err(), "{}", f.name);
        assert!(f.decode(&vec![0; f.bytes], &mut out[1..]).is_err(), "{}", f.name);
        // No bytes make it panic.
        for byte in [0x00, 0x7F, 0x80, 0xFF] {
            f.decode(&vec![byte; f.bytes], &mut out).unwrap();
        }
    }
}

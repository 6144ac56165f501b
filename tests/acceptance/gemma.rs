//! A language model from a GGUF file, as the example builds it, beside a forward pass in numpy.

use std::path::Path;

use brigade::Tensor;
use brigade::import::{GgufFile, Limits, read_npy};
use serde_json::Value;

use super::models;

#[path = "../../examples/gemma/config.rs"]
mod config;
#[path = "../../examples/gemma/decoder.rs"]
pub(crate) mod decoder;
#[path = "../../examples/gemma/generate.rs"]
#[allow(dead_code, reason = "the program uses the rest")]
pub(crate) mod generate;
#[path = "../../examples/gemma/tokenizer.rs"]
#[allow(dead_code, reason = "the program uses the rest")]
mod tokenizer;

use generate::{Generated, Generator, Options, greedy};
use tokenizer::Tokenizer;

/// How many tokens the reference generates.
pub(crate) const STEPS: usize = 16;
/// How much of a direction the logits of the reference and ours have in common, at least.
const COSINE: f64 = 0.999;

pub(crate) struct Prompt {
    pub(crate) name: String,
    pub(crate) tokens: Vec<i64>,
    pub(crate) greedy: Vec<i64>,
    logits: Tensor,
}

fn whole(list: &Value) -> Vec<i64> {
    list.as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect()
}

fn reference(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("reference/gemma.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(crate) fn prompts(folder: &Path) -> Vec<Prompt> {
    let rows = reference(folder);
    let prompts = rows["prompts"].as_array().unwrap().iter().map(|row| Prompt {
        name: row["name"].as_str().unwrap().to_owned(),
        tokens: whole(&row["tokens"]),
        greedy: whole(&row["greedy"]),
        logits: read_npy(folder.join("reference").join(row["logits"].as_str().unwrap())).unwrap(),
    });
    prompts.collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn texts_become_the_tokens_of_the_reference_and_texts_again() {
    let Some(folder) = models::gemma() else { return };
    let _turn = models::turn();
    let file = GgufFile::open(folder.join(models::GEMMA), &Limits::default()).unwrap();
    let tokenizer = Tokenizer::read(file.metadata()).unwrap();
    let reference = reference(&folder);
    let texts = reference["texts"].as_array().unwrap();
    assert!(texts.len() >= 15);
    for row in texts {
        let text = row["text"].as_str().unwrap();
        let tokens = tokenizer.encode(text);
        assert_eq!(tokens[1..], whole(&row["tokens"]), "{text:?}");
        // What stands for a space in pieces comes back as one.
        assert_eq!(tokenizer.decode(&tokens), text.replace('\u{2581}', " "), "{text:?}");
    }
    for row in reference["prompts"].as_array().unwrap() {
        assert_eq!(tokenizer.encode(row["text"].as_str().unwrap()), whole(&row["tokens"]));
        let said = tokenizer.decode(&whole(&row["greedy"]));
        assert_eq!(said, row["continuation"].as_str().unwrap());
    }
}

#[test]
fn a_decoder_over_packed_weights_says_what_the_reference_says_whole_and_cut() {
    let Some(folder) = models::gemma() else { return };
    let _turn = models::turn();
    let prompts = prompts(&folder);
    let longest = prompts.iter().map(|p| p.tokens.len()).max().unwrap();
    assert!(prompts.len() >= 3 && longest > 512, "one prompt is to be longer than the window");
    let path = folder.join(models::GEMMA);
    let file = GgufFile::open(&path, &Limits::default()).unwrap();
    for stages in [1, 2, 4] {
        let options = Options {
            stages,
            threads: 1,
            positions: longest + STEPS,
            streams: prompts.len(),
            packed: true,
        };
        let generator = Generator::open(&path, &file, options).unwrap();
        assert_eq!(generator.pipeline.sequential().num_segments(), stages);
        says_what_the_reference_says(&generator, &prompts, stages);
    }
}

/// One prompt after the other, then all of them in flight. The prompt that is longer than the window
/// takes its time: it is run sequentially where the decoder is whole, and streamed where it is cut.
fn says_what_the_reference_says(generator: &Generator, prompts: &[Prompt], stages: usize) {
    let (short, all): (Vec<usize>, Vec<usize>) = (
        (0..prompts.len()).filter(|k| prompts[*k].tokens.len() < 100).collect(),
        (0..prompts.len()).collect(),
    );
    let (alone, together) = if stages == 1 { (&all, &short) } else { (&short, &all) };
    let mut least = vec![1.0_f64; prompts.len()];
    let mut near = |k: usize, step: usize, logits: &Tensor| {
        let want = prompts[k].logits.rows(step, 1).unwrap();
        let near = cosine(logits.as_slice::<f32>().unwrap(), want.as_slice::<f32>().unwrap());
        assert!(near >= COSINE, "{} at {step}, {stages} segments: {near}", prompts[k].name);
        least[k] = least[k].min(near);
    };
    let given = |which: &[usize]| -> Vec<Vec<i64>> {
        which.iter().map(|k| prompts[*k].tokens.clone()).collect()
    };
    let as_the_reference = |run: &Generated, which: &[usize]| {
        for (tokens, k) in run.tokens.iter().zip(which) {
            assert_eq!(*tokens, prompts[*k].greedy, "{}, {stages} segments", prompts[*k].name);
        }
    };
    let mut kept: Vec<Vec<Tensor>> = vec![Vec::new(); prompts.len()];
    let sequential = generator
        .sequential(&given(alone), &mut |i, step, logits| {
            if step == STEPS {
                return Ok(None);
            }
            near(alone[i], step, logits);
            kept[alone[i]].push(logits.clone());
            greedy(logits).map(Some)
        })
        .unwrap();
    as_the_reference(&sequential, alone);

    let streamed = generator
        .streamed(&given(together), &mut |i, step, logits| {
            if step == STEPS {
                return Ok(None);
            }
            let k = together[i];
            near(k, step, logits);
            // To the bit what the sequential run gave, where there was one.
            if let Some(want) = kept[k].get(step) {
                let same = logits.as_bytes() == want.as_bytes();
                assert!(same, "{} differs at {step}, {stages} segments", prompts[k].name);
            }
            greedy(logits).map(Some)
        })
        .unwrap();
    as_the_reference(&streamed, together);
    let names = prompts.iter().map(|p| p.name.as_str()).zip(&least).collect::<Vec<_>>();
    let seconds = |run: &Generated| (run.prompts + run.rest).as_secs_f64();
    let (one, other) = (seconds(&sequential), seconds(&streamed));
    eprintln!("{stages} segments: {one:.1} s and {other:.1} s, least cosines {names:?}");
}

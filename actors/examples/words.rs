//! A pipeline of plain functions, without a model: how readable is a text?
//!
//! Paragraphs stream in. Each is cut into words (fan-out), what is no word is filtered out, words are
//! put together into batches, their syllables counted, and the counts of a paragraph collected into one
//! line about it. All stages work at once, on different paragraphs.
//!
//! ```console
//! $ cargo run --release -p brigade-actors --example words -- README.md
//! ```
#![allow(clippy::print_stdout, reason = "it is a program")]

use std::error::Error;

use brigade_actors::{Batching, Flow, ItemError, Options, Payload, Pipeline};

/// What flows from stage to stage.
#[derive(Clone, Debug)]
enum Token {
    Text(String),
    Words(Vec<String>),
    Syllables(Vec<usize>),
}

impl Payload for Token {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Words(words) => words.iter().map(String::len).sum(),
            Self::Syllables(counts) => size_of_val(counts.as_slice()),
        }
    }

    fn share(&self) -> Self {
        self.clone()
    }
}

fn wrong(token: &Token) -> ItemError {
    ItemError::failed(format!("unexpected {token:?}"))
}

/// The words of a paragraph: its children.
fn cut(token: Token) -> Result<Vec<Token>, ItemError> {
    match token {
        Token::Text(text) => {
            let bare =
                |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
            Ok(text.split_whitespace().map(|word| Token::Text(bare(word))).collect())
        }
        other => Err(wrong(&other)),
    }
}

fn is_word(token: &Token) -> bool {
    matches!(token, Token::Text(word) if !word.is_empty() && word.chars().all(char::is_alphabetic))
}

fn together(tokens: Vec<Token>) -> Result<Token, ItemError> {
    let word = |token| match token {
        Token::Text(word) => Ok(word),
        other => Err(wrong(&other)),
    };
    tokens.into_iter().map(word).collect::<Result<_, _>>().map(Token::Words)
}

/// Runs of vowels, at least one.
fn syllables(token: Token) -> Result<Token, ItemError> {
    let Token::Words(words) = token else {
        return Err(wrong(&token));
    };
    let count = |word: String| {
        let vowel = |c: char| "aeiouy".contains(c);
        let (runs, _) = word.chars().fold((0, false), |(runs, inside), c| {
            (runs + usize::from(vowel(c) && !inside), vowel(c))
        });
        runs.max(1)
    };
    Ok(Token::Syllables(words.into_iter().map(count).collect()))
}

fn apart(token: Token, members: usize) -> Result<Vec<Token>, ItemError> {
    match token {
        Token::Syllables(counts) if counts.len() == members => {
            Ok(counts.into_iter().map(|count| Token::Syllables(vec![count])).collect())
        }
        other => Err(wrong(&other)),
    }
}

fn summary(tokens: Vec<Token>) -> Result<Token, ItemError> {
    let words = tokens.len();
    let count = |token: Token| match token {
        Token::Syllables(counts) => counts.iter().sum(),
        Token::Text(_) | Token::Words(_) => 0,
    };
    let syllables: usize = tokens.into_iter().map(count).sum();
    let mean = syllables as f64 / words.max(1) as f64;
    Ok(Token::Text(format!("{words:5} words, {mean:.2} syllables a word")))
}

fn main() -> Result<(), Box<dyn Error>> {
    let text = match std::env::args().nth(1) {
        Some(file) => std::fs::read_to_string(file)?,
        None => "A bucket brigade moves water faster than one runner.\n\n\
                 Everybody in the line is busy at once.\n\n42 + 1 = 43"
            .into(),
    };
    let paragraphs: Vec<String> = text.split("\n\n").map(String::from).collect();

    let topology = Flow::source("paragraph")
        .flat_map("cut", "cutting", cut)
        .filter("is a word", "cutting", is_word)
        .batch("together", "cutting", Batching::up_to(64), together)
        .map("syllables", "counting", syllables)
        .unbatch("apart", "summing", apart)
        .collect_values("summary", "summing", summary)
        .build("summary")?;
    let pipeline = Pipeline::spawn(topology, Options::new().name("words"))?;

    let inputs = paragraphs.clone().into_iter().map(|paragraph| vec![Token::Text(paragraph)]);
    for (paragraph, result) in paragraphs.iter().zip(pipeline.stream(inputs)) {
        let start: String = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        let start: String = start.chars().take(40).collect();
        match result?.as_slice() {
            [Token::Text(line)] => println!("{start:40} {line}"),
            other => println!("{start:40} {other:?}"),
        }
    }
    let stats = pipeline.stats();
    println!("{} paragraphs in {:.1} ms", stats.completed, stats.uptime_ns as f64 / 1e6);
    for actor in &stats.actors {
        println!("  {:10} {:6} firings on {}", actor.name, actor.items, actor.device);
    }
    Ok(())
}

//! What a coordinator asks of the devices of a worker: which nodes they run.

use brigade_actors::codec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::message::cut;
use crate::device::Support;
use crate::error::{Result, err};
use crate::graph::{Fact, Node};

/// The most bytes of a question, and of its answers.
pub(crate) const MAX_QUESTION_BYTES: u64 = 16 << 20;

/// The most bytes that are asked about at once: what a worker has to hold for it.
const ASKED_TOGETHER: usize = 4 << 20;

/// Nodes, each with the facts of its inputs.
pub(crate) type Question = Vec<(Node, Vec<Option<Fact>>)>;

/// Whether a device runs a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Yes,
    Narrowed(String),
    No(String),
}

/// One for each node of a [`Question`].
pub(crate) type Answers = Vec<Answer>;

impl From<Support> for Answer {
    fn from(support: Support) -> Self {
        match support {
            Support::Yes => Self::Yes,
            Support::Narrowed(why) => Self::Narrowed(cut(why)),
            Support::No(why) => Self::No(cut(why)),
        }
    }
}

impl From<Answer> for Support {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Yes => Self::Yes,
            Answer::Narrowed(why) => Self::Narrowed(why),
            Answer::No(why) => Self::No(why),
        }
    }
}

/// A question or its answers as payload.
///
/// # Errors
/// If they take more than [`MAX_QUESTION_BYTES`].
pub(crate) fn encode(what: &impl Serialize) -> Result<Vec<u8>> {
    codec::encode(what, MAX_QUESTION_BYTES).map_err(|e| {
        err!(Limit, "it takes more than {MAX_QUESTION_BYTES} bytes to ask what a device supports")
            .with_source(e)
    })
}

/// The question or the answers in a payload.
///
/// # Errors
/// If the bytes are none.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    codec::decode(bytes, MAX_QUESTION_BYTES)
        .map_err(|e| err!(Format, "the bytes are no question about nodes").with_source(e))
}

/// Nodes as questions of a bounded size, encoded: each with how many nodes it has.
///
/// # Errors
/// If one node alone is too large.
pub(crate) fn questions(nodes: &[(&Node, Vec<Option<Fact>>)]) -> Result<Vec<(usize, Vec<u8>)>> {
    let mut out = Vec::new();
    let mut rest = nodes;
    while !rest.is_empty() {
        let (mut count, mut bytes) = (0, 8);
        // Node by node, so that what is asked together has a bounded size.
        for node in rest {
            let size = encode(node)?.len();
            if count > 0 && bytes + size > ASKED_TOGETHER {
                break;
            }
            (count, bytes) = (count + 1, bytes + size);
        }
        let (now, later) = rest.split_at(count);
        out.push((count, encode(&now)?));
        rest = later;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, Tensor};

    #[test]
    fn many_nodes_are_asked_about_in_parts_that_come_back() {
        let node = |n: usize| {
            let mut node = Node {
                name: format!("n{n}"),
                op: "Constant".to_owned(),
                domain: String::new(),
                version: 13,
                inputs: Vec::new(),
                outputs: Vec::new(),
                attributes: Default::default(),
                captures: 0,
            };
            let value = Tensor::zeros(DType::F32, [1 << 18]).unwrap();
            node.attributes.insert("value".to_owned(), value.into());
            node
        };
        let all: Vec<Node> = (0..9).map(node).collect();
        let asked: Vec<(&Node, Vec<Option<Fact>>)> =
            all.iter().map(|n| (n, vec![None, Some(Fact::unknown())])).collect();
        let parts = questions(&asked).unwrap();
        assert_eq!(parts.iter().map(|p| p.0).sum::<usize>(), 9);
        assert!(parts.len() >= 3, "{}", parts.len());
        let mut back: Question = Vec::new();
        for (count, bytes) in &parts {
            assert!(bytes.len() <= ASKED_TOGETHER + (2 << 20));
            let part: Question = decode(bytes).unwrap();
            assert_eq!(part.len(), *count);
            back.extend(part);
        }
        assert!(back.iter().zip(&asked).all(|(b, a)| b.0 == *a.0 && b.1 == a.1));
        assert!(questions(&[]).unwrap().is_empty());
        assert!(decode::<Answers>(&[1, 2, 3]).is_err());
    }
}

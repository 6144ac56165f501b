//! How deep values may be nested that are read from bytes: whoever reads calls itself once for each
//! level, and bytes from elsewhere may pretend any number of them.

use std::cell::Cell;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The most levels.
const DEEPEST: usize = 128;

/// So many levels a graph within a graph counts as: reading it takes more of the stack.
const GRAPH: usize = 4;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A level, as long as it is being read.
struct Level(usize);

impl Level {
    fn enter<E: Error>(levels: usize) -> Result<Self, E> {
        let depth = DEPTH.get() + levels;
        if depth > DEEPEST {
            return Err(E::custom("nested too deep"));
        }
        DEPTH.set(depth);
        Ok(Self(levels))
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - self.0);
    }
}

/// Reads a value that may hold others of the kind that it lies in.
///
/// # Errors
/// As the value itself; if it is nested too deep.
pub(crate) fn nested<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let _level = Level::enter(1)?;
    T::deserialize(deserializer)
}

/// As [`nested`], for graphs within graphs.
///
/// # Errors
/// As [`nested`].
pub(crate) fn nested_graph<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let _level = Level::enter(GRAPH)?;
    T::deserialize(deserializer)
}

#[cfg(test)]
mod tests {
    use crate::graph::{Attribute, Dim, Graph};

    #[test]
    fn bytes_that_pretend_to_be_nested_without_end_are_an_error() {
        // A list of one term, of one factor, of the second kind: a quotient, whose dividend is next.
        let level = [&1_u64.to_le_bytes()[..], &1_u64.to_le_bytes(), &1_u32.to_le_bytes()].concat();
        let read = |bytes: &[u8]| brigade_actors::codec::decode::<Dim>(bytes, 1 << 30);
        assert!(read(&level.repeat(100_000)).is_err());
        // What the depth was does not matter for the next one, and ordinary depths are read.
        let mut dim = Dim::symbol("N");
        for _ in 0..20 {
            dim = (dim + Dim::fixed(1)).floor_div(&Dim::fixed(2));
        }
        let bytes = brigade_actors::codec::encode(&dim, 1 << 20).unwrap();
        assert_eq!(read(&bytes).unwrap(), dim);
    }

    #[test]
    fn graphs_are_nested_as_deep_as_models_are() {
        let nested = |levels: usize| {
            let mut graph = Graph::new("innermost");
            for _ in 0..levels {
                let mut outer = Graph::new("outer");
                let node = outer.add_node("n", "If", [], []);
                node.attributes.insert("then_branch".into(), Attribute::Graph(Box::new(graph)));
                graph = outer;
            }
            let bytes = brigade_actors::codec::encode(&graph, 1 << 20).unwrap();
            brigade_actors::codec::decode::<Graph>(&bytes, 1 << 20)
        };
        nested(24).unwrap();
        assert!(nested(40).unwrap_err().to_string().contains("nested too deep"));
    }
}

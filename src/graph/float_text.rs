//! Floats in files: text in JSON, which has no NaN and no infinity, and plain bits elsewhere.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) fn serialize<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        serializer.serialize_str(&format!("{value:?}"))
    } else {
        value.serialize(serializer)
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    if deserializer.is_human_readable() {
        parse(&String::deserialize(deserializer)?)
    } else {
        f32::deserialize(deserializer)
    }
}

fn parse<E: serde::de::Error>(text: &str) -> Result<f32, E> {
    text.parse().map_err(|_| E::custom(format!("`{text}` is not a float")))
}

/// The same for lists.
pub(super) mod list {
    use super::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in crate::graph) fn serialize<S: Serializer>(
        values: &[f32],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_seq(values.iter().map(|v| format!("{v:?}")))
        } else {
            values.serialize(serializer)
        }
    }

    pub(in crate::graph) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<f32>, D::Error> {
        if deserializer.is_human_readable() {
            let texts = Vec::<String>::deserialize(deserializer)?;
            texts.iter().map(|t| super::parse(t)).collect()
        } else {
            Vec::deserialize(deserializer)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Attribute, Fact, Graph};

    #[test]
    fn a_graph_round_trips_as_json_and_as_bincode() {
        let mut g = Graph::new("g");
        let x = g.add_input("x", Fact::unknown()).unwrap();
        let y = g.add_value("y", Fact::unknown()).unwrap();
        g.add_constant("c", crate::Tensor::of_i64(&[1, i64::MAX])).unwrap();
        let node = g.add_node("n", "Clip", [Some(x), None], [Some(y)]);
        node.attributes.insert("f".into(), Attribute::Float(f32::NEG_INFINITY));
        node.attributes.insert("fs".into(), Attribute::Floats(vec![0.1, f32::MIN_POSITIVE]));
        let mut sub = Graph::new("sub");
        let v = sub.add_input("v", Fact::unknown()).unwrap();
        sub.set_outputs([v]);
        node.attributes.insert("g".into(), Attribute::Graph(Box::new(sub)));
        g.set_outputs([y]);
        let json: Graph = serde_json::from_str(&serde_json::to_string(&g).unwrap()).unwrap();
        let bytes: Graph = bincode::deserialize(&bincode::serialize(&g).unwrap()).unwrap();
        assert_eq!(json, g);
        assert_eq!(bytes, g);
    }
}

//! `SparseTensorProto` messages, written out as dense tensors.

use super::external::Weights;
use super::{pb, tensor};
use crate::error::{Result, bail, err};
use crate::import::Limits;
use crate::tensor::{Buffer, DType, Shape, Tensor, element_count};

/// The dense tensor that a message stands for: its values where its indices say, and zeros (or
/// empty strings) elsewhere.
///
/// # Errors
/// `Unsupported` for dtypes that cannot be read; `Limit` if the dense tensor is too large;
/// otherwise what is wrong with it.
pub(super) fn read(
    proto: pb::SparseTensorProto,
    weights: &mut Weights<'_>,
    limits: &Limits,
) -> Result<Tensor> {
    let values = proto.values.ok_or_else(|| err!(Format, "it has no values"))?;
    let values = tensor::read(values, weights, limits).map_err(|e| e.within("its values"))?;
    let [count] = *values.shape().as_ref() else {
        bail!(Format, "its values are {}, expected one axis", values.describe());
    };
    let (shape, size) = dense(&proto.dims, values.dtype(), limits)?;
    let places = match proto.indices {
        Some(i) => {
            let i = tensor::read(i, weights, limits).map_err(|e| e.within("its indices"))?;
            places(&i, count, &shape)?
        }
        // A writer may leave out what is empty.
        None if count == 0 => Vec::new(),
        None => bail!(Format, "it has no indices"),
    };
    if values.dtype() == DType::String {
        let mut out = vec![String::new(); element_count(&shape, 1)?];
        for (at, v) in places.iter().zip(values.as_strings()?) {
            v.clone_into(&mut out[*at]);
        }
        return Tensor::from_strings(shape, out);
    }
    let width = values.dtype().size();
    let mut buffer = Buffer::zeroed(size)?;
    if let Some(bytes) = buffer.unique_bytes() {
        for (at, v) in places.iter().zip(values.as_bytes().chunks_exact(width)) {
            bytes[at * width..][..width].copy_from_slice(v);
        }
    }
    Tensor::from_buffer(values.dtype(), shape, buffer)
}

/// The shape that `dims` are, and the bytes of all its elements.
fn dense(dims: &[i64], dtype: DType, limits: &Limits) -> Result<(Shape, usize)> {
    limits.check_rank(dims.len())?;
    let extents: std::result::Result<Vec<usize>, _> =
        dims.iter().map(|d| usize::try_from(*d)).collect();
    let Ok(extents) = extents else { bail!(Format, "its dims {dims:?} are negative") };
    let shape = Shape::from(extents);
    let size = element_count(&shape, dtype.size())? * dtype.size();
    // An empty string takes its place, too.
    limits.check_tensor(size, &|| format!("the dense {dtype}{shape}"))?;
    Ok((shape, size))
}

/// Where in the dense tensor, in row-major order, each of `count` values goes.
fn places(indices: &Tensor, count: usize, shape: &Shape) -> Result<Vec<usize>> {
    let (elements, rank) = (shape.iter().product::<usize>(), shape.len());
    let all = indices.as_slice::<i64>().map_err(|e| e.within("its indices"))?;
    let inside = |i: i64, extent: usize| usize::try_from(i).ok().filter(|i| *i < extent);
    let found: Option<Vec<usize>> = match *indices.shape().as_ref() {
        [n] if n == count => all.iter().map(|i| inside(*i, elements)).collect(),
        [n, r] if n == count && r == rank && r > 0 => all
            .chunks_exact(r)
            .map(|row| {
                row.iter()
                    .zip(shape.iter())
                    .try_fold(0, |at, (i, extent)| Some(at * extent + inside(*i, *extent)?))
            })
            .collect(),
        _ => bail!(
            Format,
            "its indices are {}, expected [{count}] or [{count},{rank}]",
            indices.describe()
        ),
    };
    let Some(found) = found else { bail!(Format, "an index lies outside of its dims {shape}") };
    if found.windows(2).any(|w| w[0] >= w[1]) {
        bail!(Format, "its indices are not in ascending order, or one is there twice");
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use prost::bytes::Bytes;

    use super::super::tests::{body, error_of, floats, graph_of, model, node, subgraph, with};
    use super::*;
    use crate::ErrorKind;

    fn indices(dims: &[i64], data: &[i64]) -> pb::TensorProto {
        pb::TensorProto {
            dims: dims.to_vec(),
            data_type: Some(DType::I64 as i32),
            int64_data: data.to_vec(),
            ..Default::default()
        }
    }

    fn sparse(values: pb::TensorProto, at: pb::TensorProto, dims: &[i64]) -> pb::SparseTensorProto {
        pb::SparseTensorProto { values: Some(values), indices: Some(at), dims: dims.to_vec() }
    }

    fn parse(proto: pb::SparseTensorProto) -> Result<Tensor> {
        read(proto, &mut Weights::new(None, &crate::import::WeightCache::new()), &Limits::default())
    }

    #[test]
    fn both_kinds_of_indices_are_written_out() {
        let want = [0.0, 1.5, 0.0, 0.0, 0.0, 2.5];
        for at in [indices(&[2], &[1, 5]), indices(&[2, 2], &[0, 1, 1, 2])] {
            let t = parse(sparse(floats("s", &[1.5, 2.5]), at, &[2, 3])).unwrap();
            assert_eq!(
                (t.shape().as_ref(), t.as_slice::<f32>().unwrap()),
                (&[2, 3][..], &want[..])
            );
        }
        let words = pb::TensorProto {
            dims: vec![1],
            data_type: Some(DType::String as i32),
            string_data: vec![Bytes::from("ß")],
            ..Default::default()
        };
        let t = parse(sparse(words, indices(&[1], &[2]), &[3])).unwrap();
        assert_eq!(t.as_strings().unwrap(), ["", "", "ß"]);
        let empty = sparse(floats("s", &[]), indices(&[0], &[]), &[2]);
        assert_eq!(parse(empty).unwrap().as_slice::<f32>().unwrap(), [0.0, 0.0]);
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let two = || floats("s", &[1.0, 2.0]);
        let cases = [
            (indices(&[2], &[1, 6]), &[2, 3][..], "outside"),
            (indices(&[2], &[-1, 1]), &[2, 3], "outside"),
            (indices(&[2, 2], &[0, 1, 0, 3]), &[2, 3], "outside"),
            (indices(&[2], &[1, 1]), &[2, 3], "twice"),
            (indices(&[2], &[2, 1]), &[2, 3], "ascending"),
            (indices(&[1], &[1]), &[2, 3], "expected [2]"),
            (indices(&[2, 1], &[0, 1]), &[2, 3], "expected [2]"),
            (indices(&[2], &[0, 1]), &[-1], "negative"),
            (floats("i", &[0.0, 1.0]), &[2], "indices"),
            (indices(&[2], &[0, 1]), &[1 << 40, 1 << 40], "elements"),
        ];
        for (at, dims, word) in cases {
            let error = parse(sparse(two(), at, dims)).unwrap_err();
            assert!(error.to_string().contains(word), "{dims:?} {word}: {error}");
        }
        // A few bytes must not ask for much memory.
        let error = parse(sparse(two(), indices(&[2], &[0, 1]), &[1 << 40])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    }

    #[test]
    fn initialisers_and_constants_may_be_sparse() {
        let s = |name: &str| sparse(floats(name, &[3.0]), indices(&[1], &[1]), &[2]);
        let value = pb::AttributeProto {
            name: Some("sparse_value".to_owned()),
            sparse_tensor: Some(s("")),
            ..Default::default()
        };
        let inner = pb::GraphProto {
            sparse_initializer: vec![s("s")],
            ..body(&[], vec![node("Add", &["k", "s"], &["t"])], &["t"])
        };
        let branch = with(node("If", &["c"], &["z"]), subgraph("then_branch", inner.clone()));
        let branch = with(branch, subgraph("else_branch", inner));
        let nodes = vec![with(node("Constant", &[], &["k"]), value), branch];
        // As with the others, an input of the same name has it as its default.
        let mut g = body(&["c", "w"], nodes, &["z", "w"]);
        g.sparse_initializer = vec![s("w")];
        let graph = graph_of(&model(g.clone()));
        assert_eq!(graph.input_names().collect::<Vec<_>>(), ["c"]);
        for name in ["k", "w"] {
            let constant = graph.value(graph.find(name).unwrap()).constant.as_ref().unwrap();
            assert_eq!(constant.as_slice::<f32>().unwrap(), [0.0, 3.0], "{name}");
        }
        g.sparse_initializer[0].dims = vec![1];
        let error = error_of(&model(g));
        assert!(error.to_string().contains("sparse initialiser `w`"), "{error}");
    }
}

//! `NAME=…` arguments, and inputs that become constants.

use std::path::Path;
use std::str::FromStr;

use super::placing::by_name;
use crate::check::Case;
use crate::error::{Error, Result, bail, err};
use crate::graph::{Dim, Fact, Graph};
use crate::import;
use crate::ops::infer::bind_symbols;
use crate::tensor::{DType, Tensor, cast};

/// A name and what is said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named<T> {
    pub(super) name: String,
    pub(super) value: T,
}

/// Splits at the last `=` that leaves something sensible: values hold no `=`, names may.
fn split(text: &str) -> Result<(&str, &str)> {
    match text.rsplit_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name, value)),
        _ => Err(err!(Usage, "`{text}` is not of the form NAME=VALUE")),
    }
}

impl FromStr for Named<String> {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // A path may hold a `=`, so that the first one counts here.
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                Ok(Self { name: name.to_owned(), value: value.to_owned() })
            }
            _ => Err(err!(Usage, "`{text}` is not of the form NAME=VALUE")),
        }
    }
}

/// A shape on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extents(pub(super) Vec<usize>);

impl FromStr for Named<Extents> {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, value) = match text.strip_suffix('=') {
            Some(name) if !name.is_empty() => (name, ""),
            _ => split(text)?,
        };
        let extent = |s: &str| {
            s.trim().parse().map_err(|_| {
                err!(Usage, "`{s}` in `{text}` is no extent; write a shape as in x=1,3,48,320")
            })
        };
        let extents = match value {
            "" => Vec::new(),
            list => list.split(',').map(extent).collect::<Result<_>>()?,
        };
        Ok(Self { name: name.to_owned(), value: Extents(extents) })
    }
}

/// A batch axis on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Axis(pub(super) Option<usize>);

impl FromStr for Named<Axis> {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, value) = split(text)?;
        let axis = match value {
            "none" => None,
            digits => Some(digits.parse().map_err(|_| {
                err!(Usage, "`{value}` in `{text}` is no axis; write its number, or `none`")
            })?),
        };
        Ok(Self { name: name.to_owned(), value: Axis(axis) })
    }
}

/// Turns inputs into constants; gives them by name.
pub(super) fn bind(graph: &mut Graph, bindings: &[Named<String>]) -> Result<Vec<(String, Tensor)>> {
    let mut bound = Vec::with_capacity(bindings.len());
    for Named { name, value } in bindings {
        let tensor = if value.ends_with(".npy") {
            import::read_npy(Path::new(value))?
        } else {
            match graph.inputs().iter().find(|v| graph.value(**v).name == *name) {
                Some(v) => literal(name, &graph.value(*v).fact, value)?,
                // Binding anything says which names there are.
                None => Tensor::scalar(0_i64),
            }
        };
        graph.bind_input(name, tensor.clone())?;
        bound.push((name.clone(), tensor));
    }
    Ok(bound)
}

/// Gives inputs their shapes. The symbols that these tell become numbers in all inputs.
///
/// # Errors
/// If a name is that of no input or given twice, or a shape is not what its input declares.
pub(super) fn fix_shapes(graph: &mut Graph, shapes: &[Named<Extents>]) -> Result<()> {
    let shapes = by_name("--shape", graph, shapes, |s| s.0.clone())?;
    let given: Vec<(&str, &[usize])> =
        shapes.iter().map(|(n, s)| (n.as_str(), s.as_slice())).collect();
    let symbols = bind_symbols(graph, &given)?;
    let number = |s: &str| symbols.get(s).copied().map(Dim::fixed);
    for v in graph.inputs().to_vec() {
        let info = graph.value_mut(v);
        let declared = &mut info.fact.shape;
        match shapes.get(&info.name) {
            Some(shape) => *declared = Some(shape.iter().copied().map(Dim::of).collect()),
            None => {
                for dim in declared.iter_mut().flatten() {
                    *dim = dim.substitute(&number);
                }
            }
        }
    }
    Ok(())
}

/// Takes the inputs that are bound out of what a case feeds.
///
/// # Errors
/// If the case gives one of them something else: it would not be what was run.
pub(super) fn take_bound(case: &mut Case, bound: &[(String, Tensor)]) -> Result<()> {
    let mut differing = None;
    case.inputs.retain(|input| {
        let Some((name, tensor)) = bound.iter().find(|(name, _)| *name == input.name) else {
            return true;
        };
        if differing.is_none() && !is_same(&input.tensor, tensor) {
            let (given, bound) = (in_words(&input.tensor), in_words(tensor));
            differing = Some(
                err!(Usage, "the case gives {name} {given}, but it is bound to {bound}")
                    .with_help(format!("bind `{name}` to what the case gives")),
            );
        }
        false
    });
    differing.map_or(Ok(()), Err)
}

/// Whether two tensors hold the same; the shape of a single element does not count.
fn is_same(a: &Tensor, b: &Tensor) -> bool {
    match (single(a), single(b)) {
        (Some(a), Some(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}

/// The only element as a number, if there is one.
fn single(tensor: &Tensor) -> Option<f64> {
    match *cast(tensor, DType::F64).ok()?.as_slice::<f64>().ok()? {
        [value] => Some(value),
        _ => None,
    }
}

fn in_words(tensor: &Tensor) -> String {
    single(tensor).map_or_else(|| format!("another {}", tensor.describe()), |v| v.to_string())
}

/// The tensor of one element that a literal stands for.
fn literal(name: &str, fact: &Fact, text: &str) -> Result<Tensor> {
    let Some(dtype) = fact.dtype else {
        return Err(err!(Usage, "input `{name}` has no declared dtype, so `{text}` could be any")
            .with_help("bind it to a .npy file"));
    };
    let extents = fact.shape.as_deref().unwrap_or_default().iter().map(Dim::as_extent);
    let shape: Vec<usize> = extents.map(|n| n.unwrap_or(1)).collect();
    if shape.iter().any(|n| *n != 1) {
        return Err(err!(Usage, "input `{name}` is declared {fact}; `{text}` is one element")
            .with_help("bind it to a .npy file"));
    }
    let wrong = || err!(Usage, "`{text}` is no {dtype}, as which input `{name}` is declared");
    let tensor = match dtype {
        DType::Bool => Tensor::scalar(match text {
            "true" | "1" => true,
            "false" | "0" => false,
            _ => return Err(wrong()),
        }),
        DType::String => Tensor::from_strings([1], vec![text.to_owned()])?,
        DType::U64 => Tensor::scalar(text.parse::<u64>().map_err(|_| wrong())?),
        d if d.is_float() => {
            let value: f64 = text.parse().map_err(|_| wrong())?;
            cast(&Tensor::scalar(value), d)?
        }
        d => {
            let value: i64 = text.parse().map_err(|_| wrong())?;
            let tensor = cast(&Tensor::scalar(value), d)?;
            if cast(&tensor, DType::I64)?.item::<i64>()? != value {
                bail!(Usage, "`{text}` does not fit into {d}, as which input `{name}` is declared");
            }
            tensor
        }
    };
    tensor.reshape(shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::check::CaseInput;

    fn fact(dtype: DType, shape: &[usize]) -> Fact {
        Fact::concrete(dtype, shape)
    }

    #[test]
    fn literals_take_the_dtype_and_shape_of_their_input() {
        let get = |f: Fact, text| literal("x", &f, text);
        assert_eq!(get(fact(DType::I64, &[]), "16000").unwrap(), Tensor::scalar(16_000_i64));
        assert_eq!(get(fact(DType::U8, &[1, 1]), "7").unwrap().describe(), "u8[1,1]");
        assert_eq!(get(fact(DType::F32, &[]), "0.5").unwrap(), Tensor::scalar(0.5_f32));
        assert_eq!(get(fact(DType::Bool, &[1]), "true").unwrap().describe(), "bool[1]");
        let symbolic = Fact::new(DType::I32, [Dim::symbol("N")]);
        assert_eq!(get(symbolic, "-3").unwrap().describe(), "i32[1]");
        for (f, text) in [
            (fact(DType::U8, &[]), "256"),
            (fact(DType::I64, &[]), "1.5"),
            (fact(DType::I64, &[2]), "1"),
            (fact(DType::Bool, &[]), "yes"),
            (Fact::unknown(), "1"),
        ] {
            assert_eq!(get(f, text).unwrap_err().kind(), ErrorKind::Usage, "{text}");
        }
    }

    #[test]
    fn names_may_hold_an_equals_sign_where_values_cannot() {
        let shape: Named<Extents> = "a=b=1,2".parse().unwrap();
        assert_eq!((shape.name.as_str(), shape.value.0), ("a=b", vec![1, 2]));
        let scalar: Named<Extents> = "x=".parse().unwrap();
        assert_eq!(scalar.value.0, Vec::<usize>::new());
        let path: Named<String> = "x=a=b.npy".parse().unwrap();
        assert_eq!((path.name.as_str(), path.value.as_str()), ("x", "a=b.npy"));
        let axis: Named<Axis> = "h=none".parse().unwrap();
        assert_eq!(axis.value, Axis(None));
    }

    #[test]
    fn a_case_that_gives_something_else_is_told() {
        let case = |rate: i64| {
            let input = |name: &str, tensor| CaseInput {
                name: name.into(),
                tensor,
                role: crate::check::Role::Constant,
            };
            Case {
                name: "speech".into(),
                kind: crate::check::Kind::Call,
                inputs: vec![
                    input("x", Tensor::of_i64(&[1, 2])),
                    input("sr", Tensor::of_i64(&[rate])),
                ],
                outputs: Vec::new(),
                state: std::collections::BTreeMap::new(),
            }
        };
        let bound = [("sr".to_owned(), Tensor::scalar(16_000_i64))];
        let mut same = case(16_000);
        take_bound(&mut same, &bound).unwrap();
        assert_eq!(same.inputs.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["x"]);
        let error = take_bound(&mut case(8_000), &bound).unwrap_err();
        assert_eq!(error.message(), "the case gives sr 8000, but it is bound to 16000");
        let bound = [("x".to_owned(), Tensor::of_i64(&[1, 3]))];
        assert!(take_bound(&mut case(8_000), &bound).is_err());
    }

    #[test]
    fn shapes_turn_symbols_into_numbers_in_all_inputs() {
        let open = |symbols: [&str; 2]| Fact::new(DType::F32, symbols.map(Dim::symbol));
        let mut graph = Graph::new("g");
        let x = graph.add_input("x", open(["N", "seq"])).unwrap();
        let mask = graph.add_input("mask", open(["N", "heads"])).unwrap();
        let shape = |name: &str, extents: &[usize]| Named {
            name: name.into(),
            value: Extents(extents.to_vec()),
        };
        fix_shapes(&mut graph, &[shape("x", &[2, 7])]).unwrap();
        assert_eq!(graph.value(x).fact.to_string(), "f32[2,7]");
        assert_eq!(graph.value(mask).fact.to_string(), "f32[2,heads]");
        for (wrong, kind) in [
            (vec![shape("y", &[1])], ErrorKind::UnknownName),
            (vec![shape("x", &[2])], ErrorKind::Shape),
            (vec![shape("mask", &[3, 1])], ErrorKind::Shape),
            (vec![shape("mask", &[2, 1]), shape("mask", &[2, 1])], ErrorKind::Usage),
        ] {
            let error = fix_shapes(&mut graph, &wrong).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
    }

    #[test]
    fn binding_checks_names_and_facts() {
        let mut graph = Graph::new("g");
        graph.add_input("x", fact(DType::F32, &[2])).unwrap();
        let sr = graph.add_input("sr", fact(DType::I64, &[])).unwrap();
        let named = |name: &str, value: &str| Named { name: name.into(), value: value.into() };
        let unknown = bind(&mut graph, &[named("rate", "1")]).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::UnknownName);
        assert!(unknown.to_string().contains("`sr`"), "{unknown}");
        bind(&mut graph, &[named("sr", "8000")]).unwrap();
        assert_eq!(graph.input_names().collect::<Vec<_>>(), ["x"]);
        assert_eq!(graph.value(sr).constant, Some(Tensor::scalar(8000_i64)));
        let shape = graph.bind_input("x", Tensor::new([3], vec![0_f32; 3]).unwrap()).unwrap_err();
        assert_eq!(shape.kind(), ErrorKind::Shape);
        let dtype = graph.bind_input("x", Tensor::of_i64(&[1, 2])).unwrap_err();
        assert_eq!(dtype.kind(), ErrorKind::DType);
    }
}

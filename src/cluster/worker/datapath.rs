//! Fixed-function ranks: a worker that owns one pre-made datapath and takes no other stage.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::lock;
use crate::cluster::StageSpec;
use crate::device::{CompiledSegment, Instance, InstanceOptions};
use crate::error::{Result, err};
use crate::graph::Fact;
use crate::ops::Precision;
use crate::tensor::Value;

/// The name of the device that a worker with a fixed datapath offers.
pub(super) const DEVICE: &str = "datapath:0";

type Run = dyn FnMut(Vec<Value>) -> Result<Vec<Value>> + Send;

/// A datapath that is made already, such as one in an FPGA: a worker that owns it takes the stage
/// with its `stage_id` and its boundary, and refuses every other. The graph of that stage is not
/// compiled, and its weights are not read.
///
/// The datapath is one: sessions take turns.
///
/// ```
/// use brigade::cluster::{Datapath, Worker};
/// use brigade::graph::Fact;
/// use brigade::DType;
///
/// let fact = Fact::concrete(DType::F32, &[1, 4]);
/// let loopback = Datapath::new(
///     "loopback-4",
///     [("x", fact.clone())],
///     [("y", fact)],
///     |inputs| Ok(inputs),
/// );
/// let worker = Worker::new("fpga0").datapath(loopback);
/// assert!(format!("{worker:?}").contains("loopback-4"));
/// ```
#[derive(Clone)]
pub struct Datapath(Arc<Inner>);

struct Inner {
    stage_id: String,
    inputs: Vec<(String, Fact)>,
    outputs: Vec<(String, Fact)>,
    run: Mutex<Box<Run>>,
}

impl fmt::Debug for Datapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datapath")
            .field("stage_id", &self.0.stage_id)
            .field("contract", &self.contract())
            .finish_non_exhaustive()
    }
}

fn named<N: Into<String>>(all: impl IntoIterator<Item = (N, Fact)>) -> Vec<(String, Fact)> {
    all.into_iter().map(|(name, fact)| (name.into(), fact)).collect()
}

fn list(all: &[(String, Fact)]) -> String {
    let all: Vec<String> = all.iter().map(|(n, f)| format!("{n}: {f}")).collect();
    all.join(", ")
}

/// Whether each value that `given` describes is one that `taken` does.
fn admits(taken: &Fact, given: &Fact) -> bool {
    let dtype = taken.dtype.is_none() || taken.dtype == given.dtype;
    let shape = match (&taken.shape, &given.shape) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(taken), Some(given)) => {
            taken.len() == given.len()
                && taken
                    .iter()
                    .zip(given)
                    .all(|(t, g)| t.as_fixed().is_none() || t.as_fixed() == g.as_fixed())
        }
    };
    dtype && shape
}

impl Datapath {
    /// A datapath that takes these inputs and gives these outputs, in order. Inputs are checked
    /// before `run` sees them, outputs before anybody else does.
    pub fn new<I: Into<String>, O: Into<String>>(
        stage_id: impl Into<String>,
        inputs: impl IntoIterator<Item = (I, Fact)>,
        outputs: impl IntoIterator<Item = (O, Fact)>,
        run: impl FnMut(Vec<Value>) -> Result<Vec<Value>> + Send + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            stage_id: stage_id.into(),
            inputs: named(inputs),
            outputs: named(outputs),
            run: Mutex::new(Box::new(run)),
        }))
    }

    /// The stage that it is.
    pub fn stage_id(&self) -> &str {
        &self.0.stage_id
    }

    /// The names and facts of its inputs and outputs, in one line.
    pub fn contract(&self) -> String {
        format!("({}) -> ({})", list(&self.0.inputs), list(&self.0.outputs))
    }

    /// Checks that a stage is the one that this datapath is.
    pub(super) fn check(&self, spec: &StageSpec) -> Result<()> {
        let own = &self.0;
        if spec.wanted_stage() != Some(own.stage_id.as_str()) {
            let asked = match spec.wanted_stage() {
                Some(id) => format!("the stage `{id}`"),
                None => format!("`{}`, which has no stage id,", spec.name()),
            };
            return Err(err!(
                Plan,
                "{asked} cannot be placed on a worker that owns the fixed datapath `{}`",
                own.stage_id
            )
            .with_help("place it on another worker, or state the stage id that this one has"));
        }
        let precision = spec.compile_options().precision;
        if precision != Precision::F32 {
            let id = &own.stage_id;
            return Err(err!(Unsupported, "the datapath `{id}` does not compute in {precision}")
                .with_help("it computes as it was built: leave out the precision of its device"));
        }
        let (inputs, outputs) = (spec.inputs(), spec.outputs());
        let fits = inputs.len() == own.inputs.len()
            && outputs.len() == own.outputs.len()
            && own.inputs.iter().zip(&inputs).all(|(o, s)| o.0 == s.0 && admits(&o.1, s.1))
            && own.outputs.iter().zip(&outputs).all(|(o, s)| o.0 == s.0 && admits(s.1, &o.1));
        if !fits {
            return Err(err!(
                Plan,
                "the stage `{}` is {}, the fixed datapath is {}",
                own.stage_id,
                spec.contract(),
                self.contract()
            )
            .with_help(
                "names, dtypes and shapes of inputs and outputs must be those of the datapath",
            ));
        }
        Ok(())
    }
}

impl CompiledSegment for Datapath {
    fn inputs(&self) -> Vec<(String, Fact)> {
        self.0.inputs.clone()
    }

    fn outputs(&self) -> Vec<String> {
        self.0.outputs.iter().map(|(name, _)| name.clone()).collect()
    }

    fn weight_bytes(&self) -> usize {
        0
    }

    fn instance(&self, _: InstanceOptions) -> Result<Box<dyn Instance>> {
        Ok(Box::new(self.clone()))
    }
}

impl Instance for Datapath {
    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        let check = |what: &str, all: &[(String, Fact)], values: &[Value]| {
            if all.len() != values.len() {
                return Err(err!(Kernel, "{} {what}s of {}", values.len(), all.len()));
            }
            for ((name, fact), value) in all.iter().zip(values) {
                fact.admits(value).map_err(|e| err!(Shape, "{what} `{name}`: {e}"))?;
            }
            Ok(())
        };
        check("input", &self.0.inputs, &inputs)?;
        let outputs = lock(&self.0.run)(inputs)?;
        check("output", &self.0.outputs, &outputs)?;
        Ok(outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Dim;
    use crate::ops::builder::GraphBuilder;
    use crate::{DType, ErrorKind, Tensor};

    #[allow(clippy::needless_pass_by_value)]
    fn spec(extent: Dim) -> StageSpec {
        let mut g = GraphBuilder::new("g");
        let extent = match extent.as_extent() {
            Some(n) => n.into(),
            None => "N".into(),
        };
        let x = g.input("x", DType::F32, [extent]).unwrap();
        let y = g.relu(x).unwrap();
        StageSpec::new(g.finish([("y", y)]).unwrap())
    }

    #[test]
    fn only_the_stage_that_is_meant_is_taken() {
        let fact = |n| Fact::new(DType::F32, [n]);
        let path = |n: Dim| {
            Datapath::new("p", [("x", fact(n.clone()))], [("y", fact(n))], |v: Vec<Value>| Ok(v))
        };
        let four = path(Dim::fixed(4));
        four.check(&spec(Dim::fixed(4)).stage_id("p")).unwrap();
        path(Dim::symbol("N")).check(&spec(Dim::symbol("M")).stage_id("p")).unwrap();
        for (spec, words) in [
            (spec(Dim::fixed(4)), "`g`, which has no stage id,"),
            (spec(Dim::fixed(4)).stage_id("q"), "the stage `q` cannot be placed"),
            (
                spec(Dim::fixed(5)).stage_id("p"),
                "is (x: f32[5]) -> (y: f32[5]), the fixed datapath",
            ),
            (spec(Dim::symbol("N")).stage_id("p"), "is (x: f32[N])"),
        ] {
            let error = four.check(&spec).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Plan);
            assert!(error.message().contains(words), "{error}");
        }
    }

    #[test]
    fn values_are_checked_on_both_sides() {
        let fact = Fact::concrete(DType::F32, &[2]);
        let mut wrong = false;
        let mut path = Datapath::new("p", [("x", fact.clone())], [("y", fact)], move |v| {
            wrong = !wrong;
            Ok(if wrong { v } else { vec![Tensor::scalar(1.0_f32).into()] })
        });
        let x = Value::from(Tensor::new([2], vec![1.0_f32, 2.0]).unwrap());
        assert_eq!(path.run(vec![x.clone()]).unwrap(), std::slice::from_ref(&x));
        assert!(path.run(vec![x.clone()]).unwrap_err().message().starts_with("output `y`"));
        let three = Value::from(Tensor::new([3], vec![0.0_f32; 3]).unwrap());
        assert!(path.run(vec![three]).unwrap_err().message().starts_with("input `x`"));
        assert!(path.run(vec![x.clone(), x]).is_err());
    }
}

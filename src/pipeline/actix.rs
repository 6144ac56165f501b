//! The front door: a pipeline as an actix actor, for programs that speak in messages.
//!
//! ```
//! use actix::Actor as _;
//! use brigade::ops::builder::GraphBuilder;
//! use brigade::pipeline::{FrontDoor, Infer};
//! use brigade::{DType, Pipeline, Tensor};
//!
//! let mut g = GraphBuilder::new("double");
//! let x = g.input("x", DType::F32, ["N".into()])?;
//! let y = g.add(x, x)?;
//! let pipeline = Pipeline::builder(g.finish([("y", y)])?).spawn()?;
//!
//! let outputs = actix::System::new().block_on(async move {
//!     let door = FrontDoor::new(pipeline).start();
//!     let infer = Infer::new([("x", Tensor::new([2], vec![1.0_f32, 2.0]).unwrap())]);
//!     door.send(infer).await.expect("the actor lives")
//! })?;
//! assert_eq!(outputs[0].tensor()?.as_slice::<f32>()?, [2.0, 4.0]);
//! # Ok::<(), brigade::Error>(())
//! ```

use actix::{Actor, Context, Handler, Message, ResponseFuture};

use super::handle::Pipeline;
use crate::error::Result;
use crate::tensor::Value;

/// One item for [`FrontDoor`]; answered with the outputs in the order of declaration.
#[derive(Debug, Message)]
#[rtype(result = "Result<Vec<Value>>")]
pub struct Infer {
    inputs: Vec<(String, Value)>,
}

impl Infer {
    /// An item of named inputs.
    pub fn new<N: Into<String>, V: Into<Value>>(inputs: impl IntoIterator<Item = (N, V)>) -> Self {
        Self { inputs: inputs.into_iter().map(|(n, v)| (n.into(), v.into())).collect() }
    }
}

/// An actix actor in front of a pipeline. Its mailbox holds no item back: an item is admitted or
/// refused ([`ErrorKind::Full`](crate::ErrorKind::Full)) when its message is handled, and results
/// are awaited without blocking the arbiter.
#[derive(Clone, Debug)]
pub struct FrontDoor {
    pipeline: Pipeline,
}

impl FrontDoor {
    /// An actor in front of this pipeline; start it in a running actix system.
    pub fn new(pipeline: Pipeline) -> Self {
        Self { pipeline }
    }
}

impl Actor for FrontDoor {
    type Context = Context<Self>;
}

impl Handler<Infer> for FrontDoor {
    type Result = ResponseFuture<Result<Vec<Value>>>;

    fn handle(&mut self, message: Infer, _: &mut Self::Context) -> Self::Result {
        let ticket = self.pipeline.try_push(message.inputs);
        Box::pin(async move { ticket?.await })
    }
}

//! What an actor runs: stages, and the factories that build them.

use std::fmt;

use crate::error::ItemError;
use crate::inbox::StageWaker;
use crate::outbox::Outbox;
use crate::packet::{Firing, Seq};
use crate::sync::Arc;

/// The work of one actor.
///
/// A stage is built, run and dropped on the thread of its actor, so it need not be `Send`. There
/// are two ways to work:
///
/// - **Synchronous**: [`submit`](Stage::submit) computes and emits one payload per output port
///   before it returns.
/// - **Asynchronous**: `submit` hands the firing to a device and calls [`Outbox::defer`]. The
///   device's completion callback does nothing but [`StageWaker::wake`]; the actor then calls
///   [`poll`](Stage::poll), which emits what is finished with [`Outbox::emit_for`]. At most
///   [`slots`](Stage::slots) firings are open at a time.
///
/// An error or a panic concerns the item alone: the item travels on as an error. After a panic the
/// stage is dropped and its factory builds another one.
///
/// ```
/// use brigade_actors::{Firing, ItemError, Outbox, Stage};
///
/// /// Gives the sum and the difference of its two inputs.
/// struct Butterfly;
///
/// impl Stage<i64> for Butterfly {
///     fn submit(&mut self, firing: Firing<i64>, out: &mut Outbox<i64>) -> Result<(), ItemError> {
///         let (a, b) = (firing.inputs[0], firing.inputs[1]);
///         out.emit(0, a.checked_add(b).ok_or_else(|| ItemError::failed("sum overflows"))?);
///         out.emit(1, a.checked_sub(b).ok_or_else(|| ItemError::failed("difference overflows"))?);
///         out.recycle(firing.inputs);
///         Ok(())
///     }
/// }
/// ```
pub trait Stage<P> {
    /// How many firings may be open at a time: the sets of working buffers that the stage has.
    /// Read once, after the stage was built; 0 counts as 1.
    fn slots(&self) -> usize {
        1
    }

    /// Computes a firing, or starts to.
    ///
    /// # Errors
    ///
    /// Whatever makes this item impossible: the error becomes the item's result, and what was
    /// emitted for it is dropped.
    fn submit(&mut self, firing: Firing<P>, out: &mut Outbox<P>) -> Result<(), ItemError>;

    /// Emits what deferred firings have finished. Called after [`StageWaker::wake`], never without
    /// a reason, and only while firings are open.
    ///
    /// # Errors
    ///
    /// An error here is the error of every open firing.
    fn poll(&mut self, out: &mut Outbox<P>) -> Result<(), ItemError> {
        let _ = out;
        Ok(())
    }

    /// Asks the stage to finish what it holds back, because nothing more may come: the pipeline is
    /// draining.
    ///
    /// # Errors
    ///
    /// As [`poll`](Stage::poll).
    fn flush(&mut self, out: &mut Outbox<P>) -> Result<(), ItemError> {
        self.poll(out)
    }

    /// Says that nobody wants the result of the open firing `seq` any more. The stage still ends
    /// that firing, now or later, with its outputs or with [`Outbox::fail`].
    fn cancel(&mut self, seq: Seq, out: &mut Outbox<P>) {
        let _ = (seq, out);
    }
}

/// Builds the stage of an actor, on the actor's thread: once at the start for every replica, and once
/// more for every restart. Never called twice at a time.
pub type Factory<P> =
    Box<dyn FnMut(StageContext) -> Result<Box<dyn Stage<P>>, ItemError> + Send + 'static>;

/// What a factory gets to know about the actor that it builds for.
#[derive(Clone)]
#[non_exhaustive]
pub struct StageContext {
    /// The actor's name.
    pub actor: Arc<str>,
    /// Which replica of the actor this is, from 0; 0 where it has none.
    pub replica: usize,
    /// The device string of the actor.
    pub device: Arc<str>,
    /// Its number of input ports.
    pub inputs: usize,
    /// Its number of output ports.
    pub outputs: usize,
    /// How many stages were built for this actor, or this replica of it, before.
    pub attempt: usize,
    /// How many CPU threads the stage may compute on at once: what the system granted of what the
    /// topology asked for. 0 for an actor that asked for none.
    pub threads: usize,
    /// The cores that these are meant for, one for each thread, if the system pins its threads and
    /// has as many. With one, the actor's thread is pinned to it, and so are the threads that it
    /// starts; with several it is not, and the stage calls `affinity::pin` on its own threads.
    pub cores: Vec<usize>,
    /// Wakes the actor, so that it polls its stage. Keep a clone for completion callbacks.
    pub waker: StageWaker,
}

impl fmt::Debug for StageContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageContext")
            .field("actor", &self.actor)
            .field("replica", &self.replica)
            .field("device", &self.device)
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .field("attempt", &self.attempt)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// A synchronous stage from a function of all inputs to all outputs, in port order.
///
/// ```
/// use brigade_actors::{Options, Pipeline, Topology, stage_fn};
///
/// let mut builder = Topology::<i64>::builder();
/// let x = builder.source("x");
/// let square = builder.actor("square", "cpu", 1, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] * v[0]])));
/// let y = builder.sink("y");
/// builder.connect(x, square.input(0)).connect(square.output(0), y);
/// let pipeline = Pipeline::spawn(builder.build()?, Options::new())?;
/// assert_eq!(pipeline.push(vec![12])?.wait()?, [144]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn stage_fn<P, F>(function: F) -> Factory<P>
where
    P: 'static,
    F: FnMut(Vec<P>) -> Result<Vec<P>, ItemError> + Clone + Send + 'static,
{
    Box::new(move |_| Ok(Box::new(Function(function.clone()))))
}

struct Function<F>(F);

impl<P, F: FnMut(Vec<P>) -> Result<Vec<P>, ItemError>> Stage<P> for Function<F> {
    fn submit(&mut self, firing: Firing<P>, out: &mut Outbox<P>) -> Result<(), ItemError> {
        let mut outputs = (self.0)(firing.inputs)?;
        for (port, payload) in outputs.drain(..).enumerate() {
            out.emit(port, payload);
        }
        out.recycle(outputs);
        Ok(())
    }
}

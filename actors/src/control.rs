//! The control plane: supervisors on actix.
//!
//! One `actix::System` on a thread of its own serves every pipeline of the process that is under
//! control; it ends with the last [`Control`]. A [`Supervisor`] per pipeline holds one handle per
//! actor of it and takes messages: [`GetStats`], [`Drain`], [`Stop`], [`Restart`], [`ListActors`].
//!
//! Nothing else needs this module. Items, errors, credits, stop and drop never pass through a
//! mailbox, and work with the control thread dead. Messages can be sent from any runtime and from
//! none.
//!
//! ```
//! use brigade_actors::control::{Control, GetStats};
//! use brigade_actors::{Options, Pipeline, Topology, stage_fn};
//!
//! let mut builder = Topology::<i64>::builder();
//! let x = builder.source("x");
//! let actor = builder.actor("negate", "cpu", 1, 1, stage_fn(|v: Vec<i64>| Ok(vec![-v[0]])));
//! let y = builder.sink("y");
//! builder.connect(x, actor.input(0)).connect(actor.output(0), y);
//! let pipeline = Pipeline::spawn(builder.build()?, Options::new())?;
//! pipeline.push(vec![3])?.wait()?;
//!
//! let control = Control::of(&pipeline)?;
//! let addr = control.addr().clone();
//! // From any runtime; here from one of actix.
//! let stats = actix::System::new().block_on(async move { addr.send(GetStats).await })??;
//! assert_eq!(stats.completed, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, Context, Handler, Message, ResponseFuture};

use crate::error::DrainError;
use crate::metrics::Stats;
use crate::payload::Payload;
use crate::pipeline::{Pipeline, StopReport};
use crate::registry::{ActorHandle, Supervised};
use crate::sync::{Arc, Mutex, Weak, bounded, lock, thread};

/// The name of the thread that the control plane runs on.
pub const THREAD_NAME: &str = "brigade-control";

/// Why a control message could not be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The last handle on the pipeline is gone.
    #[error("the pipeline is gone")]
    Gone,
    /// The pipeline has no such actor.
    #[error("the pipeline has no actor named `{actor}`")]
    UnknownActor {
        /// The name that was given.
        actor: String,
    },
    /// The pipeline was stopped or failed: there is no stage left to restart.
    #[error("the pipeline has ended")]
    Ended,
    /// The drain did not finish.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// The control plane could not be started.
    #[error("the control thread could not be started: {0}")]
    Start(#[from] io::Error),
}

/// Puts a pipeline under control for as long as it lives. Does not keep the pipeline alive.
pub struct Control {
    addr: Addr<Supervisor>,
    plane: Arc<Plane>,
}

impl Control {
    /// Starts a supervisor for `pipeline`, and the control plane with it if it does not run yet.
    ///
    /// # Errors
    ///
    /// [`ControlError::Start`] if there is no thread for it.
    pub fn of<P: Payload>(pipeline: &Pipeline<P>) -> Result<Self, ControlError> {
        let plane = Plane::get()?;
        let supervised = pipeline.supervised();
        let actors = supervised.actors();
        let pipeline = Arc::downgrade(&supervised);
        let addr = Supervisor::start_in_arbiter(plane.system.arbiter(), move |_| Supervisor {
            pipeline,
            actors,
        });
        Ok(Self { addr, plane })
    }

    /// The address of the supervisor: `addr.send(GetStats).await` from any runtime.
    #[must_use]
    pub const fn addr(&self) -> &Addr<Supervisor> {
        &self.addr
    }

    /// The number of pipelines that the control plane serves now, this one included.
    #[must_use]
    pub fn served(&self) -> usize {
        Arc::strong_count(&self.plane)
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("connected", &self.addr.connected()).finish_non_exhaustive()
    }
}

/// The one actix system of the process, while somebody needs it.
struct Plane {
    system: actix::System,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

static PLANE: Mutex<Weak<Plane>> = Mutex::new(Weak::new());

impl Plane {
    fn get() -> io::Result<Arc<Self>> {
        let mut place = lock(&PLANE);
        if let Some(plane) = place.upgrade() {
            return Ok(plane);
        }
        let (sender, receiver) = bounded(1);
        let thread = thread::Builder::new().name(THREAD_NAME.into()).spawn(move || {
            let runner = actix::System::new();
            // The runner ends when the system is told to stop; how is of no interest to anybody.
            if sender.send(actix::System::current()).is_ok() {
                let _ = runner.run();
            }
        })?;
        let system = receiver.recv().map_err(|_| io::Error::other("the control thread ended"))?;
        let plane = Arc::new(Self { system, thread: Mutex::new(Some(thread)) });
        *place = Arc::downgrade(&plane);
        Ok(plane)
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.system.stop();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// Serves the control messages of one pipeline.
pub struct Supervisor {
    pipeline: Weak<dyn Supervised>,
    /// One handle per device actor.
    actors: Vec<ActorHandle>,
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.actors.iter().map(|actor| &actor.name).collect();
        f.debug_struct("Supervisor").field("actors", &names).finish_non_exhaustive()
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;
}

impl Supervisor {
    fn pipeline(&self) -> Result<Arc<dyn Supervised>, ControlError> {
        self.pipeline.upgrade().ok_or(ControlError::Gone)
    }
}

/// Asks for the figures of the pipeline.
#[derive(Clone, Copy, Debug)]
pub struct GetStats;

impl Message for GetStats {
    type Result = Result<Stats, ControlError>;
}

impl Handler<GetStats> for Supervisor {
    type Result = Result<Stats, ControlError>;

    fn handle(&mut self, _: GetStats, _: &mut Self::Context) -> Self::Result {
        Ok(self.pipeline()?.stats())
    }
}

/// Asks for the names of the actors.
#[derive(Clone, Copy, Debug)]
pub struct ListActors;

impl Message for ListActors {
    type Result = Result<Vec<String>, ControlError>;
}

impl Handler<ListActors> for Supervisor {
    type Result = Result<Vec<String>, ControlError>;

    fn handle(&mut self, _: ListActors, _: &mut Self::Context) -> Self::Result {
        Ok(self.actors.iter().map(|actor| actor.name.to_string()).collect())
    }
}

/// Has the stage of an actor dropped and built anew; see [`Pipeline::restart`].
#[derive(Clone, Debug)]
pub struct Restart {
    /// The name of the actor, or of one replica of it.
    pub actor: String,
}

impl Message for Restart {
    type Result = Result<(), ControlError>;
}

impl Handler<Restart> for Supervisor {
    type Result = Result<(), ControlError>;

    fn handle(&mut self, message: Restart, _: &mut Self::Context) -> Self::Result {
        if self.pipeline()?.has_ended() {
            return Err(ControlError::Ended);
        }
        let named = |handle: &&ActorHandle| {
            *handle.name == *message.actor || *handle.actor == *message.actor
        };
        let told = self.actors.iter().filter(named).inspect(|handle| handle.restart.wake()).count();
        if told == 0 {
            return Err(ControlError::UnknownActor { actor: message.actor });
        }
        Ok(())
    }
}

/// Takes no more items and finishes those in flight; see [`Pipeline::drain`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Drain {
    /// How long at most; `None` waits as long as it takes.
    pub timeout: Option<Duration>,
}

impl Message for Drain {
    type Result = Result<(), ControlError>;
}

impl Handler<Drain> for Supervisor {
    type Result = ResponseFuture<Result<(), ControlError>>;

    fn handle(&mut self, message: Drain, _: &mut Self::Context) -> Self::Result {
        let pipeline = Weak::clone(&self.pipeline);
        Box::pin(async move {
            pipeline.upgrade().ok_or(ControlError::Gone)?.begin_drain();
            let drained = poll_fn(|context| match pipeline.upgrade() {
                Some(pipeline) => pipeline.poll_drained(context).map_err(ControlError::Drain),
                None => Poll::Ready(Err(ControlError::Gone)),
            });
            match before(message.timeout, drained).await {
                Some(drained) => drained,
                None => Ok(pipeline.upgrade().ok_or(ControlError::Gone)?.end_drain()?),
            }
        })
    }
}

/// Stops the pipeline now; see [`Pipeline::shutdown`].
#[derive(Clone, Copy, Debug)]
pub struct Stop;

impl Message for Stop {
    type Result = Result<StopReport, ControlError>;
}

impl Handler<Stop> for Supervisor {
    type Result = ResponseFuture<Result<StopReport, ControlError>>;

    fn handle(&mut self, _: Stop, _: &mut Self::Context) -> Self::Result {
        let pipeline = self.pipeline();
        Box::pin(async move {
            let pipeline = pipeline?;
            pipeline.begin_stop();
            let stopped = poll_fn(|context| pipeline.poll_stopped(context));
            before(Some(pipeline.stop_timeout()), stopped).await;
            // Waits for nothing any more: the threads have ended or their time is over.
            Ok(pipeline.stop(Some(Instant::now())))
        })
    }
}

/// What `future` gives, unless `timeout` passes first.
async fn before<T>(timeout: Option<Duration>, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let Some(timeout) = timeout else {
        return Some(future.await);
    };
    let mut over = pin!(actix::clock::sleep(timeout));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => over.as_mut().poll(context).map(|()| None),
    })
    .await
}

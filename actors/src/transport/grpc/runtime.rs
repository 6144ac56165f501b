//! The threads of a transport.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

use super::super::error::LinkError;
use crate::sync::{Arc, AtomicU64, Ordering, Receiver, bounded, thread};

/// How long the threads may take to end, when nothing is left for them to do.
const STOP: Duration = Duration::from_secs(2);

thread_local! {
    /// The number of the runtime that this thread belongs to; 0 for none.
    static HERE: Cell<u64> = const { Cell::new(0) };
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

/// An asynchronous runtime on threads of its own. Made and dropped on one of them, since a runtime
/// cannot be dropped on a thread of another.
#[derive(Debug)]
pub(super) struct Runtime {
    handle: Handle,
    number: u64,
    stop: Arc<Notify>,
    ended: Receiver<()>,
}

impl Runtime {
    pub(super) fn start(threads: usize) -> Result<Self, LinkError> {
        // Until a program has freed a block of some size, glibc gives the end of a heap back to the
        // system whenever 128 KiB of it are free, which is after each few frames that were received:
        // all their memory would be faulted in anew. This is such a block; it is never touched.
        drop(std::hint::black_box(Vec::<u8>::with_capacity(8 << 20)));
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let (started, start) = bounded(1);
        let (end, ended) = bounded(0);
        let failed = |error: std::io::Error| LinkError::Lost {
            why: format!("the threads of the transport could not be started: {error}"),
        };
        thread::Builder::new()
            .name("link".to_owned())
            .spawn(move || {
                HERE.set(number);
                let runtime = if threads <= 1 {
                    Builder::new_current_thread().thread_name("link-worker").enable_all().build()
                } else {
                    Builder::new_multi_thread()
                        .worker_threads(threads)
                        .thread_name("link-worker")
                        .on_thread_start(move || HERE.set(number))
                        .enable_all()
                        .build()
                };
                match runtime {
                    Ok(runtime) => {
                        let _ = started.send(Ok(runtime.handle().clone()));
                        runtime.block_on(stopped.notified());
                        runtime.shutdown_timeout(STOP / 2);
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
                drop(end);
            })
            .map_err(failed)?;
        let handle = start
            .recv()
            .map_err(|_| LinkError::Lost { why: "the thread of the transport ended".to_owned() })?
            .map_err(failed)?;
        Ok(Self { handle, number, stop, ended })
    }

    /// Whether the calling thread is one of this runtime's.
    pub(super) fn is_here(&self) -> bool {
        HERE.get() == self.number
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(task));
    }

    /// Runs what has to be run inside of the runtime, such as taking a socket over.
    pub(super) fn enter<T>(&self, run: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        run()
    }

    /// Ends the threads, in bounded time.
    pub(super) fn stop(&self) {
        self.stop.notify_one();
        if !self.is_here() {
            // Says "disconnected" when the thread is at its end.
            let _ = self.ended.recv_timeout(STOP);
        }
    }
}

//! What asks a process that is part of a cluster to end.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::console::Console;
use crate::error::{Error, Result, err};

/// SIGINT (Ctrl-C), SIGTERM or SIGHUP (the terminal is gone), by the number that an exit code has for it.
type Signal = i32;

const INTERRUPT: Signal = 2;
#[cfg(unix)]
const TERMINATE: Signal = 15;
#[cfg(unix)]
const HANG_UP: Signal = 1;

/// The signals of this process, waited for from now on.
pub(super) struct Signals {
    runtime: tokio::runtime::Runtime,
    #[cfg(unix)]
    both: [tokio::signal::unix::Signal; 2],
    /// `None` where whoever started this process wants it to outlive its terminal.
    #[cfg(unix)]
    hang_up: Option<tokio::signal::unix::Signal>,
}

/// Whether SIGHUP may be listened to: not where it is ignored, as below `nohup`, nor where the system does
/// not say whether it is; it does what it always does then.
#[cfg(unix)]
fn hears_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (HANG_UP - 1)) == 0)
}

fn unheard(error: std::io::Error) -> Error {
    err!(Device, "signals cannot be waited for").with_source(error)
}

impl Signals {
    /// From here on a signal does not end the process by itself.
    pub(super) fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(unheard)?;
        #[cfg(unix)]
        let (both, hang_up) = {
            use tokio::signal::unix::{SignalKind, signal};
            let _inside = runtime.enter();
            let of = |kind| signal(kind).map_err(unheard);
            let hang_up = hears_hang_up().then(|| of(SignalKind::hangup())).transpose()?;
            ([of(SignalKind::interrupt())?, of(SignalKind::terminate())?], hang_up)
        };
        Ok(Self {
            runtime,
            #[cfg(unix)]
            both,
            #[cfg(unix)]
            hang_up,
        })
    }

    /// Waits for the next one.
    pub(super) fn wait(&mut self) -> Result<Signal> {
        #[cfg(unix)]
        {
            let [interrupt, terminate] = &mut self.both;
            let hang_up = &mut self.hang_up;
            let hung_up = async {
                match hang_up {
                    Some(signal) => signal.recv().await,
                    None => std::future::pending().await,
                }
            };
            Ok(self.runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => INTERRUPT,
                    _ = terminate.recv() => TERMINATE,
                    _ = hung_up => HANG_UP,
                }
            }))
        }
        #[cfg(not(unix))]
        self.runtime.block_on(tokio::signal::ctrl_c()).map(|()| INTERRUPT).map_err(unheard)
    }
}

type Close = Box<dyn FnOnce() + Send>;

/// What is to be done before a coordinator that was told to end is gone.
#[derive(Clone, Default)]
pub(super) struct AtInterrupt(Arc<Mutex<Option<Close>>>);

impl AtInterrupt {
    /// From here on a signal is told, what [`set`](Self::set) has given is done, and the process ends;
    /// at a second signal at once.
    pub(super) fn new(console: &Console) -> Result<Self> {
        let own = Self::default();
        let (close, label) = (own.clone(), console.error_label());
        let mut signals = Signals::new()?;
        std::thread::Builder::new()
            .name("interrupt".to_owned())
            .spawn(move || {
                let Ok(signal) = signals.wait() else { return };
                INTERRUPTED.store(true, Ordering::SeqCst);
                let say = |text: &str| {
                    // There is nowhere else to say that this failed.
                    let _ = writeln!(std::io::stderr().lock(), "{label} {text}");
                };
                let close = close.0.lock().unwrap_or_else(PoisonError::into_inner).take();
                match close {
                    Some(close) => {
                        say("interrupted: what is under way is lost; the workers are told");
                        let last = move || {
                            close();
                            std::process::exit(128 + signal);
                        };
                        let spawned =
                            std::thread::Builder::new().name("closing".to_owned()).spawn(last);
                        if spawned.is_ok() && signals.wait().is_err() {
                            return;
                        }
                    }
                    None => say("interrupted"),
                }
                std::process::exit(128 + signal);
            })
            .map(drop)
            .map_err(|e| err!(Device, "no thread could be started").with_source(e))?;
        Ok(own)
    }

    /// What is to be done.
    pub(super) fn set(&self, close: Close) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(close);
    }
}

/// Whether the process was told to end, and what goes wrong from now on is the end of it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How long the workers may take to hear of it, and more.
const ENDING: Duration = Duration::from_secs(10);

/// Whether a signal is being obeyed: errors are its consequences then.
pub(super) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Leaves it to the thread that obeys a signal to end the process, if there is one.
pub(super) fn leave_to_signal() {
    if interrupted() {
        std::thread::sleep(ENDING);
    }
}

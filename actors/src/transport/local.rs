//! Links between threads of one process.
//!
//! Addresses are names, known to the one transport value that they were listened at. Each end has a
//! thread of its own, which takes frames out of the other end's queue and copies each payload once,
//! from where the sender has it to where the receiver wants it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use super::error::LinkError;
use super::intake::{Intake, guarded};
use super::link::{Core, Link, Links, Next, Peer};
use super::options::TransportOptions;
use super::{Accept, Frame, Listening, OnLink, Transport};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, bounded, lock, thread};

/// The row's constructor.
pub(super) fn open(options: &TransportOptions) -> Result<Arc<dyn Transport>, LinkError> {
    Ok(Arc::new(Local {
        shared: Arc::new(Shared {
            options: options.clone(),
            names: Mutex::new(BTreeMap::new()),
            links: Links::default(),
            count: AtomicU64::new(0),
        }),
    }))
}

struct Local {
    shared: Arc<Shared>,
}

struct Shared {
    options: TransportOptions,
    names: Mutex<BTreeMap<String, Arc<Listener>>>,
    /// The ends of those who connected.
    links: Links,
    count: AtomicU64,
}

struct Listener {
    name: String,
    on_link: OnLink,
    links: Links,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let names = std::mem::take(&mut *lock(&self.shared.names));
        for listener in names.values() {
            listener.links.close(self.shared.options.close_timeout);
        }
        self.shared.links.close(self.shared.options.close_timeout);
    }
}

impl Transport for Local {
    fn listen(&self, address: &str, on_link: OnLink) -> Result<Box<dyn Listening>, LinkError> {
        let refuse = |why: &str| {
            Err(LinkError::Address { address: address.to_owned(), why: why.to_owned() })
        };
        if address.is_empty() {
            return refuse("a name is needed");
        }
        let mut names = lock(&self.shared.names);
        if names.contains_key(address) {
            return refuse("somebody listens there already");
        }
        let listener =
            Arc::new(Listener { name: address.to_owned(), on_link, links: Links::default() });
        names.insert(address.to_owned(), Arc::clone(&listener));
        Ok(Box::new(LocalListening { shared: Arc::clone(&self.shared), listener }))
    }

    fn connect(
        &self,
        address: &str,
        accept: Box<dyn Accept>,
        deadline: Instant,
    ) -> Result<Link, LinkError> {
        let begun = Instant::now();
        let listener = lock(&self.shared.names).get(address).map(Arc::clone);
        let Some(listener) = listener else {
            return Err(LinkError::Unreachable {
                address: address.to_owned(),
                why: "nobody listens at that name".to_owned(),
            });
        };
        let options = &self.shared.options;
        let number = self.shared.count.fetch_add(1, Ordering::Relaxed);
        let peer = |address: String| Peer { address, identity: None };
        let near = Core::new(peer(address.to_owned()), options);
        let far = Core::new(peer(format!("{address}#{number}")), options);
        let (answer, answered) = bounded(1);
        {
            let (near, far) = (Arc::clone(&near), Arc::clone(&far));
            start(format!("link-{address}#{number}-in"), move || {
                listener.links.add(&far);
                let link = Link::new(Arc::clone(&far));
                match guarded(|| (listener.on_link)(link)).and_then(|taken| taken) {
                    Ok(accept) => {
                        drop(listener);
                        if answer.send(Ok(())).is_err() {
                            // Whoever connected has stopped waiting.
                            near.end(LinkError::Closed);
                            far.end(LinkError::Closed);
                        }
                        drop(answer);
                        carry(&near, &far, accept);
                    }
                    Err(why) => {
                        far.end(why.clone());
                        let _ = answer.send(Err(why));
                    }
                }
            })?;
        }
        match answered.recv_deadline(deadline) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return Err(why.told()),
            Err(_) => {
                drop(answered);
                let why = LinkError::Timeout {
                    what: format!("{address} to take the link"),
                    after: begun.elapsed(),
                };
                far.end(why.clone());
                return Err(why);
            }
        }
        self.shared.links.add(&near);
        let link = Link::new(Arc::clone(&near));
        start(format!("link-{address}#{number}-out"), move || carry(&far, &near, accept))?;
        Ok(link)
    }
}

fn start(name: String, run: impl FnOnce() + Send + 'static) -> Result<(), LinkError> {
    thread::Builder::new()
        .name(name)
        .spawn(run)
        .map(drop)
        .map_err(|error| LinkError::Lost { why: format!("no thread could be started: {error}") })
}

/// Takes what waits at `from` to the one who accepts at `to`, until either end is over.
fn carry(from: &Core, to: &Arc<Core>, accept: Box<dyn Accept>) {
    let mut intake = Intake::new(accept, Arc::clone(to));
    let why = loop {
        match from.wait_next() {
            Next::Frame(frame) => {
                let result = deliver(&mut intake, &frame);
                let size = frame.size();
                drop(frame);
                from.left(size);
                if let Err(why) = result {
                    let why = to.end(why);
                    from.end(why.told());
                    break why;
                }
            }
            Next::Close(why) => {
                from.end(why.clone());
                break to.end(why.told());
            }
            // The other thread has told this end why, or tells it now.
            Next::Ended(why) => break to.end(why.told()),
            Next::Idle => {}
        }
    };
    intake.closed(why);
}

fn deliver(intake: &mut Intake, frame: &Frame) -> Result<(), LinkError> {
    let payload = frame.payload_bytes();
    intake.head(&frame.head, payload.len() as u64)?;
    if payload.is_empty() { Ok(()) } else { intake.payload(payload) }
}

struct LocalListening {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
}

impl Drop for LocalListening {
    fn drop(&mut self) {
        {
            let mut names = lock(&self.shared.names);
            let is_this =
                names.get(&self.listener.name).is_some_and(|l| Arc::ptr_eq(l, &self.listener));
            if is_this {
                names.remove(&self.listener.name);
            }
        }
        self.listener.links.close(self.shared.options.close_timeout);
    }
}

impl Listening for LocalListening {
    fn address(&self) -> String {
        self.listener.name.clone()
    }

    fn set_serving(&self, _: bool) {}

    fn close(self: Box<Self>) {}
}

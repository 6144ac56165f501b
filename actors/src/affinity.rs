//! Pinning threads to processor cores.
//!
//! A pinned thread runs on one core and no other. A pipeline works without: what cannot be pinned is
//! reported, and runs where the operating system lets it.

use core_affinity::CoreId;

/// The number of processor cores that this process may run on; 0 if the system does not tell.
#[must_use]
pub fn cores() -> usize {
    ids().len()
}

/// Pins the calling thread to a core, by its place in the list of those that this process may run
/// on. For the threads that a stage starts itself; those of the actors are pinned by
/// [`System::pin`](crate::System::pin).
///
/// # Errors
///
/// What was in the way, in words.
///
/// ```
/// use brigade_actors::affinity;
///
/// std::thread::spawn(|| match affinity::pin(0) {
///     Ok(()) => {}
///     Err(why) => eprintln!("runs anywhere: {why}"),
/// });
/// assert!(affinity::pin(1_000_000).is_err());
/// ```
pub fn pin(core: usize) -> Result<(), String> {
    let ids = ids();
    let Some(&id) = ids.get(core) else {
        return Err(format!("there is no core {core}: this process may run on {}", ids.len()));
    };
    if core_affinity::set_for_current(id) {
        Ok(())
    } else {
        Err(format!("the operating system refused core {core}"))
    }
}

fn ids() -> Vec<CoreId> {
    core_affinity::get_core_ids().unwrap_or_default()
}

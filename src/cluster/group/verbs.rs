//! What a rank does, step by step: ship, receive, send, serve.

use brigade_actors::transport::LinkError;

use super::{Activation, Event, MAX_VALUES, ProcessGroup, WINDOW, Word};
use crate::cluster::message::Form;
use crate::cluster::{StageSpec, Worker, WorkerStage};
use crate::error::{Error, Result, bail, err};
use crate::tensor::{Buffer, Value};

/// What a rank made of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shipped {
    /// The device that it was compiled for.
    pub device: String,
    /// How many nodes its graph has.
    pub nodes: usize,
}

/// Ships a stage to a rank and waits until it is ready there.
///
/// # Errors
/// If the spec does not hold together, the rank refuses it (with its reason) or is gone, or does not
/// answer in time.
pub fn ship_stage(group: &ProcessGroup, rank: usize, spec: &StageSpec) -> Result<Shipped> {
    let rank = group.peer(rank)?;
    spec.validate()?;
    group.send(rank, &Word::Stage, Some(Buffer::copy_of(&spec.encode()?)))?;
    let answer = group.wait(rank, "while its stage was shipped", |peer| {
        let at = peer.events.iter().position(|e| matches!(e, Event::Answer(_)))?;
        match peer.events.remove(at) {
            Some(Event::Answer(answer)) => Some(Ok(answer)),
            _ => None,
        }
    })?;
    match answer {
        Ok((device, nodes)) => {
            Ok(Shipped { device, nodes: usize::try_from(nodes).unwrap_or(usize::MAX) })
        }
        Err(error) => Err(error.into_error(&format!("rank {rank}"))),
    }
}

/// Receives a stage from rank 0, reads its weights and compiles it as `host` says, and answers ready
/// or why not.
///
/// # Errors
/// If this is rank 0, nothing comes in time, or the stage cannot be made; rank 0 is told the same.
pub fn recv_stage(group: &ProcessGroup, host: &Worker) -> Result<WorkerStage> {
    if group.rank() == 0 {
        return Err(err!(Usage, "rank 0 ships stages and serves none")
            .with_help("call this on another rank, or ship_stage here"));
    }
    let bytes = group.wait(0, "while a stage was awaited", |peer| {
        let at = peer.events.iter().position(|e| matches!(e, Event::Stage(_)))?;
        match peer.events.remove(at) {
            Some(Event::Stage(bytes)) => Some(Ok(bytes)),
            _ => None,
        }
    })?;
    let made = StageSpec::decode(&bytes).and_then(|spec| host.stage(&spec));
    let answer = match &made {
        Ok(stage) => {
            Word::Ready { device: stage.device().to_string(), nodes: stage.nodes() as u64 }
        }
        Err(error) => Word::Refused { error: error.into() },
    };
    group.send(0, &answer, None)?;
    made
}

/// Sends named values to a rank, under a number. Waits while the rank has not taken [`WINDOW`] of
/// those before.
///
/// # Errors
/// If the rank is gone, or takes none in time.
pub fn send_activation(
    group: &ProcessGroup,
    to: usize,
    number: u64,
    values: &[(String, Value)],
) -> Result<()> {
    let to = group.peer(to)?;
    let of = u32::try_from(values.len()).unwrap_or(u32::MAX);
    if of == 0 || of > MAX_VALUES {
        bail!(Usage, "an activation has 1 to {MAX_VALUES} values, {of} are given");
    }
    group.wait(to, "while it was to take an activation", |peer| {
        (peer.sent - peer.taken < WINDOW as u64).then(|| {
            peer.sent += 1;
            Ok(())
        })
    })?;
    for (index, (name, value)) in values.iter().enumerate() {
        let (form, bytes) = Form::of(value)?;
        let word = Word::Value { number, index: index as u32, of, name: name.clone(), form };
        group.send(to, &word, Some(bytes))?;
    }
    Ok(())
}

/// The next activation of a rank; `None` once it says that no more come.
///
/// # Errors
/// The error of an activation that failed further up, which names its number as the item; if the rank
/// is gone, or sends nothing in time.
pub fn recv_activation(group: &ProcessGroup, from: usize) -> Result<Option<Activation>> {
    let from = group.peer(from)?;
    let event = group.wait(from, "while an activation was awaited", |peer| {
        let wanted = |e: &Event| matches!(e, Event::Activation(_) | Event::Failed(..) | Event::End);
        let at = peer.events.iter().position(wanted)?;
        peer.events.remove(at).map(Ok)
    })?;
    match event {
        Event::Activation(activation) => {
            group.send(from, &Word::Taken { number: activation.number }, None)?;
            Ok(Some(activation))
        }
        Event::Failed(number, error) => {
            Err(error.into_error(&format!("rank {from}")).with_item(number))
        }
        _ => Ok(None),
    }
}

/// Tells a rank that no more activations come.
///
/// # Errors
/// If the rank is gone.
pub fn end_activations(group: &ProcessGroup, to: usize) -> Result<()> {
    let to = group.peer(to)?;
    group.send(to, &Word::End, None)
}

/// The ranks before and behind this one.
fn neighbours(group: &ProcessGroup) -> Result<(usize, usize)> {
    if group.rank() == 0 {
        return Err(err!(Usage, "rank 0 serves no stage")
            .with_help("rank 0 feeds rank 1 and takes the results of the last rank"));
    }
    let next = group.rank() + 1;
    Ok((group.rank() - 1, if next == group.world_size() { 0 } else { next }))
}

/// One cycle of a stage: takes an activation of the rank before, computes, and gives the outputs to
/// the rank behind, or to rank 0 if this is the last. An activation that fails, here or further up,
/// goes on as its error. `false` once no more come, which is passed on.
///
/// # Errors
/// If this is rank 0, or a neighbour is gone.
pub fn serve_stage(group: &ProcessGroup, stage: &mut WorkerStage) -> Result<bool> {
    let (before, behind) = neighbours(group)?;
    let failed = |number: u64, error: &Error| {
        group.send(behind, &Word::Failed { number, error: error.into() }, None)
    };
    match recv_activation(group, before) {
        Ok(Some(Activation { number, values })) => match stage.run(values) {
            Ok(outputs) => send_activation(group, behind, number, &outputs)?,
            Err(error) => failed(number, &error)?,
        },
        Ok(None) => {
            end_activations(group, behind)?;
            return Ok(false);
        }
        Err(error) => match error.item() {
            Some(number) => failed(number, &error)?,
            None => return Err(error),
        },
    }
    Ok(true)
}

/// Receives a stage and serves it until no more activations come, or rank 0 is gone; gives how many
/// it served.
///
/// # Errors
/// As [`recv_stage`] and [`serve_stage`]; not if the rank before ends in order.
pub fn serve_stage_loop(group: &ProcessGroup, host: &Worker) -> Result<u64> {
    let (before, _) = neighbours(group)?;
    let mut stage = recv_stage(group, host)?;
    let mut served = 0;
    loop {
        match serve_stage(group, &mut stage) {
            Ok(true) => served += 1,
            Ok(false) => return Ok(served),
            Err(error) if error.kind() == crate::ErrorKind::Deadline => {}
            Err(error) => {
                let in_order = group.shared.peers()[before]
                    .gone
                    .as_deref()
                    .is_some_and(|why| why == LinkError::Closed.to_string());
                return if in_order { Ok(served) } else { Err(error) };
            }
        }
    }
}

/// As [`serve_stage_loop`], with this machine's devices, and weights read through the built-in schemes
/// below `roots`.
///
/// # Errors
/// As [`serve_stage_loop`]; if a root is not there.
pub fn serve_stage_uri(group: &ProcessGroup, roots: &[impl AsRef<std::path::Path>]) -> Result<u64> {
    let weights =
        roots.iter().try_fold(crate::WeightCache::new(), |cache, root| cache.with_root(root))?;
    serve_stage_loop(group, &Worker::new(format!("rank-{}", group.rank())).weights(weights))
}

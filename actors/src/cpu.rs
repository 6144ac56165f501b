//! The CPU budget of a system: how many threads its pipelines may compute on at once.
//!
//! A share belongs to a *lane* of a device: the actors that take turns at a lane never compute
//! together, so they use the same threads. A device with one lane and ten actors takes one share, as
//! wide as the widest of them; replicas on a device with two lanes take two. What all devices can
//! compute on at once is the sum of their shares, and that is what the budget bounds.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::SpawnError;
use crate::sync::{Arc, Mutex, lock};

/// What a system does when a pipeline asks for more CPU threads than are left of its budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuPolicy {
    /// Grants what is left, at least one thread to each actor, and says so in
    /// [`Stats::notices`](crate::Stats::notices).
    #[default]
    Notice,
    /// Refuses to spawn the pipeline, with [`SpawnError::CpuBudget`].
    Refuse,
}

/// The CPU threads of a system, as a pipeline of it sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CpuStats {
    /// The threads that the pipelines of the system may compute on at once; `None` for any number.
    pub budget: Option<usize>,
    /// The threads that they can compute on at once: one share for each lane in use.
    pub used: usize,
}

/// What one actor, or one replica of it, was given of the CPU budget.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuShare {
    /// The pipeline.
    pub pipeline: String,
    /// The actor, or the replica.
    pub actor: String,
    /// Its device; the actors that take turns at one lane of it use the same threads.
    pub device: String,
    /// The threads that it asked for.
    pub asked: usize,
    /// The threads that it was given.
    pub granted: usize,
    /// The processor cores that these are meant for, if the system pins its threads: places in the
    /// list of the cores that this process may run on.
    pub cores: Vec<usize>,
}

/// Who was given what of the CPU budget; see [`System::cpu`](crate::System::cpu).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuReport {
    /// The threads that the pipelines of the system may compute on at once; `None` for any number.
    pub budget: Option<usize>,
    /// The threads that they can compute on at once.
    pub used: usize,
    /// The shares, by device.
    pub shares: Vec<CpuShare>,
}

impl CpuReport {
    /// By how many threads the budget is exceeded; 0 if it is not.
    #[must_use]
    pub fn exceeded(&self) -> usize {
        self.budget.map_or(0, |budget| self.used.saturating_sub(budget))
    }
}

/// What an actor asks for.
pub(crate) struct Ask {
    pub(crate) actor: Arc<str>,
    pub(crate) device: Arc<str>,
    /// The lanes of the device.
    pub(crate) lanes: usize,
    /// 0 for an actor that computes elsewhere: it is given no share.
    pub(crate) threads: usize,
}

/// A share that is held: given back when it is dropped.
pub(crate) struct Share {
    pub(crate) granted: usize,
    pub(crate) cores: Vec<usize>,
    budget: Arc<CpuBudget>,
    device: Arc<str>,
    holder: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        lock(&self.budget.0).give_back(&self.device, self.holder);
    }
}

/// The account of a system.
#[derive(Default)]
pub(crate) struct CpuBudget(Mutex<State>);

#[derive(Default)]
struct State {
    limit: Option<usize>,
    policy: CpuPolicy,
    /// The cores that threads are pinned to; empty if they are not.
    cores: usize,
    devices: BTreeMap<Arc<str>, Device>,
    next_holder: u64,
}

/// What is given to the actors of one device.
#[derive(Default)]
struct Device {
    lanes: usize,
    holders: Vec<Holder>,
    /// For each lane, the cores that its threads are pinned to.
    cores: Vec<Vec<usize>>,
}

struct Holder {
    id: u64,
    pipeline: Arc<str>,
    actor: Arc<str>,
    asked: usize,
    granted: usize,
    cores: Vec<usize>,
}

impl Device {
    /// Lanes on which actors of this device can compute at once.
    fn lanes_used(&self) -> usize {
        self.lanes.min(self.holders.len())
    }

    /// The threads of each lane.
    fn width(&self) -> usize {
        self.holders.iter().map(|holder| holder.granted).max().unwrap_or(0)
    }

    fn used(&self) -> usize {
        self.lanes_used().saturating_mul(self.width())
    }
}

impl State {
    fn used(&self) -> usize {
        self.devices.values().fold(0, |sum, device| sum.saturating_add(device.used()))
    }

    fn give_back(&mut self, device: &Arc<str>, holder: u64) {
        let Some(entry) = self.devices.get_mut(device) else {
            return;
        };
        entry.holders.retain(|other| other.id != holder);
        if entry.holders.is_empty() {
            self.devices.remove(device);
        }
    }

    /// Gives every asking actor of one device its threads: as many as it asks for, or what the
    /// budget has left, but never less than one, nor less than its neighbours have already.
    fn grant(
        &mut self,
        pipeline: &Arc<str>,
        device: &Arc<str>,
        asks: &[(usize, &Ask)],
    ) -> Vec<u64> {
        let limit = self.limit.unwrap_or(usize::MAX);
        let others = self.used();
        let entry = self.devices.entry(Arc::clone(device)).or_default();
        let others = others.saturating_sub(entry.used());
        entry.lanes = asks.first().map_or(1, |(_, ask)| ask.lanes);
        let least = entry.width().max(1);
        let widest = asks.iter().map(|(_, ask)| ask.threads).max().unwrap_or(0).max(least);
        let lanes = entry.lanes.min(entry.holders.len().saturating_add(asks.len())).max(1);
        let width = (limit.saturating_sub(others) / lanes).clamp(least, widest);
        let mut ids = Vec::with_capacity(asks.len());
        for (_, ask) in asks {
            ids.push(self.next_holder);
            entry.holders.push(Holder {
                id: self.next_holder,
                pipeline: Arc::clone(pipeline),
                actor: Arc::clone(&ask.actor),
                asked: ask.threads,
                granted: ask.threads.min(width),
                cores: Vec::new(),
            });
            self.next_holder += 1;
        }
        ids
    }

    /// Gives the new holders of a device the cores of their lane; none if there are too few.
    fn assign_cores(&mut self, device: &Arc<str>, ids: &[u64]) {
        if self.cores == 0 {
            return;
        }
        let taken = self.devices.values().flat_map(|device| device.cores.iter().flatten().copied());
        let taken: Vec<usize> = taken.collect();
        let mut free = (0..self.cores).filter(|core| !taken.contains(core));
        let Some(entry) = self.devices.get_mut(device) else {
            return;
        };
        let (lanes, width) = (entry.lanes_used().max(1), entry.width());
        if entry.cores.len() < lanes {
            entry.cores.resize_with(lanes, Vec::new);
        }
        for lane in &mut entry.cores {
            while lane.len() < width {
                match free.next() {
                    Some(core) => lane.push(core),
                    None => break,
                }
            }
        }
        for (place, holder) in entry.holders.iter_mut().enumerate() {
            if ids.contains(&holder.id) {
                let lane = &entry.cores[place % lanes];
                holder.cores = lane.get(..holder.granted).unwrap_or_default().to_vec();
            }
        }
    }
}

impl CpuBudget {
    pub(crate) fn limit(&self, threads: usize) {
        lock(&self.0).limit = Some(threads);
    }

    pub(crate) fn policy(&self, policy: CpuPolicy) {
        lock(&self.0).policy = policy;
    }

    /// Pins threads to the first `cores` cores, or to as many as the budget has.
    #[cfg(feature = "affinity")]
    pub(crate) fn pin(&self, cores: usize) {
        lock(&self.0).cores = cores;
    }

    /// Gives the actors of a pipeline their shares, in the order of `asks`; and what there is to
    /// notice.
    pub(crate) fn claim(
        self: &Arc<Self>,
        pipeline: &str,
        asks: &[Ask],
    ) -> Result<(Vec<Option<Share>>, Vec<String>), SpawnError> {
        let mut state = lock(&self.0);
        let before = state.used();
        let name: Arc<str> = pipeline.into();
        let mut by_device: BTreeMap<&Arc<str>, Vec<(usize, &Ask)>> = BTreeMap::new();
        for (place, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.threads > 0) {
            by_device.entry(&ask.device).or_default().push((place, ask));
        }
        let mut shares: Vec<Option<Share>> = asks.iter().map(|_| None).collect();
        let mut notices = Vec::new();
        let mut wanted = 0_usize;
        let mut short = false;
        for (device, asks) in by_device {
            let ids = state.grant(&name, device, &asks);
            state.assign_cores(device, &ids);
            let Some(entry) = state.devices.get(device) else {
                continue;
            };
            let full = asks.iter().map(|(_, ask)| ask.threads).max().unwrap_or(0);
            wanted =
                wanted.saturating_add(entry.lanes_used().saturating_mul(full.max(entry.width())));
            for ((place, ask), id) in asks.iter().zip(ids) {
                let Some(holder) = entry.holders.iter().find(|holder| holder.id == id) else {
                    continue;
                };
                if holder.granted < ask.threads {
                    short = true;
                    notices.push(format!(
                        "actor `{}` asked for {} threads of the CPU budget and was given {}",
                        ask.actor, ask.threads, holder.granted
                    ));
                }
                if state.cores > 0 && holder.cores.is_empty() {
                    notices.push(format!(
                        "actor `{}` is not pinned: the {} cores are all given",
                        ask.actor, state.cores
                    ));
                }
                shares[*place] = Some(Share {
                    granted: holder.granted,
                    cores: holder.cores.clone(),
                    budget: Arc::clone(self),
                    device: Arc::clone(device),
                    holder: id,
                });
            }
        }
        let (used, limit) = (state.used(), state.limit);
        let exceeded = limit.filter(|limit| used > *limit && used > before);
        if let Some(limit) = exceeded {
            notices.push(format!(
                "the CPU budget of the system is exceeded: its pipelines can compute on {used} \
                 threads at once, and it has {limit}"
            ));
        }
        let refused = state.policy == CpuPolicy::Refuse && (short || exceeded.is_some());
        // A share that is dropped takes the lock.
        drop(state);
        match limit.filter(|_| refused) {
            Some(budget) => {
                let pipeline = pipeline.to_owned();
                Err(SpawnError::CpuBudget { pipeline, asked: wanted, used: before, budget })
            }
            None => Ok((shares, notices)),
        }
    }

    /// The budget, and what is used of it.
    pub(crate) fn level(&self) -> (Option<usize>, usize) {
        let state = lock(&self.0);
        (state.limit, state.used())
    }

    pub(crate) fn report(&self) -> CpuReport {
        let state = lock(&self.0);
        let shares = state.devices.iter().flat_map(|(device, entry)| {
            entry.holders.iter().map(|holder| CpuShare {
                pipeline: holder.pipeline.to_string(),
                actor: holder.actor.to_string(),
                device: device.to_string(),
                asked: holder.asked,
                granted: holder.granted,
                cores: holder.cores.clone(),
            })
        });
        CpuReport { budget: state.limit, used: state.used(), shares: shares.collect() }
    }
}

impl fmt::Debug for CpuBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report().fmt(f)
    }
}

/// The threads that an actor asks for where nothing is said: one on a CPU device, and none of this
/// machine's on any other.
pub(crate) fn usual_threads(device: &str) -> usize {
    usize::from(device == "cpu" || device.starts_with("cpu:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(actor: &str, device: &str, lanes: usize, threads: usize) -> Ask {
        Ask { actor: actor.into(), device: device.into(), lanes, threads }
    }

    fn budget(limit: usize) -> Arc<CpuBudget> {
        let budget = Arc::new(CpuBudget::default());
        budget.limit(limit);
        budget
    }

    fn granted(shares: &[Option<Share>]) -> Vec<usize> {
        shares.iter().map(|share| share.as_ref().map_or(0, |share| share.granted)).collect()
    }

    #[test]
    fn actors_that_take_turns_share_and_others_do_not() {
        let budget = budget(8);
        let asks = [
            ask("a", "cpu:0", 1, 2),
            ask("b", "cpu:1", 1, 3),
            ask("c", "cpu:0", 1, 1),
            ask("g", "gpu:0", 1, 0),
        ];
        let (first, notices) = budget.claim("p", &asks).unwrap();
        assert_eq!((granted(&first), notices.len()), (vec![2, 3, 1, 0], 0));
        assert_eq!(budget.level(), (Some(8), 5));
        // A second pipeline on the same lanes needs no more; a wider one widens them.
        let (second, _) = budget.claim("q", &[ask("a", "cpu:0", 1, 2)]).unwrap();
        assert_eq!(budget.level().1, 5);
        let (third, _) = budget.claim("r", &[ask("a", "cpu:0", 1, 4)]).unwrap();
        assert_eq!((granted(&third), budget.level().1), (vec![4], 7));
        drop((first, third));
        assert_eq!(budget.level().1, 2);
        drop(second);
        assert_eq!(budget.level().1, 0);
        assert!(budget.report().shares.is_empty());
    }

    #[test]
    fn replicas_take_a_share_for_each_lane_that_they_can_use() {
        let budget = budget(100);
        let replicas = |lanes| (0..3).map(move |n| ask(&format!("b/{n}"), "cpu", lanes, 2));
        for (lanes, used) in [(1, 2), (2, 4), (3, 6), (8, 6)] {
            let (shares, _) = budget.claim("p", &replicas(lanes).collect::<Vec<_>>()).unwrap();
            assert_eq!((granted(&shares), budget.level().1), (vec![2; 3], used), "{lanes} lanes");
        }
    }

    #[test]
    fn too_much_is_shrunk_and_said_or_refused() {
        let budget = budget(2);
        let five = [ask("a", "cpu:0", 1, 5)];
        let (shares, notices) = budget.claim("p", &five).unwrap();
        assert_eq!(granted(&shares), [2]);
        assert_eq!(notices, ["actor `a` asked for 5 threads of the CPU budget and was given 2"]);
        // Nothing is left: one thread all the same, and it is said.
        let (more, notices) = budget.claim("q", &[ask("b", "cpu:1", 1, 1)]).unwrap();
        assert_eq!((granted(&more), budget.report().exceeded()), (vec![1], 1));
        assert!(notices[0].contains("3 threads at once, and it has 2"), "{notices:?}");
        drop((shares, more));
        budget.policy(CpuPolicy::Refuse);
        let refused = budget.claim("p", &five).err().unwrap().to_string();
        assert!(
            refused.contains("`p`") && refused.contains('5') && refused.contains('2'),
            "{refused}"
        );
        assert_eq!(budget.level().1, 0);
        let (fits, _) = budget.claim("p", &[ask("a", "cpu:0", 1, 2)]).unwrap();
        assert!(budget.claim("q", &[ask("b", "cpu:1", 1, 1)]).is_err());
        assert!(budget.claim("q", &[ask("b", "cpu:0", 1, 2)]).is_ok());
        drop(fits);
    }

    #[test]
    fn cores_are_disjoint_between_lanes_and_come_back() {
        let budget = budget(4);
        lock(&budget.0).cores = 4;
        let asks = [ask("a", "cpu:0", 1, 2), ask("b", "cpu:1", 1, 1), ask("c", "cpu:0", 1, 1)];
        let (shares, _) = budget.claim("p", &asks).unwrap();
        let cores = |shares: &[Option<Share>]| {
            shares.iter().flatten().map(|share| share.cores.clone()).collect::<Vec<_>>()
        };
        assert_eq!(cores(&shares), [vec![0, 1], vec![2], vec![0]]);
        let (more, _) =
            budget.claim("q", &[ask("d", "cpu:2", 1, 1), ask("e", "cpu:3", 1, 1)]).unwrap();
        assert_eq!(cores(&more), [vec![3], vec![]], "the fifth thread has no core left");
        drop(shares);
        let (again, _) =
            budget.claim("r", &[ask("a", "cpu:9", 2, 1), ask("b", "cpu:9", 2, 1)]).unwrap();
        assert_eq!(cores(&again), [vec![0], vec![1]]);
    }
}

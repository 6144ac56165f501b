//! What would make a pipeline faster, in words.

use crate::overlap::{ActorReport, OverlapReport};

/// A share of what is possible from which on there is nothing to gain worth a word.
const GOOD: f64 = 0.95;
/// A slowdown, or a share of overhead, from which on it is named.
const WORTH_NAMING: f64 = 0.1;

/// What would help, the most promising first.
pub(crate) fn of(report: &OverlapReport) -> Vec<String> {
    let (Some(bound), Some(achieved)) = (report.bound, report.achieved) else {
        return Vec::new();
    };
    let mut advice = Vec::new();
    let few = report.in_flight_needed.filter(|needed| report.in_flight < *needed);
    if let Some(needed) = few {
        advice.push(format!(
            "raise in_flight from {} to at least {needed}: the bottleneck could take an item every \
             {:.3} ms, and so few do not last until the first of them is through",
            report.in_flight,
            1e3 / bound,
        ));
    } else if achieved < GOOD && report.in_flight_mean < 0.8 * report.in_flight as f64 {
        advice.push(format!(
            "offer items faster: {:.1} were in flight on average, and {} may be",
            report.in_flight_mean, report.in_flight
        ));
    }
    overhead(report, &mut advice);
    interference(report, &mut advice);
    bottleneck(report, &mut advice);
    advice
}

fn overhead(report: &OverlapReport, advice: &mut Vec<String>) {
    let heavy = report
        .actors
        .iter()
        .filter(|actor| actor.items > 0 && actor.overhead_us > WORTH_NAMING * actor.service_us);
    let heaviest = heavy.max_by(|a, b| a.overhead_us.total_cmp(&b.overhead_us));
    if let Some(actor) = heaviest {
        advice.push(format!(
            "make micro-batches larger: actor `{}` spends {:.1} µs per firing on handing over, beside \
             {:.1} µs of computing",
            actor.actor, actor.overhead_us, actor.service_us
        ));
    }
}

fn interference(report: &OverlapReport, advice: &mut Vec<String>) {
    let slowed = report.actors.iter().filter_map(|actor| Some((actor, actor.slowdown?)));
    let slowed = slowed.filter(|(_, slowdown)| *slowdown > 1.0 + WORTH_NAMING);
    if let Some((actor, slowdown)) = slowed.max_by(|a, b| a.1.total_cmp(&b.1)) {
        advice.push(format!(
            "stages slow each other down: actor `{}` takes {slowdown:.2} times as long as alone; give \
             them cores of their own, or less memory traffic",
            actor.actor
        ));
    }
}

/// How the bound itself could rise.
fn bottleneck(report: &OverlapReport, advice: &mut Vec<String>) {
    let named = report.bottleneck_actor.as_deref();
    let Some(limit) = report.actors.iter().find(|actor| Some(&*actor.name) == named) else {
        return;
    };
    let beside: Vec<&ActorReport> =
        report.actors.iter().filter(|actor| actor.device == limit.device).collect();
    let replicas: Vec<&ActorReport> =
        report.actors.iter().filter(|actor| actor.actor == limit.actor).collect();
    let lanes: usize = report.devices.iter().map(|device| device.lanes).sum();
    let device = report.devices.iter().find(|device| device.device == limit.device);
    let total: f64 = report.actors.iter().map(|actor| actor.item_us).sum();
    // What an even share of the work would allow.
    let even = report.ceiling.is_none_or(|ceiling| ceiling >= 0.9 * lanes as f64);
    if beside.len() > 1 && device.is_some_and(|device| device.lanes < beside.len()) {
        let names: Vec<String> = beside.iter().map(|actor| format!("`{}`", actor.name)).collect();
        advice.push(format!(
            "give device {} another lane, or move one of its actors {} elsewhere: they take turns",
            limit.device,
            names.join(", ")
        ));
    } else if !even {
        advice.push(format!(
            "rebalance: actor `{}` takes {:.3} of the {:.3} ms of an item; move work from it to the \
             others, or {}",
            limit.actor,
            replicas.iter().map(|actor| actor.item_us).sum::<f64>() / 1e3,
            total / 1e3,
            if replicas.len() > 1 {
                "give it one more replica, on another lane of its device"
            } else {
                "replicate it on another lane of its device"
            }
        ));
    } else if report.achieved.is_some_and(|achieved| achieved >= GOOD) {
        advice.push(format!(
            "this is what these stages can do: {} actor `{}`, or add a device, for more",
            if replicas.len() > 1 { "add a replica of" } else { "replicate" },
            limit.actor
        ));
    }
}

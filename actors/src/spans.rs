//! Spans and events for whoever has a `tracing` subscriber. Everything here is empty without the
//! feature `tracing`.
//!
//! A firing is a span `firing` with the fields `actor`, `device` and `item`; it is entered while the
//! stage is called for it, and closed when the firing is complete. Events, all with the target
//! `brigade_actors`: a restarted actor and a stage that panicked (warn), an item that is not computed
//! any more, or was turned away in front of the pipeline: dropped by the policy for a full one, or
//! waited too long (debug); a payload that panicked as it was dropped (warn), the end of a pipeline (info, or error if it failed), a thread that a stop left
//! behind (warn).

#[cfg(feature = "tracing")]
pub(crate) use on::*;

#[cfg(not(feature = "tracing"))]
pub(crate) use off::*;

#[cfg(feature = "tracing")]
mod on {
    use crate::error::ItemError;
    use crate::metrics::PipelineState;
    use crate::packet::Seq;

    const TARGET: &str = "brigade_actors";

    /// The span of a firing.
    pub(crate) struct FiringSpan(tracing::Span);

    impl FiringSpan {
        pub(crate) fn new(actor: &str, device: &str, item: Seq) -> Self {
            let item = item.number();
            Self(tracing::info_span!(target: TARGET, "firing", actor, device, item))
        }

        /// Runs the stage inside the span.
        pub(crate) fn within<R>(&self, run: impl FnOnce() -> R) -> R {
            self.0.in_scope(run)
        }

        /// One more handle on the span.
        pub(crate) fn share(&self) -> Self {
            Self(self.0.clone())
        }
    }

    pub(crate) fn went_down(actor: &str, cause: &ItemError) {
        let cause = cause.message();
        tracing::warn!(target: TARGET, actor, cause, "the stage went down");
    }

    pub(crate) fn restarted(actor: &str, attempt: usize) {
        tracing::warn!(target: TARGET, actor, attempt, "the stage is built anew");
    }

    pub(crate) fn dropped(actor: &str, item: Seq, cause: &ItemError) {
        let (item, cause) = (item.number(), cause.message());
        tracing::debug!(target: TARGET, actor, item, cause, "the item is not computed");
    }

    /// An item was dropped or expired before it was let in.
    pub(crate) fn turned_away(pipeline: &str, item: Seq, cause: &ItemError) {
        let (item, kind, cause) = (item.number(), cause.kind(), cause.message());
        tracing::debug!(target: TARGET, pipeline, item, ?kind, cause, "the item is turned away");
    }

    pub(crate) fn panicked_in_drop(cause: &ItemError) {
        let cause = cause.message();
        tracing::warn!(target: TARGET, cause, "a payload panicked as it was dropped");
    }

    pub(crate) fn stopped(pipeline: &str, state: PipelineState, cause: &ItemError) {
        let cause = cause.message();
        if state == PipelineState::Failed {
            tracing::error!(target: TARGET, pipeline, cause, "the pipeline failed");
        } else {
            tracing::info!(target: TARGET, pipeline, cause, "the pipeline stops");
        }
    }

    pub(crate) fn left_behind(actor: &str) {
        tracing::warn!(target: TARGET, actor, "the thread is stuck and was left behind");
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    use crate::error::ItemError;
    use crate::metrics::PipelineState;
    use crate::packet::Seq;

    pub(crate) struct FiringSpan;

    impl FiringSpan {
        pub(crate) const fn new(_actor: &str, _device: &str, _item: Seq) -> Self {
            Self
        }

        pub(crate) fn within<R>(&self, run: impl FnOnce() -> R) -> R {
            run()
        }

        pub(crate) const fn share(&self) -> Self {
            Self
        }
    }

    pub(crate) const fn went_down(_actor: &str, _cause: &ItemError) {}
    pub(crate) const fn restarted(_actor: &str, _attempt: usize) {}
    pub(crate) const fn dropped(_actor: &str, _item: Seq, _cause: &ItemError) {}
    pub(crate) const fn turned_away(_pipeline: &str, _item: Seq, _cause: &ItemError) {}
    pub(crate) const fn panicked_in_drop(_cause: &ItemError) {}
    pub(crate) const fn stopped(_pipeline: &str, _state: PipelineState, _cause: &ItemError) {}
    pub(crate) const fn left_behind(_actor: &str) {}
}

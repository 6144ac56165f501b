//! What a `tracing` subscriber sees of a pipeline.
#![cfg(feature = "tracing")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod kit;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brigade_actors::{Options, Pipeline, WhenFull};
use kit::{MS, chain, failing, map, panicking, sleepy, within};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps what it is told.
#[derive(Default)]
struct Recorder {
    next: AtomicU64,
    spans: Mutex<BTreeMap<u64, Span>>,
    events: Mutex<Vec<String>>,
}

#[derive(Default, Debug)]
struct Span {
    fields: BTreeMap<String, String>,
    handles: usize,
    entered: usize,
    exited: usize,
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl Recorder {
    fn span(&self, id: &Id, change: impl FnOnce(&mut Span)) {
        change(self.spans.lock().unwrap().get_mut(&id.into_u64()).unwrap());
    }

    fn saw(&self, words: &[&str]) -> bool {
        let events = self.events.lock().unwrap();
        events.iter().any(|event| words.iter().all(|word| event.contains(word)))
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "brigade_actors"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        fields.0.insert("name".into(), span.metadata().name().into());
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let span = Span { fields: fields.0, handles: 1, ..Span::default() };
        self.spans.lock().unwrap().insert(id, span);
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let text = format!("{} {:?}", event.metadata().level(), fields.0);
        self.events.lock().unwrap().push(text);
    }

    fn enter(&self, id: &Id) {
        self.span(id, |span| span.entered += 1);
    }

    fn exit(&self, id: &Id) {
        self.span(id, |span| span.exited += 1);
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.span(id, |span| span.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut closed = false;
        self.span(&id, |span| {
            span.handles -= 1;
            closed = span.handles == 0;
        });
        closed
    }
}

/// Items that the policy drops, and that wait too long in the queue, are told of; their firings are not
/// kept.
fn turn_away(seen: &Recorder) {
    let before = seen.spans.lock().unwrap().keys().copied().collect::<Vec<_>>();
    let options =
        Options::new().name("drops").in_flight(1).when_full(WhenFull::DropNewest).queue(0);
    let pipeline = Pipeline::spawn(chain(vec![sleepy(30 * MS)]), options).unwrap();
    let tickets: Vec<_> = (0..2).map(|x| pipeline.push(vec![x]).unwrap()).collect();
    assert_eq!(tickets.into_iter().map(|t| t.wait()).filter(Result::is_ok).count(), 1);
    drop(pipeline);
    let options = Options::new().name("ages").in_flight(1).max_age(5 * MS);
    let pipeline = Pipeline::spawn(chain(vec![sleepy(60 * MS)]), options).unwrap();
    let tickets: Vec<_> = (0..2).map(|x| pipeline.push(vec![x]).unwrap()).collect();
    assert_eq!(tickets.into_iter().map(|t| t.wait()).filter(Result::is_ok).count(), 1);
    drop(pipeline);
    assert!(seen.saw(&["DEBUG", "turned away", "drops", "Dropped"]));
    assert!(seen.saw(&["DEBUG", "turned away", "ages", "Expired"]));
    seen.spans.lock().unwrap().retain(|id, _| before.contains(id));
}

/// Actors have threads of their own, so the subscriber is that of the process: one test, in order.
#[test]
fn a_subscriber_sees_firings_restarts_drops_and_stops() {
    let seen = Arc::new(Recorder::default());
    tracing::subscriber::set_global_default(Arc::clone(&seen)).unwrap();
    within(Duration::from_secs(60), move || {
        let options = Options::new().name("watched").in_flight(2).restart_backoff(MS);
        let pipeline =
            Pipeline::spawn(chain(vec![failing(4, "no"), map(|x| x), panicking(7)]), options)
                .unwrap();
        let failed = pipeline.stream((1..=10).map(|x| vec![x])).filter(Result::is_err).count();
        assert_eq!(failed, 3);
        pipeline.shutdown();
        turn_away(&seen);
        let spans = seen.spans.lock().unwrap();
        // Ten at the first, eight at the others: items 4 and 8 failed at the first.
        let of = |actor: &str| {
            let of_actor = spans.values().filter(|span| span.fields["actor"] == actor);
            of_actor.map(|span| span.fields["item"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(of("a0"), (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(of("a1"), ["0", "1", "2", "4", "5", "6", "8", "9"]);
        assert_eq!(of("a2"), of("a1"));
        for span in spans.values() {
            assert_eq!(span.fields["name"], "firing");
            assert_eq!(span.fields["device"], span.fields["actor"].replace('a', "cpu:"));
            assert_eq!((span.handles, span.entered, span.exited), (0, 1, 1), "{span:?}");
        }
        assert!(seen.saw(&["WARN", "went down", "a2", "boom at 7"]));
        assert!(seen.saw(&["WARN", "built anew", "a2"]));
        assert!(seen.saw(&["DEBUG", "not computed", "a1", "no 4"]));
        assert!(seen.saw(&["INFO", "the pipeline stops", "watched"]));
        assert!(!seen.saw(&["ERROR"]));
    });
}

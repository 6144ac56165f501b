//! A worker, driven by a scripted coordinator over the transport inside of one process.
#![allow(clippy::unwrap_used, clippy::panic)]

mod loss;
mod refusals;
mod run;

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_actors::transport::{
    Accept, Frame, Incoming, Link, LinkError, Transport, TransportOptions, transport,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::{Serving, Worker};
use crate::cluster::StageSpec;
use crate::cluster::message::{
    Feed, FiringKey, Form, Message, OutputKey, PROTOCOL, SessionId, WireError,
};
use crate::device::{
    CompiledSegment, Device, DeviceId, DeviceInfo, Instance, InstanceOptions, Support, Unavailable,
};
use crate::error::{Error, Result, err};
use crate::graph::{Fact, Graph, Node};
use crate::ops::builder::GraphBuilder;
use crate::ops::{CompileOptions, Precision};
use crate::tensor::{Buffer, Tensor, Value};
use crate::{DType, ErrorKind, Registry};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A lease that no test outlives, and one that each does.
const LONG: u64 = 60_000;
const SHORT: u64 = 200;

fn local() -> Arc<dyn Transport> {
    with(&TransportOptions::new())
}

fn with(options: &TransportOptions) -> Arc<dyn Transport> {
    (transport("local").unwrap().open)(options).unwrap()
}

fn serve(transport: &Arc<dyn Transport>, name: &str) -> Serving {
    Worker::new(name).serve(Arc::clone(transport), name).unwrap()
}

fn id(n: u8) -> SessionId {
    SessionId([n; 16])
}

fn of(stage: u64, firing: u64) -> FiringKey {
    FiringKey { stage, firing }
}

fn out(stage: u64, firing: u64, output: u32) -> OutputKey {
    OutputKey { of: of(stage, firing), output }
}

/// Waits until `check` holds.
fn until(what: &str, check: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !check() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// One end of a link that says what it is told to say, and shows what it hears.
struct Script {
    link: Link,
    heard: Receiver<(Message, Vec<u8>)>,
    closed: Receiver<LinkError>,
}

struct Ear {
    heard: Sender<(Message, Vec<u8>)>,
    closed: Sender<LinkError>,
}

struct Whole(Message, Vec<u8>, Sender<(Message, Vec<u8>)>);

impl Accept for Ear {
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        let bytes = vec![0; length as usize];
        Ok(Box::new(Whole(Message::decode(head)?, bytes, self.heard.clone())))
    }

    fn closed(&mut self, why: LinkError) {
        let _ = self.closed.try_send(why);
    }
}

impl Incoming for Whole {
    fn buffer(&mut self) -> &mut [u8] {
        &mut self.1
    }

    fn complete(self: Box<Self>) {
        let Self(message, bytes, heard) = *self;
        if !matches!(message, Message::Progress { .. }) {
            let _ = heard.send(((message), bytes));
        }
    }
}

impl Script {
    fn dial(transport: &Arc<dyn Transport>, address: &str) -> Self {
        Self::dial_hearing(transport, address, 1024)
    }

    /// Dials; the transport waits where so many messages are heard and not looked at.
    fn dial_hearing(transport: &Arc<dyn Transport>, address: &str, most: usize) -> Self {
        let (heard, hear) = bounded(most);
        let (closed, close) = bounded(1);
        let ear = Box::new(Ear { heard, closed });
        let link = transport.connect(address, ear, Instant::now() + PATIENCE).unwrap();
        Self { link, heard: hear, closed: close }
    }

    /// Dials and opens a session, in which the worker has the name that it listens at.
    fn open(transport: &Arc<dyn Transport>, address: &str, session: u8, lease_ms: u64) -> Self {
        Self::dial(transport, address).introduced(address, session, lease_ms)
    }

    fn introduced(self, address: &str, session: u8, lease_ms: u64) -> Self {
        self.tell(&Message::Open {
            protocol: PROTOCOL,
            session: id(session),
            name: address.to_owned(),
            lease_ms,
        });
        self
    }

    fn opened(&self) -> bool {
        match self.next().0 {
            Message::Opened { resumed, .. } => resumed,
            other => panic!("{other:?}"),
        }
    }

    fn tell(&self, message: &Message) {
        self.tell_with(message, Vec::new());
    }

    /// Sends, as soon as there is room.
    fn tell_with(&self, message: &Message, payload: Vec<u8>) {
        let deadline = Instant::now() + PATIENCE;
        let (head, payload) = (message.encode().unwrap(), Arc::new(payload));
        loop {
            match self.link.send(Frame::new(head.clone(), Arc::clone(&payload))) {
                Ok(()) => return,
                Err(LinkError::Full { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(e) => panic!("{message:?}: {e}"),
            }
        }
    }

    fn next(&self) -> (Message, Vec<u8>) {
        match self.heard.recv_timeout(PATIENCE) {
            Ok(heard) => heard,
            Err(_) => panic!("nothing heard; closed: {:?}", self.closed.try_recv()),
        }
    }

    /// Nothing comes: answered pings show that what was told before was dealt with.
    fn silent(&self) {
        self.tell(&Message::Ping { token: 77 });
        match self.next().0 {
            Message::Pong { token: 77, .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn why_closed(&self) -> LinkError {
        self.closed.recv_timeout(PATIENCE).unwrap()
    }

    fn ship(&self, stage: u64, epoch: u32, spec: &StageSpec) {
        self.tell_with(&Message::Ship { stage, epoch }, spec.encode().unwrap());
    }

    /// Ships and waits until it is ready.
    fn place(&self, stage: u64, spec: &StageSpec) {
        self.ship(stage, 1, spec);
        match self.next().0 {
            Message::Ready { stage: s, epoch: 1, .. } if s == stage => {}
            other => panic!("{other:?}"),
        }
    }

    fn refused(&self) -> Error {
        match self.next().0 {
            Message::Refused { error, .. } => error.into_error("w"),
            other => panic!("{other:?}"),
        }
    }

    fn input(&self, of: FiringKey, port: u32, value: &Value) {
        let (form, bytes) = Form::of(value).unwrap();
        self.tell_with(&Message::Input { of, port, form }, bytes.as_bytes().to_vec());
    }

    fn fire(&self, of: FiringKey, feeds: &[Feed], give: &[u32]) {
        self.tell(&Message::Fire { of, epoch: 1, feeds: feeds.to_vec(), give: give.to_vec() });
    }

    /// Sends one input, and the order to compute and give.
    fn run(&self, of: FiringKey, value: &Value, give: &[u32]) {
        self.input(of, 0, value);
        self.fire(of, &[Feed::Sent], give);
    }

    fn output(&self) -> (FiringKey, u32, Value) {
        match self.next() {
            (Message::Output { of, output, form }, bytes) => {
                (of, output, form.value(Buffer::copy_of(&bytes)).unwrap())
            }
            (other, _) => panic!("{other:?}"),
        }
    }

    fn done(&self, of: FiringKey) -> Vec<(u32, DType, Vec<u64>)> {
        match self.next().0 {
            Message::Done { of: done, start_ns, end_ns, kept } => {
                assert_eq!(done, of);
                assert!(start_ns <= end_ns && end_ns > 0);
                kept
            }
            other => panic!("{other:?}"),
        }
    }

    fn failed(&self, of: FiringKey) -> Error {
        match self.next().0 {
            Message::Failed { of: failed, error } => {
                assert_eq!(failed, of);
                error.into_error("w")
            }
            other => panic!("{other:?}"),
        }
    }

    fn settled(&self, ticket: u64) -> Option<WireError> {
        match self.next().0 {
            Message::Settled { ticket: t, error } if t == ticket => error,
            other => panic!("{other:?}"),
        }
    }

    fn nothing_more(&self) {
        match self.heard.recv_timeout(Duration::from_millis(50)) {
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            Ok((message, _)) => panic!("{message:?}"),
        }
    }
}

fn floats(values: &[f32]) -> Value {
    Tensor::new([values.len()], values.to_vec()).unwrap().into()
}

/// `y = relu(x)` over `f32[N]`.
fn relu() -> StageSpec {
    let mut g = GraphBuilder::new("relu");
    let x = g.input("x", DType::F32, ["N".into()]).unwrap();
    let y = g.relu(x).unwrap();
    StageSpec::new(g.finish([("y", y)]).unwrap())
}

/// `y = a + b` over `f32[2]`.
fn add() -> StageSpec {
    let mut g = GraphBuilder::new("add");
    let a = g.input("a", DType::F32, [2.into()]).unwrap();
    let b = g.input("b", DType::F32, [2.into()]).unwrap();
    let y = g.add(a, b).unwrap();
    StageSpec::new(g.finish([("y", y)]).unwrap())
}

/// A device that does what the first number of its input says: panics below 0, fails at 0, waits
/// for a token at 99, and else gives its input back.
#[derive(Debug)]
struct Odd {
    id: DeviceId,
    tokens: Receiver<()>,
}

#[derive(Debug)]
struct OddSegment(Receiver<()>);

struct OddInstance(Receiver<()>);

/// A registry with the device `odd:0`, and the way to give it tokens.
fn odd() -> (Registry, Sender<()>) {
    let (token, tokens) = bounded(16);
    let odd = Odd { id: "odd:0".parse().unwrap(), tokens };
    (Registry::default().with_device(Arc::new(odd)), token)
}

impl Device for Odd {
    fn id(&self) -> &DeviceId {
        &self.id
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        Ok(DeviceInfo {
            name: "odd".to_owned(),
            features: Vec::new(),
            cores: None,
            memory_bytes: None,
            lanes: 2,
            software: true,
        })
    }

    fn lanes(&self) -> usize {
        2
    }

    fn supports(&self, _: &Node, _: &[Option<Fact>]) -> Support {
        Support::Yes
    }

    fn compile(&self, graph: Graph, _: &CompileOptions) -> Result<Arc<dyn CompiledSegment>> {
        if graph.name == "panic" {
            panic!("a compiler that panics");
        }
        Ok(Arc::new(OddSegment(self.tokens.clone())))
    }
}

impl CompiledSegment for OddSegment {
    fn inputs(&self) -> Vec<(String, Fact)> {
        vec![("x".to_owned(), Fact::unknown())]
    }

    fn outputs(&self) -> Vec<String> {
        vec!["y".to_owned()]
    }

    fn weight_bytes(&self) -> usize {
        0
    }

    fn instance(&self, _: InstanceOptions) -> Result<Box<dyn Instance>> {
        Ok(Box::new(OddInstance(self.0.clone())))
    }
}

impl Instance for OddInstance {
    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        let first = inputs[0].tensor()?.as_slice::<f32>()?[0];
        if first < 0.0 {
            panic!("an odd panic");
        }
        if first == 0.0 {
            return Err(err!(Kernel, "an odd failure"));
        }
        if first == 99.0 {
            self.0.recv_timeout(PATIENCE).unwrap();
        }
        Ok(inputs)
    }
}

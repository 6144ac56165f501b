//! What coordinator and workers say to each other: the heads of frames.
//!
//! A head is one [`Message`], encoded by the one codec of the workspace (fixed-width little-endian
//! integers, a limit, no bytes left over); the payload behind it, if there is one, is a tensor's
//! elements as they lie in memory, a stage spec, or an encoded [`Value`]. What each message means,
//! who sends it and what the answer is stands in `actors/PROTOCOL.md`.

use brigade_actors::codec;
use brigade_actors::transport::{HEAD_LIMIT, LinkError};
use serde::{Deserialize, Serialize};

use super::question;
use crate::error::{Error, ErrorKind, Result, bail, err};
use crate::graph::{Fact, nested};
use crate::tensor::{Buffer, BufferPool, DType, Shape, Tensor, Value, element_count};

/// The version of these messages; both sides must speak the same one.
pub(crate) const PROTOCOL: u32 = 2;

/// The most values that one stage reads or makes.
pub(crate) const MAX_PORTS: usize = 4096;

/// Names the session of a coordinator on all its workers; hard to guess, since whoever knows it may
/// hand tensors to the session's stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct SessionId(pub(crate) [u8; 16]);

/// What was fired: a stage, and the number of the firing, which no other one of the session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct FiringKey {
    pub(crate) stage: u64,
    pub(crate) firing: u64,
}

/// One output of a firing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct OutputKey {
    pub(crate) of: FiringKey,
    pub(crate) output: u32,
}

/// How the value in a payload is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Form {
    /// A tensor's elements, little-endian, in row-major order.
    Plain { dtype: DType, shape: Vec<u64> },
    /// Anything else, encoded.
    Encoded,
}

/// Where an input of a firing comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Feed {
    /// The coordinator sends it, before the firing.
    Sent,
    /// Another stage's worker hands it over, or this worker has it.
    Held(OutputKey),
}

/// An error of the other side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireError {
    kind: String,
    message: String,
    node: Option<(String, String)>,
    shapes: Option<String>,
    device: Option<String>,
    help: Option<String>,
}

/// A device that a worker offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) device: String,
    pub(crate) product: String,
    pub(crate) lanes: u32,
    pub(crate) software: bool,
}

/// What was measured of a link from one side to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// One way, in nanoseconds.
    pub(crate) latency_ns: u64,
    pub(crate) bytes_per_s: u64,
}

/// What a stage took to be made ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Readiness {
    pub(crate) load_ns: u64,
    pub(crate) compile_ns: u64,
    /// Bytes of weights that the compiled stage holds.
    pub(crate) weight_bytes: u64,
    /// Bytes of weights that were read from files, as they are stored.
    pub(crate) read_bytes: u64,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Coordinator to worker, first: begins a session, or takes one up again.
    Open { protocol: u32, session: SessionId, name: String, lease_ms: u64 },
    /// The answer.
    Opened { resumed: bool, name: String, offers: Vec<Offer>, quota_bytes: u64, clock_ns: u64 },
    /// A stage spec follows as payload.
    Ship { stage: u64, epoch: u32 },
    /// How far loading is.
    Progress { stage: u64, epoch: u32, tensors: u64, bytes: u64 },
    /// The stage is compiled.
    Ready { stage: u64, epoch: u32, took: Readiness },
    /// The stage is not, and why.
    Refused { stage: u64, epoch: u32, error: WireError },
    /// An output of a stage of another worker will come here, from this epoch on.
    Expect { ticket: u64, stage: u64, epoch: u32, output: u32, fact: Fact },
    /// The outputs of this stage with this number go to these workers, names with addresses.
    Route { ticket: u64, stage: u64, output: u32, to: Vec<(String, String)> },
    /// The answer to `Expect` and `Route`.
    Settled { ticket: u64, error: Option<WireError> },
    /// An input of a firing follows as payload.
    Input { of: FiringKey, port: u32, form: Form },
    /// Computes. The outputs in `give` are sent to the coordinator, the others kept.
    Fire { of: FiringKey, epoch: u32, feeds: Vec<Feed>, give: Vec<u32> },
    /// An output that is given follows as payload.
    Output { of: FiringKey, output: u32, form: Form },
    /// A firing is complete; every given output came before. Times are the worker's clock. The
    /// outputs that are kept have these forms.
    Done { of: FiringKey, start_ns: u64, end_ns: u64, kept: Vec<(u32, DType, Vec<u64>)> },
    /// A firing failed.
    Failed { of: FiringKey, error: WireError },
    /// Hands a kept output over to a worker, once more.
    Send { what: OutputKey, to: (String, String) },
    /// Nobody needs what these firings made any more.
    Release { firings: Vec<FiringKey> },
    /// Ends a stage.
    Drop { stage: u64 },
    /// A worker could not be reached from here.
    Unreachable { worker: String, error: WireError },
    /// Asks whether the other side is there, and for its clock.
    Ping { token: u64 },
    /// The answer.
    Pong { token: u64, clock_ns: u64 },
    /// The worker takes no more stages and is about to end.
    Draining,
    /// Ends the session.
    Close,
    /// Worker to worker, first.
    Join { protocol: u32, session: SessionId, from: String },
    /// Worker to worker: an output of a stage follows as payload.
    Tensor { what: OutputKey, epoch: u32, form: Form },
    /// Which of some nodes, which follow as payload ([`Question`](super::question::Question)), does this device run?
    Supports { ticket: u64, device: String },
    /// The answer ([`Answers`](super::question::Answers)) follows as payload, unless there is an error.
    Supported { ticket: u64, error: Option<WireError> },
    /// Measures the link to another worker.
    Measure { ticket: u64, to: (String, String) },
    /// The answer.
    Measured { ticket: u64, link: Result<Measurement, WireError> },
    /// Bytes that mean nothing follow as payload; the answer is a `Pong`, when all of them are there.
    Probe { token: u64 },
    /// Worker to worker, first: the link is there to be measured, and for nothing else.
    Gauge { protocol: u32, session: SessionId, from: String },
}

/// The most bytes of a [`Message::Probe`].
pub(crate) const MAX_PROBE_BYTES: u64 = 4 << 20;

impl Message {
    /// The head of a frame.
    ///
    /// # Errors
    /// If it is longer than a head may be.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        codec::encode(self, HEAD_LIMIT as u64)
            .map_err(|e| err!(Limit, "a message does not fit into a frame").with_source(e))
    }

    /// The message of a head, whose lists and texts are no longer than the head.
    ///
    /// # Errors
    /// If the bytes are no message.
    pub(crate) fn decode(head: &[u8]) -> Result<Self, LinkError> {
        codec::decode(head, HEAD_LIMIT as u64)
            .map_err(|e| LinkError::Malformed { why: format!("no message: {e}") })
    }
}

/// Reads `bytes` as a message and as a value, and drops the outcome; for fuzzing.
#[doc(hidden)]
pub fn fuzz_messages(bytes: &[u8]) {
    let _ = Message::decode(bytes);
    let _ = super::StageSpec::decode(bytes);
    let _ = question::decode::<question::Question>(bytes);
    let _ = question::decode::<question::Answers>(bytes);
    super::group::fuzz_words(bytes);
    if let Ok(buffer) = Ok::<_, Error>(Buffer::copy_of(bytes)) {
        let _ = Form::Encoded.value(buffer);
    }
}

impl Form {
    /// The form of a value, and its bytes: for a tensor those that it has, without a copy.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn of(value: &Value) -> Result<(Self, Buffer)> {
        if let Value::Tensor(t) = value
            && t.dtype() != DType::String
        {
            let shape = t.shape().iter().map(|n| *n as u64).collect();
            return Ok((Self::Plain { dtype: t.dtype(), shape }, t.buffer().clone()));
        }
        let limit = value.bytes() as u64 * 2 + (64 << 20);
        let bytes = codec::encode(&Written::of(value)?, limit)
            .map_err(|e| err!(Limit, "{} cannot be sent", value.describe()).with_source(e))?;
        Ok((Self::Encoded, Buffer::copy_of(&bytes)))
    }

    /// Checks that a payload of this length fits the form, and the form what is declared.
    ///
    /// # Errors
    /// Says what does not fit.
    pub(crate) fn check(&self, length: u64, declared: &Fact) -> Result<()> {
        let Self::Plain { dtype, shape } = self else { return Ok(()) };
        let shape = extents(shape)?;
        let bytes = element_count(&shape, dtype.size())?.saturating_mul(dtype.size());
        if bytes as u64 != length {
            bail!(Format, "{dtype}{} takes {bytes} bytes, {length} follow", Shape::from(shape));
        }
        let fits = declared.dtype.is_none_or(|d| d == *dtype)
            && declared.shape.as_ref().is_none_or(|dims| {
                dims.len() == shape.len()
                    && dims.iter().zip(&shape).all(|(d, n)| {
                        d.as_fixed().is_none_or(|v| usize::try_from(v).is_ok_and(|v| v == *n))
                    })
            });
        if fits {
            return Ok(());
        }
        let kind = if declared.dtype.is_none_or(|d| d == *dtype) {
            ErrorKind::Shape
        } else {
            ErrorKind::DType
        };
        Err(Error::new(kind, format!("declared {declared}, got {dtype}{}", Shape::from(shape))))
    }

    /// The value in a payload.
    ///
    /// # Errors
    /// If the bytes are not one.
    pub(crate) fn value(&self, bytes: Buffer) -> Result<Value> {
        match self {
            Self::Plain { dtype, shape } => {
                Ok(Tensor::from_buffer(*dtype, extents(shape)?, bytes)?.into())
            }
            Self::Encoded => {
                let written: Written = codec::decode(bytes.as_bytes(), bytes.len() as u64)
                    .map_err(|e| err!(Format, "a payload holds no value").with_source(e))?;
                written.value(0)
            }
        }
    }
}

fn extents(shape: &[u64]) -> Result<Vec<usize>> {
    let extent = |n: &u64| {
        usize::try_from(*n)
            .map_err(|_| err!(Limit, "an extent of {n} is too large for this machine"))
    };
    shape.iter().map(extent).collect()
}

/// A buffer for a payload, from a pool.
///
/// # Errors
/// If the memory cannot be had.
pub(crate) fn buffer_for(pool: &BufferPool, length: u64) -> Result<Buffer> {
    let length = usize::try_from(length)
        .map_err(|_| err!(Limit, "a payload of {length} bytes is too large for this machine"))?;
    pool.allocate(length)
}

/// A value as it is encoded.
#[derive(Debug, Serialize, Deserialize)]
enum Written {
    Tensor(Tensor),
    #[serde(deserialize_with = "nested")]
    Sequence(Vec<Self>),
    #[serde(deserialize_with = "nested")]
    Optional(Option<Box<Self>>),
}

/// How deep sequences and optionals may be nested.
const MAX_DEPTH: usize = 8;

impl Written {
    fn of(value: &Value) -> Result<Self> {
        Ok(match value {
            Value::Tensor(t) => Self::Tensor(t.clone()),
            Value::Resident(r) => bail!(Internal, "{} is not on the host", r.describe()),
            Value::Sequence(all) => {
                Self::Sequence(all.iter().map(Self::of).collect::<Result<_>>()?)
            }
            Value::Optional(None) => Self::Optional(None),
            Value::Optional(Some(v)) => Self::Optional(Some(Box::new(Self::of(v)?))),
        })
    }

    fn value(self, depth: usize) -> Result<Value> {
        if depth > MAX_DEPTH {
            bail!(Limit, "a value is nested more than {MAX_DEPTH} deep");
        }
        Ok(match self {
            Self::Tensor(t) => t.into(),
            Self::Sequence(all) => {
                Value::Sequence(all.into_iter().map(|v| v.value(depth + 1)).collect::<Result<_>>()?)
            }
            Self::Optional(None) => Value::Optional(None),
            Self::Optional(Some(v)) => Value::Optional(Some(Box::new(v.value(depth + 1)?))),
        })
    }
}

/// The longest text of an error that is sent: what is longer is cut.
const MAX_WORDS: usize = 8 << 10;

pub(crate) fn cut(mut text: String) -> String {
    if text.len() > MAX_WORDS {
        let end = (0..=MAX_WORDS).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

impl From<&Error> for WireError {
    fn from(error: &Error) -> Self {
        let mut message = error.message().to_owned();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self {
            kind: error.kind().as_str().to_owned(),
            message: cut(message),
            node: error.node().map(|n| (n.to_owned(), error.op().unwrap_or("?").to_owned())),
            shapes: None,
            device: error.device().map(str::to_owned),
            help: error.help().map(|h| cut(h.to_owned())),
        }
    }
}

impl WireError {
    /// The error, as one of this worker.
    pub(crate) fn into_error(self, worker: &str) -> Error {
        let kind = ErrorKind::from_name(&self.kind).unwrap_or(ErrorKind::Internal);
        let mut error = Error::new(kind, format!("worker `{worker}`: {}", self.message));
        if let Some((node, op)) = &self.node {
            error = error.with_node(node, op);
        }
        if let Some(shapes) = self.shapes {
            error = error.with_shapes(shapes);
        }
        if let Some(device) = self.device {
            error = error.with_device(device);
        }
        match self.help {
            Some(help) => error.with_help(help),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::StageSpec;
    use crate::graph::Dim;
    use crate::import::mutate::Mutator;
    use crate::ops::builder::GraphBuilder;

    #[test]
    fn messages_and_values_come_back() {
        let of = FiringKey { stage: 3, firing: 9 };
        let message = Message::Fire {
            of,
            epoch: 1,
            feeds: vec![Feed::Sent, Feed::Held(OutputKey { of, output: 2 })],
            give: vec![0, 5],
        };
        let head = message.encode().unwrap();
        assert_eq!(Message::decode(&head).unwrap(), message);
        for end in 0..head.len() {
            assert!(Message::decode(&head[..end]).is_err(), "{end}");
        }
        let strings = Tensor::from_strings([2], vec!["a".into(), "é".into()]).unwrap();
        let sequence = Value::Sequence(vec![
            strings.into(),
            Value::Optional(Some(Box::new(Tensor::of_i64(&[1, 2]).into()))),
            Value::Optional(None),
        ]);
        for value in [sequence, Tensor::zeros(DType::F16, [2, 3]).unwrap().into()] {
            let (form, bytes) = Form::of(&value).unwrap();
            assert_eq!(form.value(Buffer::copy_of(bytes.as_bytes())).unwrap(), value);
        }
    }

    /// One message of each kind, in the order of their numbers.
    fn one_of_each() -> Vec<Message> {
        let (session, protocol) = (SessionId([7; 16]), PROTOCOL);
        let of = FiringKey { stage: 3, firing: 9 };
        let what = OutputKey { of, output: 2 };
        let to = ("w2".to_owned(), "10.0.0.2:7000".to_owned());
        let form = Form::Plain { dtype: DType::F32, shape: vec![2, 3] };
        let fact = Fact::new(DType::F32, [Dim::symbol("N"), Dim::fixed(3)]);
        let error = WireError::from(
            &err!(Device, "there is no device").with_node("n1", "Conv").with_help("name another"),
        );
        let offer = Offer {
            device: "cpu:0".to_owned(),
            product: "a CPU".to_owned(),
            lanes: 1,
            software: false,
        };
        let took = Readiness { load_ns: 1, compile_ns: 2, weight_bytes: 3, read_bytes: 4 };
        let feeds = vec![Feed::Sent, Feed::Held(what)];
        let (failed, measured) = (error.clone(), to.clone());
        vec![
            Message::Open { protocol, session, name: "w1".to_owned(), lease_ms: 5000 },
            Message::Opened {
                resumed: true,
                name: "w1".to_owned(),
                offers: vec![offer],
                quota_bytes: 1 << 30,
                clock_ns: 5,
            },
            Message::Ship { stage: 3, epoch: 1 },
            Message::Progress { stage: 3, epoch: 1, tensors: 4, bytes: 64 },
            Message::Ready { stage: 3, epoch: 1, took },
            Message::Refused { stage: 3, epoch: 1, error: error.clone() },
            Message::Expect { ticket: 8, stage: 3, epoch: 1, output: 2, fact },
            Message::Route { ticket: 8, stage: 3, output: 2, to: vec![to.clone()] },
            Message::Settled { ticket: 8, error: Some(error.clone()) },
            Message::Input { of, port: 1, form: form.clone() },
            Message::Fire { of, epoch: 1, feeds, give: vec![0, 2] },
            Message::Output { of, output: 2, form: Form::Encoded },
            Message::Done { of, start_ns: 1, end_ns: 2, kept: vec![(2, DType::F32, vec![2, 3])] },
            Message::Failed { of, error: error.clone() },
            Message::Send { what, to },
            Message::Release { firings: vec![of; 2] },
            Message::Drop { stage: 3 },
            Message::Unreachable { worker: "w2".to_owned(), error },
            Message::Ping { token: 6 },
            Message::Pong { token: 6, clock_ns: 5 },
            Message::Draining,
            Message::Close,
            Message::Join { protocol, session, from: "w1".to_owned() },
            Message::Tensor { what, epoch: 1, form },
            Message::Supports { ticket: 8, device: "cpu:0".to_owned() },
            Message::Supported { ticket: 8, error: Some(failed.clone()) },
            Message::Measure { ticket: 8, to: measured },
            Message::Measured { ticket: 8, link: Err(failed) },
            Message::Probe { token: 6 },
            Message::Gauge { protocol, session, from: "w1".to_owned() },
        ]
    }

    #[test]
    fn every_message_comes_back_and_no_part_of_one_is_one() {
        let all = one_of_each();
        for (number, message) in (0_u32..).zip(&all) {
            let head = message.encode().unwrap();
            assert_eq!(head[..4], number.to_le_bytes(), "{message:?}");
            assert_eq!(&Message::decode(&head).unwrap(), message);
            for end in 0..head.len() {
                assert!(Message::decode(&head[..end]).is_err(), "{message:?}, {end} bytes");
            }
            let longer = [&head[..], &[0]].concat();
            assert!(Message::decode(&longer).is_err(), "{message:?}, a byte left over");
        }
        // None is missing above: the next number is no message.
        let mut next = vec![0; 256];
        next[..4].copy_from_slice(&(all.len() as u32).to_le_bytes());
        let error = Message::decode(&next).unwrap_err();
        assert!(error.to_string().contains("variant index"), "{error}");
    }

    #[test]
    fn mutated_messages_specs_and_values_are_read_or_refused() {
        let mut seeds: Vec<Vec<u8>> =
            one_of_each().iter().map(|message| message.encode().unwrap()).collect();
        let mut graph = GraphBuilder::new("layer");
        let x = graph.input("x", DType::F32, ["N".into(), 4.into()]).unwrap();
        let w = graph.param("w", DType::F32, &[4, 2]).unwrap();
        let h = graph.matmul(x, w).unwrap();
        let y = graph.relu(h).unwrap();
        let spec = StageSpec::new(graph.finish([("y", y)]).unwrap())
            .weight("w", "safetensors://layer.safetensors#w")
            .device("cpu:1")
            .stage_id("layer-1")
            .memory_bytes(1 << 20);
        seeds.push(spec.encode().unwrap());
        let strings = Tensor::from_strings([2], vec!["a".into(), "é".into()]).unwrap();
        let list = Value::Sequence(vec![strings.into(), Value::Optional(None)]);
        seeds.push(Form::of(&list).unwrap().1.as_bytes().to_vec());
        let nodes: question::Question =
            spec.graph().nodes().iter().map(|n| (n.clone(), vec![Some(Fact::unknown())])).collect();
        let answers: question::Answers =
            vec![question::Answer::Yes, question::Answer::No("why".to_owned())];
        seeds.push(question::encode(&nodes).unwrap());
        seeds.push(question::encode(&answers).unwrap());
        let mut random = Mutator::new(0x4D5);
        for seed in &seeds {
            fuzz_messages(seed);
            for _ in 0..500 {
                fuzz_messages(&random.mutate(seed));
            }
        }
    }

    #[test]
    fn what_pretends_to_be_nested_without_end_is_no_value() {
        // Sequences of one sequence.
        let level = [&1_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat();
        let error = Form::Encoded.value(Buffer::copy_of(&level.repeat(1 << 18))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Format);
        // A fact whose only extent is a quotient of quotients.
        let fact = Fact { dtype: None, shape: Some(vec![Dim::fixed(0)]) };
        let message = Message::Expect { ticket: 0, stage: 0, epoch: 0, output: 0, fact };
        let mut head = message.encode().unwrap();
        head.truncate(head.len() - 8);
        let level = [&1_u64.to_le_bytes()[..], &1_u64.to_le_bytes(), &1_u32.to_le_bytes()].concat();
        head.extend(level.repeat(3000));
        assert!(matches!(Message::decode(&head), Err(LinkError::Malformed { .. })));
    }

    #[test]
    fn a_payload_is_checked_before_it_is_read() {
        let fact = Fact::new(DType::F32, [Dim::symbol("N"), Dim::fixed(3)]);
        let plain = |dtype, shape: &[u64]| Form::Plain { dtype, shape: shape.to_vec() };
        plain(DType::F32, &[7, 3]).check(84, &fact).unwrap();
        for (form, length, kind) in [
            (plain(DType::F32, &[7, 3]), 83, ErrorKind::Format),
            (plain(DType::F32, &[7, 4]), 112, ErrorKind::Shape),
            (plain(DType::F32, &[21]), 84, ErrorKind::Shape),
            (plain(DType::I32, &[7, 3]), 84, ErrorKind::DType),
            (plain(DType::F32, &[u64::MAX, 3]), 84, ErrorKind::Shape),
            (plain(DType::F32, &[1 << 40, 1 << 40]), 0, ErrorKind::Shape),
        ] {
            let error = form.check(length, &fact).unwrap_err();
            assert!(matches!(error.kind(), k if k == kind || k == ErrorKind::Limit), "{error:?}");
        }
    }

    #[test]
    fn errors_keep_their_kind_and_words() {
        let error = err!(Shape, "cannot broadcast").with_node("a", "Add").with_help("do that");
        let there = WireError::from(&error).into_error("w1");
        assert_eq!(there.kind(), ErrorKind::Shape);
        let text = "worker `w1`: cannot broadcast [at node `a` (Add)]; help: do that";
        assert_eq!(there.to_string(), text);
        let long = WireError::from(&Error::new(ErrorKind::Io, "é".repeat(1 << 20)));
        assert!(long.message.len() <= MAX_WORDS + 4);
    }
}

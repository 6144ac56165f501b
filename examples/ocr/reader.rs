//! The reader: three models and the functions between them, as one topology and one by one.

use std::sync::Arc;

use brigade::actors::{Batching, Flow, Operator, Options, Payload, Pipeline, Topology, list_fn};
use brigade::graph::Graph;
use brigade::{
    CompileOptions, DeviceMap, Error, ErrorKind, HeteroExecutable, Result, Tensor, Value,
};

use super::picture::{Picture, lines, spell};

/// Height of a line for the classifier and the recogniser.
pub(crate) const HEIGHT: usize = 48;
/// Width of a line for the classifier.
const LOOK: usize = 192;
/// Lines are filled up to a multiple of this width, so that many are equally wide.
const STEP: usize = 64;
/// What the functions between the models run on.
const HOST: &str = "host";
/// What the models run on.
const DEVICE: &str = "cpu:0";
/// How many pages, or batches of lines, the models may compute at once.
const LANES: usize = 2;
/// The most lines that are recognised together.
const LINES: usize = 8;

/// What flows from actor to actor.
#[derive(Clone)]
pub(crate) enum Token {
    /// A page as a PNG or JPEG file.
    File(Arc<[u8]>),
    /// A page or a line.
    Picture(Arc<Picture>),
    /// What a model takes or gives.
    Value(Value),
    Text(String),
}

impl Payload for Token {
    fn bytes(&self) -> usize {
        match self {
            Self::File(file) => file.len(),
            Self::Picture(picture) => picture.bytes(),
            Self::Value(value) => value.bytes(),
            Self::Text(text) => text.len(),
        }
    }

    fn share(&self) -> Self {
        self.clone()
    }
}

impl From<Value> for Token {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

/// A picture is a tensor for any model that it reaches.
impl TryFrom<Token> for Value {
    type Error = Error;

    fn try_from(token: Token) -> Result<Self> {
        match token {
            Token::Picture(picture) => Ok(picture.tensor()?.into()),
            Token::Value(value) => Ok(value),
            Token::File(_) => Err(Error::new(ErrorKind::Usage, "a file is no tensor")),
            Token::Text(text) => {
                Err(Error::new(ErrorKind::Usage, format!("`{text}` is no tensor")))
            }
        }
    }
}

impl Token {
    pub(crate) fn picture(picture: Picture) -> Self {
        Self::Picture(Arc::new(picture))
    }

    fn into_picture(self) -> Result<Arc<Picture>> {
        match self {
            Self::Picture(picture) => Ok(picture),
            Self::File(file) => Ok(Arc::new(Picture::decode(&file)?)),
            Self::Value(_) | Self::Text(_) => Err(Error::new(ErrorKind::Usage, "no picture")),
        }
    }

    fn into_tensor(self) -> Result<Tensor> {
        Value::try_from(self)?.into_tensor()
    }

    pub(crate) fn into_text(self) -> Result<String> {
        match self {
            Self::Text(text) => Ok(text),
            _ => Err(Error::new(ErrorKind::Usage, "no text")),
        }
    }
}

/// The three models, compiled for one thread each.
pub(crate) struct Reader {
    detect: HeteroExecutable,
    direction: HeteroExecutable,
    recognise: HeteroExecutable,
    alphabet: Arc<str>,
}

impl Reader {
    pub(crate) fn new(detect: Graph, direction: Graph, recognise: Graph) -> Result<Self> {
        let alphabet = recognise.metadata.get("character").map_or("", String::as_str).into();
        let compiled = |graph: Graph| {
            let map = DeviceMap::single(DEVICE.parse()?);
            HeteroExecutable::compile(graph, &map, &CompileOptions::default())
        };
        Ok(Self {
            detect: compiled(detect)?,
            direction: compiled(direction)?,
            recognise: compiled(recognise)?,
            alphabet,
        })
    }

    /// The lines of a page, one thing after the other.
    pub(crate) fn read(&self, page: &Picture) -> Result<Vec<String>> {
        let run = |model: &HeteroExecutable, picture: &Picture| -> Result<Tensor> {
            let input = vec![("x".to_owned(), Value::from(picture.tensor()?))];
            first(model.run_values(input)?)?.into_tensor()
        };
        let map = run(&self.detect, page)?;
        let mut texts = Vec::new();
        for place in lines(&map)? {
            let line = page.crop(place);
            let verdict = run(&self.direction, &line.resize(HEIGHT, LOOK))?;
            let line = upright(&line, &verdict)?;
            texts.push(spell(&run(&self.recognise, &line)?, &self.alphabet)?);
        }
        Ok(texts)
    }

    /// The same as one pipeline. Pages go in, as files or as pictures; the lines of each come out as
    /// one text.
    ///
    /// ```text
    /// file ─► decode ─► detect ─► crop ┬──────────────────────► turn ─► batch ─► recognise ─► cut ─► spell ─► join ─► text
    ///             └────────────► (lines) └► look ─► direction ──▲
    /// ```
    pub(crate) fn pipeline(&self, in_flight: usize) -> Result<Pipeline<Token>> {
        let mut builder = Topology::<Token>::builder();
        let file = builder.source("page");
        builder.lanes(HOST, LANES);
        let decode =
            builder.map("decode", HOST, |page: Token| Ok(Token::Picture(page.into_picture()?)));
        builder.connect(file, decode.input(0));
        let page = decode.output(0);
        let map = self.detect.splice(&mut builder, "detect", &[page])?[0];

        let crop = list_fn(|inputs: Vec<Token>| {
            let [page, map] = two(inputs)?;
            let (page, map) = (page.into_picture()?, map.into_tensor()?);
            Ok(lines(&map)?.into_iter().map(|place| Token::picture(page.crop(place))).collect())
        });
        let crop = builder.operator("crop", HOST, Operator::flat_map(), 2, 1, crop);
        builder.connect(page, crop.input(0)).connect(map, crop.input(1));
        let line = crop.output(0);

        let look = builder.map("look", HOST, |line: Token| {
            Ok(Token::picture(line.into_picture()?.resize(HEIGHT, LOOK)))
        });
        builder.connect(line, look.input(0));
        let verdict = self.direction.splice(&mut builder, "direction", &[look.output(0)])?[0];
        let turn = builder.zip("turn", HOST, 2, |inputs: Vec<Token>| {
            let [line, verdict] = two(inputs)?;
            Ok(Token::picture(upright(&*line.into_picture()?, &verdict.into_tensor()?)?))
        });
        builder.connect(line, turn.input(0)).connect(verdict, turn.input(1));

        let width = |line: &Token| match line {
            Token::Picture(line) => line.width as u64,
            _ => 0,
        };
        let batching = Batching::up_to(LINES).keyed(width);
        let flow =
            Flow::from_port(builder, turn.output(0)).batch("batch", HOST, batching, |lines| {
                let lines: Result<Vec<Tensor>> =
                    lines.into_iter().map(Token::into_tensor).collect();
                Ok(Token::Value(Tensor::concat(&lines?, 0)?.into()))
            });
        let (mut builder, batch) = flow.into_parts();
        let steps = self.recognise.splice(&mut builder, "recognise", &[batch])?[0];
        // The lanes go to whichever model has work, so that none of them waits for another.
        builder.lanes(DEVICE, LANES);
        for model in [map, steps].iter().filter_map(|port| port.actor()) {
            builder.replicas(model, LANES);
        }
        let alphabet = Arc::clone(&self.alphabet);
        let topology = Flow::from_port(builder, steps)
            .unbatch("cut", HOST, |steps: Token, lines| {
                let steps = steps.into_tensor()?;
                (0..lines).map(|i| Ok(Token::Value(steps.rows(i, 1)?.into()))).collect()
            })
            .map("spell", HOST, move |steps: Token| {
                Ok(Token::Text(spell(&steps.into_tensor()?, &alphabet)?))
            })
            .collect_values("join", HOST, |lines| {
                let lines: Result<Vec<_>> = lines.into_iter().map(Token::into_text).collect();
                Ok(Token::Text(lines?.join("\n")))
            })
            .build("text");
        let topology = topology.map_err(|e| Error::new(ErrorKind::Plan, e.to_string()))?;
        let options = Options::new().name("ocr").in_flight(in_flight).trace(100_000);
        Pipeline::spawn(topology, options).map_err(|e| Error::new(ErrorKind::Device, e.to_string()))
    }
}

/// A line as the recogniser takes it: upright, of one height, filled up to a common width.
fn upright(line: &Picture, verdict: &Tensor) -> Result<Picture> {
    let verdict = verdict.as_slice::<f32>()?;
    let turned = (verdict[1] > verdict[0]).then(|| line.turned());
    let line = turned.as_ref().unwrap_or(line);
    let width = (line.width * HEIGHT).div_ceil(line.height.max(1)).max(1);
    Ok(line.resize(HEIGHT, width).padded(width.next_multiple_of(STEP)))
}

fn first(outputs: Vec<Value>) -> Result<Value> {
    let none = || Error::new(ErrorKind::Internal, "the model gave nothing");
    outputs.into_iter().next().ok_or_else(none)
}

fn two(inputs: Vec<Token>) -> Result<[Token; 2]> {
    <[Token; 2]>::try_from(inputs).map_err(|_| Error::new(ErrorKind::Internal, "not two inputs"))
}

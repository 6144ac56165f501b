//! Graphs as parts of a topology of a program's own, beside its own functions.

use std::fmt::Display;

use brigade_actors::{ActorId, OutPort, Payload, TopologyBuilder};

use super::executable::HeteroExecutable;
use super::stage::factory;
use crate::error::{Result, err};
use crate::partition::{OutputSource, Source};
use crate::tensor::Value;

impl HeteroExecutable {
    /// Adds the actors of this graph to a topology, one for each segment, named `name` (with the
    /// number of the segment behind it where there are several), each on its device. `inputs` are
    /// the ports that give the graph's inputs, in the order of declaration; what comes back are those
    /// that give its outputs. So models and plain functions stream as one application.
    ///
    /// The payload is the application's own: a value is made into one by `From`, and out of one by
    /// `TryInto`, which fails where an item is something else. Its [`Payload::ready`] asks that of
    /// the value, where devices keep values in a memory of their own.
    ///
    /// ```
    /// use brigade::actors::{Flow, Options, Payload, Pipeline, Topology};
    /// use brigade::ops::builder::GraphBuilder;
    /// use brigade::{CompileOptions, DType, DeviceMap, Error, ErrorKind, HeteroExecutable, Tensor, Value};
    ///
    /// #[derive(Clone)]
    /// enum Token {
    ///     Text(String),
    ///     Value(Value),
    /// }
    ///
    /// impl Payload for Token {
    ///     fn bytes(&self) -> usize {
    ///         match self {
    ///             Self::Text(text) => text.len(),
    ///             Self::Value(value) => value.bytes(),
    ///         }
    ///     }
    ///     fn share(&self) -> Self {
    ///         self.clone()
    ///     }
    /// }
    ///
    /// impl From<Value> for Token {
    ///     fn from(value: Value) -> Self {
    ///         Self::Value(value)
    ///     }
    /// }
    ///
    /// impl TryFrom<Token> for Value {
    ///     type Error = Error;
    ///     fn try_from(token: Token) -> Result<Self, Error> {
    ///         match token {
    ///             Token::Value(value) => Ok(value),
    ///             Token::Text(text) => Err(Error::new(ErrorKind::Usage, format!("`{text}`"))),
    ///         }
    ///     }
    /// }
    ///
    /// let mut g = GraphBuilder::new("half");
    /// let x = g.input("x", DType::F32, [1.into()])?;
    /// let two = g.constant(Tensor::from_slice([1], &[2.0_f32])?)?;
    /// let y = g.div(x, two)?;
    /// let map = DeviceMap::single("cpu".parse()?);
    /// let half = HeteroExecutable::compile(g.finish([("y", y)])?, &map, &CompileOptions::default())?;
    ///
    /// // Text → number → half of it → text.
    /// let flow = Flow::source("text").map("parse", "host", |token| match token {
    ///     Token::Text(text) => {
    ///         let number: f32 = text.parse().map_err(brigade::actors::ItemError::from_error)?;
    ///         Ok(Token::Value(Tensor::from_slice([1], &[number])?.into()))
    ///     }
    ///     other => Ok(other),
    /// });
    /// let (mut builder, number) = flow.into_parts();
    /// let halves = half.splice(&mut builder, "half", &[number])?;
    /// let topology = Flow::from_port(builder, halves[0])
    ///     .map("print", "host", |token: Token| {
    ///         let value = Value::try_from(token)?;
    ///         Ok(Token::Text(value.tensor()?.item::<f32>()?.to_string()))
    ///     })
    ///     .build("text");
    /// let pipeline = Pipeline::spawn(topology.unwrap(), Options::new()).unwrap();
    /// let result = pipeline.push(vec![Token::Text("5".into())]).unwrap().wait().unwrap();
    /// assert!(matches!(&result[0], Token::Text(text) if text == "2.5"));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is not one port for each input, the graph has no input, a parameter is not bound, or an output is constant
    /// or one of the inputs itself, so that no actor gives it.
    pub fn splice<P>(
        &self,
        builder: &mut TopologyBuilder<P>,
        name: &str,
        inputs: &[OutPort],
    ) -> Result<Vec<OutPort>>
    where
        P: Payload + From<Value> + TryInto<Value>,
        <P as TryInto<Value>>::Error: Display,
    {
        let prepared = self.prepared();
        if inputs.len() != prepared.inputs().len() {
            let (given, wanted) = (inputs.len(), prepared.inputs().len());
            return Err(err!(Usage, "`{name}` has {wanted} inputs and was given {given} ports")
                .with_help("give one port for each input, in the order of declaration"));
        }
        let Some(start) = inputs.first().copied() else {
            return Err(err!(Unsupported, "`{name}` has no inputs, so that nothing starts it")
                .with_help("give its graph an input, or run it in a pipeline of its own"));
        };
        let split = prepared.split();
        let compiled = prepared.seal()?.segments;
        let several = compiled.len() > 1;
        let mut ids: Vec<ActorId> = Vec::with_capacity(compiled.len());
        for ((segment, device), code) in
            split.segments().iter().zip(prepared.devices()).zip(compiled)
        {
            let on = segment.device.to_string();
            builder.lanes(on.clone(), device.lanes());
            let name = if several { format!("{name}.{}", segment.index) } else { name.to_owned() };
            let outputs = segment.graph.outputs().len();
            let needed = prepared.deliveries(segment.index).to_vec();
            let reads = segment.inputs.len();
            let memory = prepared.memory(segment.index).cloned();
            let stage = factory(code, segment.device.clone(), memory.clone(), reads, needed);
            let id = builder.actor(name, on, reads.max(1), outputs, stage);
            if let Some(memory) = memory {
                builder.memory(id, &*memory);
            }
            if reads == 0 {
                builder.connect(start, id.input(0));
            }
            if let Some(threads) = prepared.cpu_threads(&segment.device) {
                builder.threads(id, threads);
            }
            for (port, source) in segment.inputs.iter().enumerate() {
                let from = match *source {
                    Source::Input(i) => inputs[i],
                    // Segments come in an order in which each is after those that it reads.
                    Source::Segment { index, output } => ids[index].output(output),
                };
                builder.connect(from, id.input(port));
            }
            ids.push(id);
        }
        let outputs = split.outputs().iter().zip(prepared.graph().output_names());
        outputs
            .map(|(source, output)| match *source {
                OutputSource::Segment { index, output } => Ok(ids[index].output(output)),
                OutputSource::Input(_) | OutputSource::Constant(_) | OutputSource::Param(_) => {
                    Err(err!(Unsupported, "output `{output}` of `{name}` is made by no actor")
                        .with_help("leave it out of the graph's outputs"))
                }
            })
            .collect()
    }
}

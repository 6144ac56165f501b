//! A stage that the calling thread runs itself.

use std::sync::Arc;

use super::{Offered, Worker, datapath};
use crate::cluster::StageSpec;
use crate::device::{
    CompiledSegment, Delivery, DeviceId, Instance, InstanceOptions, check_precision,
};
use crate::error::{Result, bail, err};
use crate::pipeline::{caught, checked};
use crate::tensor::Value;

/// A stage that was received and compiled: the thread that has it runs it, item by item.
pub struct WorkerStage {
    device: DeviceId,
    memory: Option<String>,
    nodes: usize,
    inputs: Vec<String>,
    outputs: Vec<String>,
    deliveries: Vec<Delivery>,
    instance: Box<dyn Instance>,
}

impl std::fmt::Debug for WorkerStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerStage")
            .field("device", &self.device)
            .field("nodes", &self.nodes)
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Makes a stage ready on one of this worker's devices, or its datapath, for the calling thread:
    /// weights are read, the graph is compiled.
    ///
    /// # Errors
    /// If the spec does not hold together, the device is not here, or a weight cannot be read or is
    /// not what the graph declares.
    pub fn stage(&self, spec: &StageSpec) -> Result<WorkerStage> {
        spec.validate()?;
        let offered = Offered::new(self)?;
        let (segment, device, memory): (Arc<dyn CompiledSegment>, DeviceId, Option<String>) =
            match &offered.datapath {
                Some(path) => {
                    path.check(spec)?;
                    (Arc::new(path.clone()), datapath::DEVICE.parse()?, None)
                }
                None => {
                    if let Some(id) = spec.wanted_stage() {
                        bail!(
                            Unsupported,
                            "the stage is for the fixed datapath `{id}`, which is not here"
                        );
                    }
                    let device = offered.resolve(spec.wanted_device(), &self.registry)?;
                    let graph = spec.resolve(&self.weights)?;
                    let id = device.id().clone();
                    let options = spec.compile_options();
                    check_precision(device.as_ref(), options.precision)?;
                    let compile = || device.compile(graph, &options);
                    (caught(&id, "compiling", compile)?, id, device.memory())
                }
            };
        let names = |all: Vec<(&str, &crate::graph::Fact)>| {
            all.into_iter().map(|(n, _)| n.to_owned()).collect::<Vec<_>>()
        };
        let (inputs, outputs) = (names(spec.inputs()), names(spec.outputs()));
        let deliveries = vec![Delivery::Host; outputs.len()];
        let options = InstanceOptions::for_this_thread().outputs(deliveries.clone());
        let instance = caught(&device, "starting an instance", || segment.instance(options))?;
        let nodes = spec.graph().nodes().len();
        Ok(WorkerStage { device, memory, nodes, inputs, outputs, deliveries, instance })
    }
}

impl WorkerStage {
    /// The device that it runs on.
    pub fn device(&self) -> &DeviceId {
        &self.device
    }

    /// How many nodes its graph has.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The names of its inputs, in order.
    pub fn input_names(&self) -> &[String] {
        &self.inputs
    }

    /// The names of its outputs, in order.
    pub fn output_names(&self) -> &[String] {
        &self.outputs
    }

    /// Computes one item: values by name, in any order; gives the outputs by name.
    ///
    /// # Errors
    /// If a value is missing, unknown, given twice or not what the stage declares, or a kernel fails.
    pub fn run(&mut self, values: Vec<(String, Value)>) -> Result<Vec<(String, Value)>> {
        let mut inputs: Vec<Option<Value>> = vec![None; self.inputs.len()];
        for (name, value) in values {
            let Some(at) = self.inputs.iter().position(|n| *n == name) else {
                return Err(err!(UnknownName, "the stage has no input `{name}`")
                    .with_help(format!("its inputs are {}", self.inputs.join(", "))));
            };
            if inputs[at].replace(value).is_some() {
                bail!(Duplicate, "input `{name}` of the stage was given twice");
            }
        }
        let missing = self.inputs.iter().zip(&inputs).find(|(_, v)| v.is_none());
        if let Some((name, _)) = missing {
            bail!(Missing, "input `{name}` of the stage was not given");
        }
        let inputs: Vec<Value> = inputs.into_iter().flatten().collect();
        let outputs = caught(&self.device, "the stage", || self.instance.run(inputs))?;
        let outputs = checked(&self.device, self.memory.as_deref(), outputs, &self.deliveries)?;
        Ok(self.outputs.iter().cloned().zip(outputs).collect())
    }
}

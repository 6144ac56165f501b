//! What there is: operators and devices, the built-in ones and those that a user adds.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::device::{Device, DeviceId, FAMILIES, LEFT_OUT};
use crate::error::{Result, bail, err};
use crate::import::{StoredWeight, WeightRequest, WeightSchemes};
use crate::ops::{OpDef, OpRegistry};

/// The operators and devices that a program works with. A value, not a global: pass it in.
///
/// ```
/// use brigade::Registry;
/// let registry = Registry::default();
/// let device = registry.device(&"cpu:1".parse()?)?;
/// assert!(device.probe().is_ok());
/// let error = registry.device(&"tpu".parse()?).unwrap_err();
/// assert!(error.to_string().contains("`tpu:0`"));
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Registry {
    ops: OpRegistry,
    added: BTreeMap<DeviceId, Arc<dyn Device>>,
    weights: WeightSchemes,
    sources: Sources,
}

/// What gives devices by their names.
#[derive(Clone, Default)]
struct Sources(Vec<Arc<dyn Fn(&DeviceId) -> Option<Arc<dyn Device>> + Send + Sync>>);

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sources", self.0.len())
    }
}

impl Registry {
    /// With one more device, which stands in for a built-in one of the same name.
    #[must_use]
    pub fn with_device(mut self, device: Arc<dyn Device>) -> Self {
        self.added.insert(device.id().clone(), device);
        self
    }

    /// With devices that are made when somebody names them; those that were added one by one, and
    /// the listing, come first.
    #[must_use]
    pub fn with_device_source(
        mut self,
        source: impl Fn(&DeviceId) -> Option<Arc<dyn Device>> + Send + Sync + 'static,
    ) -> Self {
        self.sources.0.push(Arc::new(source));
        self
    }

    /// With one more operator on the CPU devices that are opened from now on.
    #[must_use]
    pub fn with_op(mut self, def: &'static OpDef) -> Self {
        self.ops = self.ops.with(def);
        self
    }

    /// With one more scheme of weight URIs; see [`WeightSchemes::with`].
    ///
    /// # Errors
    /// If the name is not well formed.
    pub fn with_weight_scheme(
        mut self,
        name: &str,
        resolve: impl Fn(&WeightRequest<'_>) -> Result<StoredWeight> + Send + Sync + 'static,
    ) -> Result<Self> {
        self.weights = self.weights.with(name, resolve)?;
        Ok(self)
    }

    /// The schemes of weight URIs.
    pub fn weight_schemes(&self) -> &WeightSchemes {
        &self.weights
    }

    /// The operators.
    pub fn ops(&self) -> &OpRegistry {
        &self.ops
    }

    /// The device with this name, which must be usable here.
    ///
    /// # Errors
    /// If there is no such device, or it cannot be used here; with the reason.
    pub fn device(&self, id: &DeviceId) -> Result<Arc<dyn Device>> {
        let made = || self.sources.0.iter().find_map(|source| source(id));
        let device = match self.added.get(id).cloned().or_else(made) {
            Some(device) => device,
            None => match FAMILIES.iter().find(|f| f.kind == id.kind() && id.worker().is_none()) {
                Some(family) => (family.open)(id.number(), &self.ops)?,
                None => {
                    let kinds: Vec<String> =
                        self.devices().iter().map(ToString::to_string).collect();
                    let mut help =
                        format!("there are {} (and `cpu` with any other number)", kinds.join(", "));
                    if let Some(worker) = id.worker() {
                        help += &format!("; no worker `{worker}` with it is connected");
                    } else if let Some((kind, feature)) = LEFT_OUT.iter().find(|l| l.0 == id.kind())
                    {
                        help += &format!("; `{kind}` needs a build with `--features {feature}`");
                    }
                    return Err(err!(Device, "there is no device `{id}`").with_help(help));
                }
            },
        };
        if let Err(why) = device.probe() {
            return Err(why.into_error(id));
        }
        if device.lanes() == 0 {
            bail!(Device, "device `{id}` has no lane to compute on");
        }
        Ok(device)
    }

    /// Whether there are devices that somebody else's workers have.
    pub(crate) fn has_sources(&self) -> bool {
        !self.sources.0.is_empty()
    }

    /// Whether this device can be used here.
    pub fn is_available(&self, id: &DeviceId) -> bool {
        self.device(id).is_ok()
    }

    /// The devices that a listing shows: one or more of each built-in kind, and those added.
    pub fn devices(&self) -> Vec<DeviceId> {
        let mut all: Vec<DeviceId> = self.added.keys().cloned().collect();
        for family in FAMILIES {
            for n in (family.list)() {
                if let Ok(id) = DeviceId::new(family.kind, n) {
                    all.push(id);
                }
            }
        }
        all.sort();
        all.dedup();
        all
    }
}

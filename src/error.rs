//! The one error type of the crate.
//!
//! An [`Error`] has a [`kind`](Error::kind) that a program can match on, a message that names the
//! user's own thing and says what to do, and optionally the node path, the operator, the input
//! shapes, the device and the item it happened at. Causes are chained through
//! [`std::error::Error::source`].

use std::fmt;
use std::sync::Arc;

/// What went wrong, for programs to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument, flag or option is wrong.
    Usage,
    /// A file or folder could not be read or written.
    Io,
    /// Bytes are not what their format says: truncated, corrupt, wrong magic, over a limit.
    Format,
    /// A graph is not well formed: cyclic, dangling, duplicate names, missing attributes.
    Graph,
    /// Operators, attributes or dtypes that nothing here can run; all of them are listed.
    Unsupported,
    /// A name that is not there: input, output, parameter, device, node.
    UnknownName,
    /// A value has another shape than the one declared.
    Shape,
    /// A value has another dtype than the one declared.
    DType,
    /// An input or a parameter was not given.
    Missing,
    /// The same name was given twice.
    Duplicate,
    /// A device is not available here; the message has the reason.
    Device,
    /// A placement or a plan cannot be carried out.
    Plan,
    /// A batch may not be cut, or is not what the graph needs.
    Batch,
    /// A kernel failed on the values it was given.
    Kernel,
    /// A stage panicked; the panic was caught.
    Panic,
    /// The pipeline is full, and the caller asked not to wait.
    Full,
    /// The pipeline has stopped or was stopped.
    Stopped,
    /// A deadline passed.
    Deadline,
    /// A limit of `Limits` or of an option was exceeded.
    Limit,
    /// A defect of this crate; please report it.
    Internal,
}

impl ErrorKind {
    const ALL: [Self; 20] = [
        Self::Usage,
        Self::Io,
        Self::Format,
        Self::Graph,
        Self::Unsupported,
        Self::UnknownName,
        Self::Shape,
        Self::DType,
        Self::Missing,
        Self::Duplicate,
        Self::Device,
        Self::Plan,
        Self::Batch,
        Self::Kernel,
        Self::Panic,
        Self::Full,
        Self::Stopped,
        Self::Deadline,
        Self::Limit,
        Self::Internal,
    ];

    /// The kind with these words.
    #[cfg_attr(not(feature = "cluster"), allow(dead_code))]
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.as_str() == name)
    }

    /// The kind in lower-case words, as used in JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Io => "io",
            Self::Format => "format",
            Self::Graph => "graph",
            Self::Unsupported => "unsupported",
            Self::UnknownName => "unknown name",
            Self::Shape => "shape",
            Self::DType => "dtype",
            Self::Missing => "missing",
            Self::Duplicate => "duplicate",
            Self::Device => "device",
            Self::Plan => "plan",
            Self::Batch => "batch",
            Self::Kernel => "kernel",
            Self::Panic => "panic",
            Self::Full => "full",
            Self::Stopped => "stopped",
            Self::Deadline => "deadline",
            Self::Limit => "limit",
            Self::Internal => "internal",
        }
    }
}

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    node: Option<String>,
    op: Option<String>,
    shapes: Option<String>,
    device: Option<String>,
    item: Option<u64>,
    help: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// An error of this crate; cheap to clone.
///
/// ```
/// use brigade::{Error, ErrorKind};
/// let error = Error::new(ErrorKind::UnknownName, "no input named `imgae`")
///     .with_help("the graph's inputs are: `image`");
/// assert_eq!(error.kind(), ErrorKind::UnknownName);
/// assert_eq!(error.to_string(), "no input named `imgae`; help: the graph's inputs are: `image`");
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` with a message that names the user's thing.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            node: None,
            op: None,
            shapes: None,
            device: None,
            item: None,
            help: None,
            source: None,
        }))
    }

    /// A defect of this crate.
    #[cfg_attr(not(feature = "onnx"), allow(dead_code))]
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// What went wrong, for programs to match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message alone, without context and causes.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The path of the node where it happened, through subgraphs, if there is one.
    pub fn node(&self) -> Option<&str> {
        self.0.node.as_deref()
    }

    /// The operator where it happened, if there is one.
    pub fn op(&self) -> Option<&str> {
        self.0.op.as_deref()
    }

    /// The device where it happened, if there is one.
    pub fn device(&self) -> Option<&str> {
        self.0.device.as_deref()
    }

    /// What to do, if the error says it.
    pub fn help(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// The sequence number of the item that failed, if there is one.
    pub fn item(&self) -> Option<u64> {
        self.0.item
    }

    /// Names the node; a node that is already named becomes the inner part of the path.
    #[must_use]
    pub fn with_node(mut self, name: &str, op: &str) -> Self {
        self.0.node = Some(match self.0.node.take() {
            Some(inner) => format!("{name}/{inner}"),
            None => name.to_owned(),
        });
        if self.0.op.is_none() {
            self.0.op = Some(op.to_owned());
        }
        self
    }

    /// Says in front of the message what it is about: a file, an entry of it, a tensor.
    #[must_use]
    pub(crate) fn within(mut self, what: &str) -> Self {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }

    /// Says in front of the message which item of the user's it is about, instead of the number that
    /// it had in its pipeline.
    #[must_use]
    pub(crate) fn of_item(mut self, name: &dyn fmt::Display) -> Self {
        self.0.item = None;
        self.within(&format!("item `{name}`"))
    }

    /// Adds the dtypes and shapes of the inputs, unless a deeper node gave its own.
    #[must_use]
    pub fn with_shapes(mut self, shapes: impl Into<String>) -> Self {
        self.0.shapes.get_or_insert_with(|| shapes.into());
        self
    }

    /// Names the device.
    #[must_use]
    pub fn with_device(mut self, device: impl Into<String>) -> Self {
        self.0.device.get_or_insert_with(|| device.into());
        self
    }

    /// Names the item.
    #[must_use]
    pub fn with_item(mut self, item: u64) -> Self {
        self.0.item = Some(item);
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Chains a cause.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }
}

impl Error {
    /// The message with its context, without causes and help.
    pub(crate) fn headline(&self) -> String {
        let e = &*self.0;
        let mut context = Vec::new();
        if let Some(node) = &e.node {
            let op = e.op.as_deref().unwrap_or("?");
            context.push(format!("at node `{node}` ({op})"));
        }
        if let Some(shapes) = &e.shapes {
            context.push(format!("inputs {shapes}"));
        }
        if let Some(device) = &e.device {
            context.push(format!("on device `{device}`"));
        }
        if let Some(item) = e.item {
            context.push(format!("item {item}"));
        }
        if context.is_empty() {
            return e.message.clone();
        }
        format!("{} [{}]", e.message, context.join(", "))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &*self.0;
        f.write_str(&self.headline())?;
        if let Some(source) = &e.source {
            write!(f, ": {source}")?;
        }
        if let Some(help) = &e.help {
            write!(f, "; help: {help}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|s| s as &(dyn std::error::Error + 'static))
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::new(ErrorKind::Io, error.to_string())
    }
}

impl From<crate::kernels::KernelError> for Error {
    fn from(error: crate::kernels::KernelError) -> Self {
        Self::new(ErrorKind::Kernel, error.to_string())
    }
}

/// Shorthand used across the crate: `err!(Shape, "…{}…", x)`.
macro_rules! err {
    ($kind:ident, $($arg:tt)*) => {
        $crate::error::Error::new($crate::error::ErrorKind::$kind, format!($($arg)*))
    };
}
pub(crate) use err;

/// Shorthand used across the crate: returns `Err(err!(..))`.
macro_rules! bail {
    ($kind:ident, $($arg:tt)*) => {
        return Err($crate::error::err!($kind, $($arg)*))
    };
}
pub(crate) use bail;

#[cfg(test)]
mod tests {

    #[test]
    fn context_is_part_of_the_message() {
        let error = err!(Shape, "cannot broadcast")
            .with_node("inner", "Add")
            .with_node("outer", "If")
            .with_shapes("f32[2], f32[3]")
            .with_device("cpu:1")
            .with_item(7);
        assert_eq!(
            error.to_string(),
            "cannot broadcast [at node `outer/inner` (Add), inputs f32[2], f32[3], \
             on device `cpu:1`, item 7]"
        );
    }

    #[test]
    fn an_item_is_named_once() {
        let error = err!(Kernel, "it broke").with_device("cpu:1").with_item(3).of_item(&"page.3");
        assert_eq!(error.to_string(), "item `page.3`: it broke [on device `cpu:1`]");
    }

    #[test]
    fn sources_are_chained() {
        let io = std::io::Error::new(std::io::ErrorKind::NotFound, "gone");
        let error = err!(Io, "cannot read `x`").with_source(io);
        assert!(std::error::Error::source(&error).is_some());
        assert_eq!(error.to_string(), "cannot read `x`: gone");
    }
}

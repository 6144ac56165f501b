//! How a subcommand can end badly, and the exit code of each way.

use crate::error::{Error, ErrorKind};

/// Why a subcommand did not succeed.
#[derive(Debug)]
pub(super) enum Failure {
    /// An error, to be shown.
    Error(Error),
    /// An assertion that the command line gave is not met.
    Assertion(String),
    /// It failed, and everything about it was printed already.
    Told,
    /// Nobody reads standard output any more.
    Closed,
}

impl Failure {
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Error(e) if matches!(e.kind(), ErrorKind::Usage | ErrorKind::UnknownName) => 2,
            Self::Error(_) | Self::Told => 1,
            Self::Assertion(_) => 3,
            Self::Closed => 0,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

pub(super) type Outcome<T = ()> = Result<T, Failure>;

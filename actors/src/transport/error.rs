//! Why a link could not be made, or is no more.

use std::time::Duration;

/// Why a link could not be made, could not take a frame, or has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// One of the two sides closed the link, after all that it had to say.
    #[error("the link was closed")]
    Closed,
    /// The link broke: the peer's process ended, the network is gone, or the peer went silent.
    #[error("the link was lost: {why}")]
    Lost {
        /// What happened.
        why: String,
    },
    /// The peer, or what takes the frames here, did not want the link or a frame.
    #[error("refused: {why}")]
    Refused {
        /// The words of whoever refused.
        why: String,
    },
    /// Nobody listens there.
    #[error("{address} cannot be reached: {why}; is a listener running there?")]
    Unreachable {
        /// The address that was dialled.
        address: String,
        /// What the system says.
        why: String,
    },
    /// No answer in time.
    #[error("no answer within {after:?}: {what}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// The two sides speak different versions of the protocol.
    #[error(
        "this side speaks version {ours} of the link protocol, the peer version {theirs} (release {release}): use one release on both sides"
    )]
    Version {
        /// The version of this side.
        ours: u32,
        /// The version of the peer.
        theirs: u32,
        /// The release of the peer, in its own words.
        release: String,
    },
    /// The link is not as secure as is asked for, or a certificate is not accepted.
    #[error("not secure: {why}")]
    Security {
        /// Whose certificate, and what is wrong with it.
        why: String,
    },
    /// A head or a payload is longer than is allowed.
    #[error("a {what} of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// `head` or `payload`.
        what: &'static str,
        /// Its length in bytes.
        length: u64,
        /// The most that is allowed, in bytes.
        limit: u64,
    },
    /// What came is not what a peer of this protocol sends.
    #[error("malformed: {why}")]
    Malformed {
        /// What is wrong.
        why: String,
    },
    /// The queue of the link is full; the link is as it was, and the frame was not taken.
    #[error(
        "the queue of the link is full: {frames} frames and {bytes} bytes wait, at most {limit_frames} and {limit_bytes} may"
    )]
    Full {
        /// The frames that wait.
        frames: u64,
        /// Their bytes, heads and payloads.
        bytes: u64,
        /// The most frames that may wait.
        limit_frames: u64,
        /// The most bytes that may wait.
        limit_bytes: u64,
    },
    /// This cannot be an address, or cannot be listened at.
    #[error("{address:?} cannot be used as an address: {why}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        why: String,
    },
}

impl LinkError {
    /// The reason of one side as the other gets to know it.
    pub(crate) fn told(&self) -> Self {
        match self {
            Self::Closed => Self::Closed,
            Self::Refused { why } => Self::Refused { why: why.clone() },
            other => Self::Refused { why: other.to_string() },
        }
    }
}

//! stub
use super::*;
#[allow(missing_docs, clippy::all, unreachable_pub, unused_qualifications)]
mod pb;
pub(super) fn sniff(_: &[u8]) -> bool {
    false
}
pub(super) fn read(_: &Source<'_>) -> Result<Imported> {
    bail!(Format, "x")
}

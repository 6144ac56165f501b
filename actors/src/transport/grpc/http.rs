//! What both sides say about HTTP/2: sizes, header fields, errors.

use std::error::Error;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::super::error::LinkError;
use super::super::options::TransportOptions;
use super::io::Fault;

/// The path of the call that is a link.
pub(super) const PATH: &str = "/brigade.v1.Link/Stream";

/// How far a peer may send ahead of what is read: enough that no network that a cluster has makes
/// it wait for an answer.
const STREAM_WINDOW: u32 = 64 << 20;
const CONNECTION_WINDOW: u32 = 128 << 20;

/// What a frame of HTTP/2 may hold. With its nine bytes in front it fills four records of TLS, which
/// is what rustls takes at once and writes at once. Larger ones are put together out of the cache.
const FRAME: u32 = (64 << 10) - 9;

/// What may wait inside of HTTP/2; the rest waits in the queue of the link.
const SEND_BUFFER: usize = 1 << 20;

/// A request has a handful of header fields.
const HEADERS: u32 = 16 << 10;

pub(super) fn server(
    options: &TransportOptions,
) -> hyper::server::conn::http2::Builder<TokioExecutor> {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADERS)
        .max_concurrent_streams(8)
        .keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout);
    builder
}

pub(super) fn client(
    options: &TransportOptions,
) -> hyper::client::conn::http2::Builder<TokioExecutor> {
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADERS)
        .keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout)
        .keep_alive_while_idle(true);
    builder
}

/// Whether this is a message of gRPC.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("application/grpc"))
}

/// The content type of gRPC.
pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The status of a call, as trailers: what others than this crate look at.
pub(super) fn status(why: &LinkError) -> HeaderMap {
    let (code, words) = match why {
        LinkError::Closed => ("0", String::new()),
        LinkError::Security { .. } => ("7", why.to_string()),
        other => ("9", other.to_string()),
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(code));
    if let Ok(words) = HeaderValue::try_from(percent(&words)) {
        trailers.insert("grpc-message", words);
    }
    trailers
}

/// The answer to a call of a method that there is not.
pub(super) fn unimplemented() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert("grpc-status", HeaderValue::from_static("12"));
    headers
}

/// Text as gRPC writes it into a header field, at most about a kilobyte of it.
fn percent(text: &str) -> String {
    let mut written = String::new();
    for byte in text.bytes().take(1024) {
        match byte {
            b'%' | 0..=0x1f | 0x7f.. => written.push_str(&format!("%{byte:02X}")),
            _ => written.push(char::from(byte)),
        }
    }
    written
}

/// Why a connection ended.
pub(super) fn lost(error: &hyper::Error, fault: &Fault, options: &TransportOptions) -> LinkError {
    if let Some(why) = fault.get() {
        return why;
    }
    let mut timed_out = error.is_timeout();
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        timed_out |= error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_timeout);
        why = format!("{why}: {error}");
        source = error.source();
    }
    if timed_out {
        why = format!(
            "the peer was silent for {:?} and did not answer for {:?}",
            options.keep_alive_interval, options.keep_alive_timeout
        );
    }
    LinkError::Lost { why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_fit_into_a_header_field() {
        assert_eq!(percent("50 % of \"ä\"\n"), "50 %25 of \"%C3%A4\"%0A");
        let trailers = status(&LinkError::Refused { why: "no\nänd no".repeat(1000) });
        assert_eq!(trailers["grpc-status"], "9");
        assert!(trailers["grpc-message"].len() < 4096);
        assert_eq!(status(&LinkError::Closed)["grpc-status"], "0");
    }
}

//! The standard health service, asked as others ask it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use brigade_actors::transport::TransportOptions;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::super::peer::{quiet, wait_for};
use super::{LOOPBACK, grpc};

/// A connection as the generated client wants it.
struct Calls(SendRequest<Body>);

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

async fn check(address: &str, service: &str) -> Result<i32, tonic::Status> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (requests, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let origin = format!("http://{address}").parse().unwrap();
    let mut client = HealthClient::with_origin(Calls(requests), origin);
    let request = HealthCheckRequest { service: service.to_owned() };
    client.check(request).await.map(|response| response.into_inner().status)
}

#[test]
fn the_health_service_tells_whether_it_serves() {
    let server = grpc(&TransportOptions::new().greeting_timeout(Duration::from_millis(300)));
    let listening = server.listen(LOOPBACK, quiet()).unwrap();
    let address = listening.address();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = |service: &str| runtime.block_on(check(&address, service));
    for (serving, expected) in [
        (true, ServingStatus::Serving),
        (false, ServingStatus::NotServing),
        (true, ServingStatus::Serving),
    ] {
        listening.set_serving(serving);
        for service in ["", "brigade.v1.Link"] {
            wait_for("the answer", || status(service).unwrap() == expected as i32);
        }
    }
    assert_eq!(status("other").unwrap_err().code(), tonic::Code::NotFound);
}

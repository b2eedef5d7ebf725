//! The floor that `make bench` measures against: the same sockets, runtime and allocator as the service's,
//! and an answer of OK without looking.

use cota::gather::Gathering;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use cota::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use cota::grpc::socket::Socket;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tonic::codegen::{Service as _, http};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct ConstantOk;

#[tonic::async_trait]
impl RateLimitService for ConstantOk {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            ..RateLimitResponse::default()
        }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    eprintln!("listening grpc={}", listener.local_addr()?);
    let routes = Routes::new(RateLimitServiceServer::new(ConstantOk)).prepare();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let routes = routes.clone();
        let service = service_fn(move |request: http::Request<Incoming>| routes.clone().call(request));
        let socket = Socket::new(Gathering::new(stream), |instead| {
            eprintln!("not HTTP/2 but {instead:?}");
        });
        tokio::spawn(
            http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(None)
                .serve_connection(TokioIo::new(socket), service),
        );
    }
}

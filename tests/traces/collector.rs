//! A collector of traces that keeps what it gets.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    kept: Kept,
    _runtime: Runtime,
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Kind>>>);

/// A span, and the name of the service that sent it.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) service: String,
    pub(crate) span: Span,
}

impl Collector {
    pub(crate) fn start() -> Self {
        Self::start_on("127.0.0.1:0".parse().unwrap())
    }

    pub(crate) fn start_on(address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let kept = Kept::default();
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let service = TraceServiceServer::new(kept.clone());
        runtime.spawn(async move {
            let incoming = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener).unwrap());
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(incoming).await.unwrap();
        });
        Self {
            address,
            kept,
            _runtime: runtime,
        }
    }

    pub(crate) fn spans(&self) -> Vec<Kind> {
        self.kept.0.lock().unwrap().clone()
    }
}

impl Kind {
    /// An attribute, lists with commas.
    pub(crate) fn attribute(&self, key: &str) -> Option<String> {
        text(&self.span.attributes, key)
    }
}

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut kept = self.0.lock().unwrap();
        for of_resource in request.into_inner().resource_spans {
            let attributes = of_resource.resource.unwrap().attributes;
            let service = text(&attributes, "service.name").unwrap();
            for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let service = service.clone();
                kept.push(Kind { service, span });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    shown(found.value.as_ref()?.value.as_ref()?)
}

fn shown(value: &Value) -> Option<String> {
    Some(match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(n) => n.to_string(),
        Value::BoolValue(is) => is.to_string(),
        Value::ArrayValue(list) => {
            let items = list.values.iter().filter_map(|item| shown(item.value.as_ref()?));
            items.collect::<Vec<_>>().join(",")
        }
        _ => return None,
    })
}

//! The service as Envoy calls it: over TCP, with the client generated from the same proto files.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]
#![allow(unreachable_pub, reason = "nothing outside can reach a test")]

use std::sync::Arc;
use std::time::Duration;

use cota::engine::limit::{Excess, ExcessAction, Limit, Unit};
use cota::engine::policy::Policy;
use cota::engine::time::Micros;
use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code as Verdict;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use cota::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::{v1, v1alpha};

#[path = "rls/served.rs"]
mod served;
mod support;

use served::{Served, facet, message, tenant, within};
use support::policy::{bucket, domain, fixed, policy, waiting};

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

#[tokio::test]
async fn a_request_passes_until_its_limit_is_spent() {
    let served = Served::with(fixed("tenant", 2, Unit::Minute)).await;
    for left in [1, 0] {
        let response = served.ask(vec![tenant("acme")]).await;
        assert_eq!(response.overall_code(), Verdict::Ok);
        assert_eq!(response.statuses[0].limit_remaining, left);
        assert_eq!(response.response_headers_to_add.len(), 4);
        assert!(response.raw_body.is_empty());
    }
    let refused = served.ask(vec![tenant("acme")]).await;
    assert_eq!(refused.overall_code(), Verdict::OverLimit);
    let value = |name: &str| {
        let mut found = refused.response_headers_to_add.iter().filter(|h| h.key == name);
        let value = found.next().map(|h| h.value.clone());
        assert!(found.next().is_none(), "{name} is there once");
        value
    };
    let retry_after: u64 = value("Retry-After").unwrap().parse().unwrap();
    assert!((66..=72).contains(&retry_after), "{retry_after}");
    assert_eq!(value("content-type").as_deref(), Some("application/json"));
    let body: serde_json::Value = serde_json::from_slice(&refused.raw_body).unwrap();
    assert_eq!(body["retry_after_seconds"], retry_after);
    let metadata = refused.dynamic_metadata.unwrap();
    assert!(metadata.fields.contains_key("code"));
    let other = served.ask(vec![tenant("other")]).await;
    assert_eq!(other.overall_code(), Verdict::Ok);
}

#[tokio::test]
async fn each_refusal_is_spread_anew() {
    let served = Served::with(fixed("tenant", 1, Unit::Year)).await;
    served.ask(vec![tenant("acme")]).await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..40 {
        let refused = served.ask(vec![tenant("acme")]).await;
        let header = refused
            .response_headers_to_add
            .into_iter()
            .find(|h| h.key == "Retry-After");
        seen.insert(header.unwrap().value);
    }
    // Of 151 possible values.
    assert!(seen.len() > 10, "{seen:?}");
}

#[tokio::test]
async fn the_overall_code_is_never_unknown() {
    let served = Served::with(fixed("tenant", 1, Unit::Minute)).await;
    let unknown = facet("unknown", "\0\r\n");
    let empty = RateLimitDescriptor::default();
    for descriptors in [
        vec![unknown.clone()],
        vec![empty.clone()],
        vec![tenant("\0"), unknown, empty],
    ] {
        let response = served.ask(descriptors.clone()).await;
        assert_eq!(response.overall_code(), Verdict::Ok);
        assert_eq!(response.statuses.len(), descriptors.len());
        assert!(
            response
                .statuses
                .iter()
                .all(|status| status.code() == Verdict::Ok)
        );
    }
    let mut elsewhere = message(vec![tenant("acme")]);
    elsewhere.domain = "elsewhere".into();
    let response = served.call(Request::new(elsewhere)).await.unwrap();
    assert_eq!(response.overall_code(), Verdict::Ok);
}

#[tokio::test]
async fn marked_excess_reaches_the_upstream_as_a_header() {
    let served = Served::with(Limit {
        excess: Some(Excess {
            action: ExcessAction::Degrade,
            up_to_percent: 200,
        }),
        ..fixed("tenant", 1, Unit::Hour)
    })
    .await;
    assert!(
        served
            .ask(vec![tenant("acme")])
            .await
            .request_headers_to_add
            .is_empty()
    );
    let marked = served.ask(vec![tenant("acme")]).await;
    assert_eq!(marked.overall_code(), Verdict::Ok);
    let header = &marked.request_headers_to_add[0];
    assert_eq!((&*header.key, &*header.value), ("x-ratelimit-excess", "degrade"));
}

#[tokio::test]
async fn malformed_requests_are_invalid_arguments() {
    let served = Served::with(fixed("tenant", 1, Unit::Minute)).await;
    let mut nameless = message(vec![tenant("acme")]);
    nameless.domain.clear();
    let status = served.call(Request::new(nameless)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let status = served.call(Request::new(message(vec![]))).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("\"api\""), "{}", status.message());
}

#[tokio::test]
async fn without_a_policy_the_service_is_unavailable_until_one_comes() {
    let served = Served::new(Policy::default()).await;
    let ask = || Request::new(message(vec![tenant("acme")]));
    assert_eq!(served.call(ask()).await.unwrap_err().code(), Code::Unavailable);
    served.policy.store(Arc::new(policy([domain([])])));
    assert_eq!(served.call(ask()).await.unwrap().overall_code(), Verdict::Ok);
}

#[tokio::test]
async fn health_answers_under_every_name_and_changes_under_all() {
    let served = Served::with(fixed("tenant", 1, Unit::Minute)).await;
    let names = ["", SERVICE, "ratelimit"];
    for (serving, status) in [(true, ServingStatus::Serving), (false, ServingStatus::NotServing)] {
        served.health.set(serving).await;
        for name in names {
            assert_eq!(served.health(name).await, Ok(status), "{name:?}");
        }
    }
    assert_eq!(served.health("other").await, Err(Code::NotFound));
}

#[tokio::test]
async fn a_watcher_of_health_sees_it_change() {
    let served = Served::with(fixed("tenant", 1, Unit::Minute)).await;
    served.health.set(false).await;
    let mut client = HealthClient::new(served.channel.clone());
    let request = HealthCheckRequest {
        service: "ratelimit".into(),
    };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    for status in [ServingStatus::NotServing, ServingStatus::Serving] {
        assert_eq!(watch.message().await.unwrap().unwrap().status(), status);
        served.health.set(true).await;
    }
}

#[tokio::test]
async fn reflection_lists_the_service_and_describes_it() {
    use v1::server_reflection_request::MessageRequest;
    use v1::server_reflection_response::MessageResponse;
    let served = Served::with(fixed("tenant", 1, Unit::Minute)).await;
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(served.channel.clone());
    let ask = |message| v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message),
    };
    let requests = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol(SERVICE.into())),
        ask(MessageRequest::FileContainingSymbol(
            "google.protobuf.Struct".into(),
        )),
    ];
    let answers = client
        .server_reflection_info(tokio_stream::iter(requests))
        .await
        .unwrap();
    let answers: Vec<_> = answers.into_inner().collect().await;
    let mut answers = answers.into_iter().map(|a| a.unwrap().message_response.unwrap());
    let Some(MessageResponse::ListServicesResponse(list)) = answers.next() else {
        panic!("no list of services")
    };
    let names: Vec<&str> = list.service.iter().map(|service| &*service.name).collect();
    assert!(
        names.contains(&SERVICE) && names.contains(&"grpc.health.v1.Health"),
        "{names:?}"
    );
    for answer in answers {
        assert!(
            matches!(answer, MessageResponse::FileDescriptorResponse(_)),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn reflection_speaks_its_older_version_too() {
    use v1alpha::server_reflection_request::MessageRequest;
    use v1alpha::server_reflection_response::MessageResponse;
    let served = Served::with(fixed("tenant", 1, Unit::Minute)).await;
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(served.channel.clone());
    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = client
        .server_reflection_info(tokio_stream::iter([request]))
        .await
        .unwrap();
    let answer = answers.into_inner().next().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("no list of services")
    };
    assert!(list.service.iter().any(|service| service.name == SERVICE));
}

#[tokio::test]
async fn an_answer_is_held_within_the_callers_timeout_only() {
    for (unit, second) in [(Unit::Hour, Verdict::OverLimit), (Unit::Second, Verdict::Ok)] {
        // The second one is due in an hour, or in a second at the latest.
        let limit = waiting(bucket("tenant", 1, 1, unit), Micros::from_secs(3_600));
        let served = Served::with(limit).await;
        for wanted in [Verdict::Ok, second] {
            let response = served.call(within(Duration::from_secs(60))).await;
            assert_eq!(response.unwrap().overall_code(), wanted);
        }
    }
}

/// A server that has answered one call and holds the next for about as long as `unit`; of its nine
/// calls seven are left once it does.
async fn holding(unit: Unit) -> (Served, JoinHandle<Result<Response<RateLimitResponse>, Status>>) {
    let holds = waiting(bucket("holds", 1, 1, unit), Micros::from_secs(3_600));
    let counts = fixed("counts", 9, Unit::Hour);
    let served = Served::new(policy([domain([
        (&[("tenant", None)], vec![holds]),
        (&[("client", None)], vec![counts]),
    ])]))
    .await;
    let both = || message(vec![tenant("acme"), facet("client", "x")]);
    served.call(Request::new(both())).await.unwrap();
    let mut client = RateLimitServiceClient::new(served.channel.clone());
    let held = tokio::spawn(async move { client.should_rate_limit(both()).await });
    served.until_left(7, facet("client", "x")).await;
    (served, held)
}

#[tokio::test]
async fn a_caller_who_hangs_up_gets_back_what_was_charged() {
    let (served, held) = holding(Unit::Hour).await;
    held.abort();
    served.until_left(8, facet("client", "x")).await;
}

#[tokio::test]
async fn the_version_before_is_not_implemented() {
    let served = Served::with(fixed("tenant", 1, Unit::Minute)).await;
    let mut grpc = tonic::client::Grpc::new(served.channel.clone());
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let path = "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit";
    let request = Request::new(message(vec![tenant("acme")]));
    let answer = grpc.unary(request, path.parse().unwrap(), codec).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_message_may_come_in_many_frames_and_one_too_large_for_envoy_is_refused() {
    let served = Served::with(fixed("tenant", 1, Unit::Minute)).await;
    // A frame holds 16 KiB.
    let long = |end| tenant(&format!("{}{end}", "x".repeat(500_000)));
    for (end, verdict) in [("a", Verdict::Ok), ("b", Verdict::Ok), ("a", Verdict::OverLimit)] {
        assert_eq!(served.ask(vec![long(end)]).await.overall_code(), verdict, "{end}");
    }
    let huge = Request::new(message(vec![tenant(&"x".repeat(5 << 20))]));
    assert_eq!(served.call(huge).await.unwrap_err().code(), Code::OutOfRange);
    assert_eq!(served.ask(vec![tenant("acme")]).await.overall_code(), Verdict::Ok);
}

#[tokio::test]
async fn a_server_told_to_stop_ends_calls_in_flight_and_returns() {
    let (served, held) = holding(Unit::Second).await;
    served.stop.send(()).unwrap();
    let answer = held.await.unwrap().unwrap().into_inner();
    assert_eq!(answer.overall_code(), Verdict::Ok);
    drop(served.channel);
    assert!(served.ended.await.unwrap());
}

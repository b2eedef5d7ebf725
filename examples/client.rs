//! Envoy's part in `make bench`: calls at a pace, calls all at once, calls of many callers.
//!
//!     client pace ADDRESS DESCRIPTORS RATE SECONDS    p50 and p99 of that many calls a second
//!     client burst ADDRESS,ADDRESS... CALLER COUNT    so many calls in flight at once: how many were let through
//!     client fill ADDRESS COUNT                       one call for each of so many callers
//!     client watch ADDRESS CALLERS RATE SECONDS       for each call: when, how long, whether decided without the
//!                                                     store, which caller; times in microseconds

use std::error::Error;
use std::time::Duration;

use cota::clock::{Clock as _, Stopwatch, SystemClock};
use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use cota::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

type Client = RateLimitServiceClient<Channel>;

/// Calls in flight on one connection: below what a server allows by default.
const STREAMS: usize = 100;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["pace", address, descriptors, rate, seconds] => {
            pace(address, descriptors.parse()?, rate.parse()?, seconds.parse()?).await
        }
        ["burst", addresses, caller, count] => burst(addresses, caller, count.parse()?).await,
        ["fill", address, count] => fill(address, count.parse()?).await,
        ["watch", address, callers, rate, seconds] => {
            watch(address, callers.parse()?, rate.parse()?, seconds.parse()?).await
        }
        _ => Err("pace, burst, fill or watch, as the head of this file says".into()),
    }
}

async fn pace(address: &str, descriptors: usize, rate: u64, seconds: u64) -> Result<(), Box<dyn Error>> {
    let client = connect(address).await?;
    let names: Vec<String> = (0..descriptors).map(|n| format!("part-{n}")).collect();
    let parts: Vec<Vec<(&str, &str)>> = names
        .iter()
        .map(|name| vec![("tenant", "acme"), ("part", name)])
        .collect();
    let parts: Vec<&[(&str, &str)]> = parts.iter().map(Vec::as_slice).collect();
    let message = request(&parts);
    let mut tick = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate)?);
    let mut calls = JoinSet::new();
    for _ in 0..rate * seconds {
        tick.tick().await;
        let (mut client, message) = (client.clone(), message.clone());
        calls.spawn(async move {
            let watch = Stopwatch::start();
            let answer = client.should_rate_limit(message).await;
            answer.map(|_| watch.elapsed())
        });
    }
    let mut times = Vec::new();
    while let Some(time) = calls.join_next().await {
        times.push(time??);
    }
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
    println!("p50 {} us, p99 {} us, {} calls", at(50), at(99), times.len());
    Ok(())
}

async fn burst(addresses: &str, caller: &str, count: usize) -> Result<(), Box<dyn Error>> {
    let addresses: Vec<&str> = addresses.split(',').collect();
    let mut clients = Vec::new();
    for n in 0..count.div_ceil(STREAMS) {
        clients.push(connect(addresses[n % addresses.len()]).await?);
    }
    let message = request(&[&[(caller, "acme")]]);
    let mut calls = JoinSet::new();
    for n in 0..count {
        let (mut client, message) = (clients[n % clients.len()].clone(), message.clone());
        calls.spawn(async move { client.should_rate_limit(message).await });
    }
    let mut admitted = 0;
    while let Some(answer) = calls.join_next().await {
        admitted += usize::from(answer??.into_inner().overall_code() == Code::Ok);
    }
    println!("{admitted} admitted of {count}");
    Ok(())
}

async fn fill(address: &str, count: usize) -> Result<(), Box<dyn Error>> {
    let client = connect(address).await?;
    let mut calls = JoinSet::new();
    for n in 0..count {
        if calls.len() >= STREAMS {
            calls.join_next().await.ok_or("calls are under way")???;
        }
        let mut client = client.clone();
        calls.spawn(async move {
            let caller = format!("tenant-{n}");
            let answer = client.should_rate_limit(request(&[&[("tenant", &caller)]])).await;
            answer.map(drop)
        });
    }
    while let Some(answer) = calls.join_next().await {
        answer??;
    }
    println!("{count} callers");
    Ok(())
}

async fn watch(address: &str, callers: u64, rate: u64, seconds: u64) -> Result<(), Box<dyn Error>> {
    let client = connect(address).await?;
    let mut tick = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate)?);
    let mut calls = JoinSet::new();
    for n in 0..rate * seconds {
        tick.tick().await;
        let mut client = client.clone();
        calls.spawn(async move {
            let caller = n % callers;
            let (began, watch) = (SystemClock.now(), Stopwatch::start());
            let answer = client
                .should_rate_limit(request(&[&[("tenant", &format!("tenant-{caller}"))]]))
                .await;
            let took = watch.elapsed().as_micros();
            answer.map(|answer| {
                let metadata = answer.into_inner().dynamic_metadata.unwrap_or_default();
                let degraded = u8::from(metadata.fields.contains_key("degraded"));
                format!("{} {took} {degraded} {caller}", began.0)
            })
        });
    }
    while let Some(line) = calls.join_next().await {
        println!("{}", line??);
    }
    Ok(())
}

async fn connect(address: &str) -> Result<Client, Box<dyn Error>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    Ok(Client::new(endpoint.connect().await?))
}

fn request(descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        ..RateLimitRequest::default()
    }
}

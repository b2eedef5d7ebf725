//! Envoy's part in `make bench`: calls at a pace, calls all at once, calls of many callers.
//!
//!     client pace ADDRESS DESCRIPTORS RATE SECONDS    p50 and p99 of that many calls a second
//!     client burst ADDRESS,ADDRESS... CALLER COUNT    so many calls in flight at once: how many were let through
//!     client fill ADDRESS COUNT                       one call for each of so many callers
//!     client watch ADDRESS CALLERS RATE SECONDS       for each call: when, how long, whether decided without the
//!                                                     store, which caller; times in microseconds
//!     client insist ADDRESS DESCRIPTORS RATE SECONDS  as Envoy does: a call that has no answer within 20 ms is given
//!                                                     up; how many calls were sent, what became of them and when

use std::borrow::Cow;
use std::error::Error;
use std::time::Duration;

use cota::clock::{Clock as _, Stopwatch, SystemClock};
use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use cota::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use h2::client::SendRequest;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::codegen::{Bytes, http};
use tonic::transport::{Channel, Endpoint};

type Client = RateLimitServiceClient<Channel>;

/// Calls in flight on one connection: below what a server allows by default.
const STREAMS: usize = 100;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// How long Envoy waits for an answer unless told otherwise.
const PATIENCE: Duration = Duration::from_millis(20);

/// How many bytes Envoy takes on a connection unless told otherwise.
const WINDOW: u32 = 16 << 20;

/// The connections of an Envoy with so many workers.
const WORKERS: usize = 8;

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
        ["insist", address, descriptors, rate, seconds] => {
            insist(address, descriptors.parse()?, rate.parse()?, seconds.parse()?).await
        }
        _ => Err("pace, burst, fill, watch or insist, as the head of this file says".into()),
    }
}

async fn pace(address: &str, descriptors: usize, rate: u64, seconds: u64) -> Result<(), Box<dyn Error>> {
    let client = connect(address).await?;
    let message = parts(descriptors);
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

/// Calls over HTTP/2 by itself: tonic's client cannot be told that giving up many calls is no attack.
async fn insist(address: &str, descriptors: usize, rate: u64, seconds: u64) -> Result<(), Box<dyn Error>> {
    let mut senders = Vec::new();
    for _ in 0..WORKERS {
        let mut http2 = h2::client::Builder::new();
        http2
            .max_local_error_reset_streams(None)
            .initial_connection_window_size(WINDOW)
            .initial_window_size(WINDOW);
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http2.handshake(stream).await?;
        tokio::spawn(connection);
        senders.push(sender);
    }
    let message = parts(descriptors).encode_to_vec();
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len())?.to_be_bytes());
    framed.extend(message);
    let framed = Bytes::from(framed);
    let call = http::Request::post(format!("http://{address}{METHOD}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", format!("{}m", PATIENCE.as_millis()))
        .body(())?;

    let mut tick = tokio::time::interval(Duration::from_millis(1));
    let mut calls = JoinSet::new();
    let (watch, total) = (Stopwatch::start(), rate * seconds);
    let mut sent = 0;
    while sent < total {
        tick.tick().await;
        let due = total.min(u64::try_from(watch.elapsed().as_micros())? * rate / 1_000_000);
        for n in sent..due {
            let sender = senders[usize::try_from(n)? % WORKERS].clone();
            let (call, framed) = (call.clone(), framed.clone());
            calls.spawn(async move {
                let watch = Stopwatch::start();
                let answer = tokio::time::timeout(PATIENCE, status(sender, call, framed)).await;
                (answer, watch.elapsed())
            });
        }
        sent = due;
    }
    let took = watch.elapsed();
    let (mut answered, mut late, mut given_up) = (Vec::new(), Vec::new(), 0);
    while let Some(call) = calls.join_next().await {
        match call? {
            (Ok(status), took) => match status?.as_str() {
                "0" => answered.push(took),
                "4" => late.push(took),
                status => return Err(format!("a call ended with status {status}").into()),
            },
            (Err(_), _) => given_up += 1,
        }
    }
    for mut times in [answered, late] {
        times.sort_unstable();
        let at = |thousandth: usize| times.get(times.len() * thousandth / 1_000);
        let [p50, p99, p999] = [500, 990, 999].map(|share| at(share).map_or(0, Duration::as_micros));
        print!("{} {p50} {p99} {p999} ", times.len());
    }
    println!("{given_up} {:.0}", sent as f64 / took.as_secs_f64());
    Ok(())
}

/// The gRPC status of a call. Dropped before it is known, the call is reset.
async fn status(
    sender: SendRequest<Bytes>,
    call: http::Request<()>,
    framed: Bytes,
) -> Result<String, h2::Error> {
    let (answer, mut body) = sender.ready().await?.send_request(call, false)?;
    body.send_data(framed, true)?;
    let (head, mut body) = answer.await?.into_parts();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data?.len())?;
    }
    let trailers = body.trailers().await?;
    let status = trailers.as_ref().unwrap_or(&head.headers).get("grpc-status");
    let status = status.map(|status| String::from_utf8_lossy(status.as_bytes()));
    Ok(status.map(Cow::into_owned).unwrap_or_default())
}

async fn connect(address: &str) -> Result<Client, Box<dyn Error>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    Ok(Client::new(endpoint.connect().await?))
}

/// A request of that many descriptors of one caller.
fn parts(descriptors: usize) -> RateLimitRequest {
    let names: Vec<String> = (0..descriptors).map(|n| format!("part-{n}")).collect();
    let parts: Vec<Vec<(&str, &str)>> = names
        .iter()
        .map(|name| vec![("tenant", "acme"), ("part", name)])
        .collect();
    let parts: Vec<&[(&str, &str)]> = parts.iter().map(Vec::as_slice).collect();
    request(&parts)
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

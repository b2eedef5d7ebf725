//! The way out, for whoever still waits on the HTTP port.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

#[path = "support/cota.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod cota_process;

use cota_process::{Cota, eventually, policy_file};

const POLICY: &str = "
domain: api
descriptors: [{key: tenant, rate_limit: {unit: day, requests_per_unit: 3}}]
";

#[test]
fn an_http_call_under_way_is_answered_before_the_end() {
    let (_folder, policy) = policy_file(POLICY);
    let mut cota = Cota::serve(&policy);
    let body = r#"{"domain": "api", "descriptors": [{"entries": [{"key": "tenant", "value": "acme"}]}]}"#;
    let head = format!(
        "POST /json HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut call = TcpStream::connect(cota.http).unwrap();
    call.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    call.write_all(head.as_bytes()).unwrap();
    // It is read once the service waits for the body.
    let mut heard = [0; 25];
    call.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"HTTP/1.1 100 Continue\r\n\r\n");
    cota.signal("TERM");
    eventually("no newcomer is let in", || {
        TcpStream::connect(cota.http).err().map(drop)
    });
    call.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    call.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(cota.await_end().success(), "{}", cota.log());
}

//! Each rule of an answer, from requests decided by the engine.

use std::cell::Cell;

use super::*;
use crate::engine::descriptor::Request;
use crate::engine::limit::{Excess, Limit};
use crate::engine::resolve::resolve;
use crate::engine::response::Body;
use crate::engine::time::Timestamp;
use crate::support::model::Model;
use crate::support::policy::{NOON, bucket, costing, domain, fixed, request};

mod headers;
mod hostile;
mod refusals;
mod statuses;

const ACME: &[(&str, &str)] = &[("tenant", "acme")];
const KEY: &[(&str, &str)] = &[("credential", "key-1")];

/// A domain, its budgets and the time.
struct World {
    domain: &'static Domain,
    budgets: Model,
    now: Cell<Timestamp>,
}

impl World {
    fn new(domain: Domain) -> Self {
        Self {
            domain: Box::leak(Box::new(domain)),
            budgets: Model::default(),
            now: Cell::new(NOON),
        }
    }

    /// One limit met by every tenant.
    fn of(limit: Limit) -> Self {
        Self::with(limit, Response::default())
    }

    fn with(limit: Limit, response: Response) -> Self {
        Self::new(Domain {
            response,
            ..domain([(&[("tenant", None)], vec![limit])])
        })
    }

    fn ask(&self, request: &Request<'static>) -> Answer<'static> {
        self.ask_spread(request, 0.1)
    }

    /// An answer borrows from what was resolved: that is leaked, a few hundred bytes a test.
    fn ask_spread(&self, request: &Request<'static>, spread: f64) -> Answer<'static> {
        let resolved = Box::leak(Box::new(resolve(
            Some(self.domain),
            request,
            false,
            self.now.get(),
        )));
        let cap = Micros(u64::MAX);
        let decision = Box::leak(Box::new(self.budgets.decide(resolved, cap, self.now.get())));
        answer(Some(self.domain), resolved, decision, spread)
    }

    /// What acme gets for a request of that cost.
    fn spend(&self, cost: u64) -> Answer<'static> {
        self.ask(&costing(request(&[ACME]), cost))
    }

    fn later(&self, by: Micros) {
        self.now.set(self.now.get().plus(by));
    }
}

fn header<'a>(answer: &'a Answer<'_>, name: &str) -> Option<&'a str> {
    let mut found = answer.headers.iter().filter(|(key, _)| *key == name);
    let first = found.next().map(|(_, value)| value.as_str());
    assert_eq!(found.next(), None, "{name} is there once");
    first
}

fn headers<'a>(answer: &'a Answer<'_>) -> Vec<(&'static str, &'a str)> {
    let pairs = answer.headers.iter();
    pairs.map(|(key, value)| (*key, value.as_str())).collect()
}

fn body(answer: &Answer<'_>) -> serde_json::Value {
    serde_json::from_str(answer.body.as_deref().unwrap()).unwrap()
}

fn responding(headers: &[HeaderFamily], body: Body) -> Response {
    Response {
        headers: headers.to_vec(),
        body,
        ..Response::default()
    }
}

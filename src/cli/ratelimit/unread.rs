//! Variables that are set as if for this service, and that nobody reads.

use super::variables::VARIABLES;

/// How such variables begin.
const FAMILIES: [&str; 9] = [
    "GRPC_",
    "LIMIT_",
    "LOG_",
    "MAX_SLEEPING_ROUTINES",
    "PROMETHEUS_",
    "REDIS_",
    "RUNTIME_",
    "STATSD_",
    "TRACING_",
];

/// The second Redis is told of by its switch.
const TOLD: &str = "REDIS_PERSECOND_";

/// What people write, and what they mean.
const MEANT: [(&str, &str); 4] = [
    ("GRPC_SERVER_TLS_CA_CERT", "GRPC_CLIENT_TLS_CACERT"),
    ("REDIS_PASSWORD", "REDIS_AUTH"),
    ("REDIS_USE_TLS", "REDIS_TLS"),
    ("STATSD_ENABLED", "USE_STATSD"),
];

/// A warning for each. No value is shown: it may be a password.
pub(super) fn unread(set: impl IntoIterator<Item = (String, String)>) -> Vec<String> {
    let ours = |name: &str| {
        // What has other letters is not written into a log.
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && FAMILIES.iter().any(|family| name.starts_with(family))
            && !name.starts_with(TOLD)
    };
    let known = |name: &str| VARIABLES.iter().any(|(known, _)| *known == name);
    let mut names: Vec<String> = set
        .into_iter()
        .filter(|(name, value)| ours(name) && !known(name) && !is_service_link(name, value))
        .map(|(name, _)| name)
        .collect();
    names.sort_unstable();
    let warning = |name: String| match meant(&name) {
        Some(meant) => format!("{name} is not read: did you mean {meant}?"),
        None => format!("{name} is not read"),
    };
    names.into_iter().map(warning).collect()
}

fn meant(name: &str) -> Option<&'static str> {
    let usual = MEANT.iter().find(|(written, _)| *written == name);
    usual.map(|(_, meant)| *meant).or_else(|| {
        let known = VARIABLES.iter().map(|(known, _)| *known);
        let near = known
            .map(|known| (strsim::osa_distance(name, known), known))
            .min();
        near.filter(|(distance, _)| *distance <= 2)
            .map(|(_, known)| known)
    })
}

/// Kubernetes tells each pod of the services beside it: one called `redis` gives `REDIS_SERVICE_HOST`,
/// `REDIS_PORT` and `REDIS_PORT_6379_TCP_ADDR`.
fn is_service_link(name: &str, value: &str) -> bool {
    let port = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.ends_with("_PORT") && value.contains("://"))
        || name.split("_PORT_").skip(1).any(port)
}

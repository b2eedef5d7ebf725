//! Every variable of the incumbent, and what becomes of it.

/// What becomes of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It does here what it does there.
    Taken,
    /// What it tunes is not here, and nothing is lost.
    Needless,
    /// Something is lost that no decision hangs on, unless it has one of these values.
    Lost(&'static [&'static str], &'static str),
    /// The service would not be the one that was asked for, unless it has one of these values.
    Refused(&'static [&'static str], &'static str),
}

use Fate::{Lost, Needless, Refused, Taken};

const OFF: &[&str] = &["0", "f", "false"];

/// Every variable that the incumbent reads for a service with a Redis and files, and those that choose others.
pub(super) const VARIABLES: &[(&str, Fate)] = &[
    ("HOST", Taken),
    ("PORT", Taken),
    ("DEBUG_HOST", Taken),
    ("DEBUG_PORT", Taken),
    ("GRPC_HOST", Taken),
    ("GRPC_PORT", Taken),
    (
        "GRPC_UDS",
        Refused(&[], "there is no Unix socket: use GRPC_HOST and GRPC_PORT"),
    ),
    ("GRPC_MAX_CONNECTION_AGE", Taken),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", Needless),
    ("GRPC_SERVER_USE_TLS", Taken),
    ("GRPC_SERVER_TLS_CERT", Taken),
    ("GRPC_SERVER_TLS_KEY", Taken),
    ("GRPC_CLIENT_TLS_CACERT", Taken),
    ("GRPC_CLIENT_TLS_SAN", Taken),
    ("LOG_LEVEL", Taken),
    ("LOG_FORMAT", Taken),
    ("CONFIG_TYPE", Refused(&["file"], "policies come from files only")),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", Needless),
    (
        "MERGE_DOMAIN_CONFIG",
        Refused(
            OFF,
            "a domain stands in one document: put its descriptors together",
        ),
    ),
    ("RUNTIME_ROOT", Taken),
    ("RUNTIME_SUBDIRECTORY", Taken),
    ("RUNTIME_APPDIRECTORY", Taken),
    (
        "RUNTIME_IGNOREDOTFILES",
        Lost(
            &["1", "t", "true"],
            "files whose name begins with a dot are never read",
        ),
    ),
    ("RUNTIME_WATCH_ROOT", Taken),
    (
        "USE_STATSD",
        Lost(OFF, "there is no statsd: /metrics is for Prometheus"),
    ),
    ("STATSD_HOST", Needless),
    ("STATSD_PORT", Needless),
    (
        "USE_DOG_STATSD",
        Lost(OFF, "there is no statsd: /metrics is for Prometheus"),
    ),
    ("USE_DOG_STATSD_MOGRIFIERS", Needless),
    ("USE_PROMETHEUS", Taken),
    ("PROMETHEUS_ADDR", Taken),
    ("PROMETHEUS_PATH", Lost(&["/metrics"], "metrics are at /metrics")),
    (
        "PROMETHEUS_MAPPER_YAML",
        Lost(&[], "metrics have names of their own (docs/OPERATIONS.md)"),
    ),
    (
        "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        Lost(OFF, "times are in seconds"),
    ),
    ("EXTRA_TAGS", Lost(&[], "metrics have no further labels")),
    ("STATS_FLUSH_INTERVAL", Needless),
    ("DISABLE_STATS", Needless),
    ("SANITIZE_DESCRIPTOR_METRIC_DOTS", Needless),
    ("EXPIRATION_JITTER_MAX_SECONDS", Needless),
    ("LOCAL_CACHE_SIZE_IN_BYTES", Needless),
    ("NEAR_LIMIT_RATIO", Needless),
    (
        "CACHE_KEY_PREFIX",
        Refused(
            &[],
            "keys have no prefix, and services that share a Redis would share budgets: give each a database or a server",
        ),
    ),
    (
        "BACKEND_TYPE",
        Refused(&["redis"], "budgets are kept in Redis or Valkey only"),
    ),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Needless),
    ("USE_CALENDAR_MONTH_RATE_LIMIT", Needless),
    ("SHADOW_MODE", Taken),
    (
        "QUOTA_MODE",
        Refused(OFF, "write `quota_mode` at the descriptors that are quotas"),
    ),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", Taken),
    ("LIMIT_LIMIT_HEADER", Taken),
    ("LIMIT_REMAINING_HEADER", Taken),
    ("LIMIT_RESET_HEADER", Taken),
    (
        "RESPONSE_DYNAMIC_METADATA",
        Lost(
            OFF,
            "dynamic metadata is always sent, in a form of its own (docs/POLICY.md)",
        ),
    ),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", Needless),
    (
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        Lost(
            OFF,
            "health does not depend on Redis: each limit says what holds without it",
        ),
    ),
    ("REDIS_TYPE", Taken),
    ("REDIS_URL", Taken),
    ("REDIS_AUTH", Taken),
    ("REDIS_TLS", Taken),
    ("REDIS_TLS_CACERT", Taken),
    ("REDIS_TLS_CLIENT_CERT", Taken),
    ("REDIS_TLS_CLIENT_KEY", Taken),
    (
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        Refused(OFF, "a server's certificate must have its name"),
    ),
    (
        "REDIS_SOCKET_TYPE",
        Refused(&["tcp"], "Redis is reached by TCP only"),
    ),
    (
        "REDIS_SENTINEL_AUTH",
        Refused(&[], "sentinels are shown REDIS_AUTH: give them the same, or none"),
    ),
    (
        "REDIS_PERSECOND",
        Lost(
            OFF,
            "limits a second are kept in the Redis of REDIS_URL, like all others",
        ),
    ),
    ("REDIS_POOL_SIZE", Needless),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", Needless),
    ("REDIS_PIPELINE_WINDOW", Needless),
    ("REDIS_PIPELINE_LIMIT", Needless),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", Needless),
    ("REDIS_TIMEOUT", Needless),
    ("REDIS_STARTUP_INITIAL_INTERVAL", Needless),
    ("REDIS_STARTUP_MAX_INTERVAL", Needless),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", Needless),
    ("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", Needless),
    ("TRACING_ENABLED", Taken),
    ("TRACING_EXPORTER_PROTOCOL", Taken),
    ("TRACING_SERVICE_NAME", Lost(&[], "set OTEL_SERVICE_NAME")),
    (
        "TRACING_SERVICE_NAMESPACE",
        Lost(&[], "set OTEL_RESOURCE_ATTRIBUTES"),
    ),
    (
        "TRACING_SERVICE_INSTANCE_ID",
        Lost(&[], "set OTEL_RESOURCE_ATTRIBUTES"),
    ),
    (
        "TRACING_SAMPLING_RATE",
        Lost(&[], "Envoy says what is traced; or set OTEL_TRACES_SAMPLER"),
    ),
];

//! Each variable, and what it comes to.

use super::*;

fn read(set: &[(&str, &str)]) -> anyhow::Result<Asked> {
    Asked::read(|name| {
        let found = set.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn store_of(set: &[(&str, &str)]) -> String {
    read(set).unwrap().store.unwrap()
}

#[test]
fn without_a_variable_the_incumbents_defaults_hold() {
    let asked = read(&[]).unwrap();
    assert_eq!(asked.config, PathBuf::from("/srv/runtime_data/current"));
    assert_eq!(asked.names, Names::Beginning("config.".into()));
    assert_eq!(
        (&*asked.http_listen, &*asked.grpc_listen),
        ("0.0.0.0:8080", "0.0.0.0:8081")
    );
    assert_eq!(asked.also_http, ["0.0.0.0:6070"]);
    assert_eq!(asked.max_connection_age, Duration::from_secs(86_400));
    assert_eq!((asked.store, asked.headers, asked.tls), (None, None, None));
    assert_eq!((asked.shadow, asked.log_level), (false, LevelFilter::WARN));
    // Where the incumbent would read nothing.
    assert!(asked.warnings[0].starts_with("RUNTIME_SUBDIRECTORY: "));
    assert_eq!((asked.warnings.len(), asked.needless.len()), (1, 0));
}

#[test]
fn istios_sample_is_understood_without_a_warning() {
    let asked = read(&[
        ("LOG_LEVEL", "debug"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", "redis:6379"),
        ("USE_STATSD", "false"),
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("HOST", "::"),
        ("GRPC_HOST", "::"),
    ]);
    let asked = asked.unwrap();
    assert_eq!(asked.warnings, [""; 0]);
    assert_eq!(asked.config, PathBuf::from("/data/ratelimit/config"));
    assert_eq!(asked.names, Names::All);
    assert_eq!(
        (&*asked.http_listen, &*asked.grpc_listen),
        ("[::]:8080", "[::]:8081")
    );
    assert_eq!(asked.store.as_deref(), Some("redis://redis:6379"));
    assert_eq!(asked.log_level, LevelFilter::DEBUG);
}

#[test]
fn a_store_of_each_kind_is_found() {
    let url = ("REDIS_URL", "redis://u:p@r:1/2");
    assert_eq!(store_of(&[url]), "redis://u:p@r:1/2");
    assert_eq!(
        store_of(&[url, ("REDIS_AUTH", "a:b@/c:d")]),
        "redis://a:b%40%2Fc%3Ad@r:1/2"
    );
    assert_eq!(
        store_of(&[url, ("REDIS_AUTH", "secret")]),
        "redis://:secret@r:1/2"
    );
    let cluster = [
        ("REDIS_URL", "a:1,b:2"),
        ("REDIS_TYPE", "CLUSTER"),
        ("REDIS_TLS", "true"),
    ];
    assert_eq!(store_of(&cluster), "rediss-cluster://a:1,b:2");
    let sentinel = [("REDIS_URL", "mine,a:1,b:2"), ("REDIS_TYPE", "sentinel")];
    assert_eq!(store_of(&sentinel), "redis-sentinel://a:1,b:2/mine");
    for url in [store_of(&[url]), store_of(&cluster), store_of(&sentinel)] {
        assert!(url.parse::<crate::app::Target>().is_ok(), "{url}");
    }
    for bad in ["/var/run/redis.sock", "rediss://r:1"] {
        assert!(read(&[("REDIS_URL", bad)]).is_err(), "{bad}");
    }
}

#[test]
fn what_would_change_decisions_is_refused_and_names_its_variable() {
    for (name, value) in [
        ("BACKEND_TYPE", "memcache"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("GRPC_UDS", "/tmp/x"),
        ("MERGE_DOMAIN_CONFIG", "true"),
        ("QUOTA_MODE", "true"),
        ("CACHE_KEY_PREFIX", "prod:"),
        ("REDIS_SOCKET_TYPE", "unix"),
        ("REDIS_SENTINEL_AUTH", "x"),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"),
        ("SHADOW_MODE", "perhaps"),
        ("LIMIT_LIMIT_HEADER", "x y"),
        ("LOG_LEVEL", "loud"),
        ("REDIS_TYPE", ""),
    ] {
        let url = ("REDIS_URL", "r:1");
        match read(&[url, (name, value)]) {
            Err(error) => assert!(error.to_string().starts_with(name), "{error}"),
            // What is empty is not set.
            Ok(_) => assert_eq!(value, "", "{name}"),
        }
    }
}

#[test]
fn what_is_merely_lost_is_named_in_a_warning_and_what_is_off_is_not() {
    let asked = read(&[
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("USE_STATSD", "true"),
        ("REDIS_PERSECOND", "False"),
        ("QUOTA_MODE", "0"),
    ])
    .unwrap();
    assert_eq!(asked.warnings.len(), 1, "{:?}", asked.warnings);
    assert!(asked.warnings[0].starts_with("USE_STATSD: "));
    let asked = read(&[("RUNTIME_SUBDIRECTORY", "."), ("REDIS_POOL_SIZE", "10")]).unwrap();
    assert_eq!(
        (asked.warnings.len(), asked.needless),
        (0, vec!["REDIS_POOL_SIZE"])
    );
}

#[test]
fn the_document_has_every_variable_under_its_fate() {
    let document = include_str!("../../../docs/MIGRATION.md");
    for (name, fate) in VARIABLES {
        let mark = match fate {
            Taken => "taken",
            Needless => "not needed",
            Lost(..) => "lost, with a warning",
            Refused(..) => "refused",
        };
        let row = document
            .lines()
            .find(|line| line.contains(&format!("`{name}`")) && line.starts_with('|'));
        let row = row.unwrap_or_else(|| panic!("{name} has no row"));
        assert!(row.starts_with(&format!("| {mark} |")), "{name}: {row}");
    }
}

#[test]
fn a_watched_root_is_read_by_the_name_of_the_application() {
    let below = ("RUNTIME_SUBDIRECTORY", "ratelimit");
    let asked = read(&[("RUNTIME_ROOT", "/data"), below, ("RUNTIME_APPDIRECTORY", "app")]).unwrap();
    assert_eq!(asked.config, PathBuf::from("/data/ratelimit"));
    assert_eq!(asked.names, Names::Beginning("app.".into()));
    assert_eq!(asked.warnings, [""; 0]);
}

#[test]
fn ages_are_written_as_the_incumbent_writes_them() {
    for (text, seconds) in [
        ("0", 0),
        ("0s", 0),
        ("1h30m", 5_400),
        ("1.5h", 5_400),
        ("90s", 90),
    ] {
        let asked = read(&[("GRPC_MAX_CONNECTION_AGE", text)]);
        let age = asked.map(|asked| asked.max_connection_age.as_secs());
        assert_eq!(age.map_err(|error| error.to_string()), Ok(seconds), "{text}");
    }
}

#[test]
fn what_nobody_reads_is_named_with_what_may_be_meant_and_without_its_value() {
    let set = [
        ("REDIS_PASSWORD", "hunter2"),
        ("STATSD_ENABLED", "false"),
        ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
        ("REDIS_ULR", "redis:6379"),
        ("MAX_SLEEPING_ROUTINES", "10"),
        ("TRACING_PROVIDER_JAEGER_HOST", "jaeger"),
        // Read, told of by a switch, of Kubernetes, of others, or no name for a log.
        ("REDIS_URL", "redis:6379"),
        ("REDIS_PERSECOND_URL", "redis:6379"),
        ("REDIS_SERVICE_HOST", "10.0.0.1"),
        ("REDIS_MASTER_SERVICE_PORT_TCP", "6379"),
        ("REDIS_PORT", "tcp://10.0.0.1:6379"),
        ("REDIS_PORT_6379_TCP_ADDR", "10.0.0.1"),
        ("PATH", "/bin"),
        ("COTA_STORE", "memory"),
        ("REDIS_\n", "x"),
    ];
    let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(
        unread(set),
        [
            "GRPC_SERVER_TLS_CA_CERT is not read: did you mean GRPC_CLIENT_TLS_CACERT?",
            "MAX_SLEEPING_ROUTINES is not read",
            "REDIS_PASSWORD is not read: did you mean REDIS_AUTH?",
            "REDIS_ULR is not read: did you mean REDIS_URL?",
            "STATSD_ENABLED is not read: did you mean USE_STATSD?",
            "TRACING_PROVIDER_JAEGER_HOST is not read",
        ]
    );
}

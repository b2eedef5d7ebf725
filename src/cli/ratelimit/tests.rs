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
    assert_eq!(asked.config, PathBuf::from("/srv/runtime_data/current/config"));
    assert_eq!(
        (&*asked.http_listen, &*asked.grpc_listen),
        ("0.0.0.0:8080", "0.0.0.0:8081")
    );
    assert_eq!(asked.also_http, ["0.0.0.0:6070"]);
    assert_eq!(asked.max_connection_age, Duration::from_secs(86_400));
    assert_eq!((asked.store, asked.headers, asked.tls), (None, None, None));
    assert_eq!((asked.shadow, asked.log_level), (false, LevelFilter::WARN));
    assert_eq!((asked.warnings.len(), asked.needless.len()), (0, 0));
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
        ("USE_STATSD", "true"),
        ("REDIS_PERSECOND", "False"),
        ("QUOTA_MODE", "0"),
    ])
    .unwrap();
    assert_eq!(asked.warnings.len(), 1, "{:?}", asked.warnings);
    assert!(asked.warnings[0].starts_with("USE_STATSD: "));
    let asked = read(&[("REDIS_POOL_SIZE", "10")]).unwrap();
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

use super::*;

fn at(host: &str, port: u16) -> Address {
    Address {
        host: host.to_owned(),
        port,
    }
}

#[test]
fn every_form_is_read() {
    let target: Target = "redis://cache:7000/3".parse().unwrap();
    assert_eq!(
        target.topology,
        Topology::Single {
            address: at("cache", 7000),
            db: 3
        }
    );
    assert!(!target.tls);
    assert_eq!(target.credentials, None);

    let target: Target = "rediss-cluster://app:s3cret@a:1,b,[::1]:3".parse().unwrap();
    assert!(target.tls);
    assert_eq!(
        target.topology,
        Topology::Cluster {
            seeds: vec![at("a", 1), at("b", 6379), at("::1", 3)]
        }
    );
    assert_eq!(target.credentials().unwrap().user.as_deref(), Some("app"));

    let target: Target = "redis-sentinel://:p%40ss%2f@s1,s2:5000/my%20master"
        .parse()
        .unwrap();
    assert_eq!(
        target.topology,
        Topology::Sentinel {
            sentinels: vec![at("s1", 26379), at("s2", 5000)],
            master: "my master".to_owned()
        }
    );
    let credentials = target.credentials().unwrap();
    assert_eq!((credentials.user, credentials.password.as_str()), (None, "p@ss/"));
}

#[test]
fn a_fault_is_named() {
    for (text, said) in [
        ("memcached://a", "unknown store `memcached`"),
        ("redis-ring://a", "unknown store `redis-ring`"),
        ("localhost:6379", "unknown store `localhost:6379`"),
        ("redis://", "a host is missing"),
        ("redis://a,b", "redis:// takes one host"),
        ("redis://a:x", "`x` is not a port"),
        ("redis://a:0", "`0` is not a port"),
        ("redis://a:65536", "`65536` is not a port"),
        ("redis://::1", "write an IPv6 address as [::1]:6379"),
        ("redis://a/one", "`one` is not the number of a database"),
        ("redis-cluster://a/1", "a cluster has one database"),
        ("redis-sentinel://a", "the master's name is missing"),
        ("redis://user@a", "a user needs a password"),
        ("redis://u:%zz@a", "two hexadecimal digits"),
        ("redis://u:a/b@a", "`/` is written %2F"),
        ("redis://a?timeout=1", "options after `?`"),
    ] {
        let fault = text.parse::<Target>().unwrap_err().to_string();
        assert!(fault.contains(said), "{text}: {fault}");
    }
}

#[test]
fn a_password_is_never_shown() {
    let target: Target = "redis://app:hunter2@a".parse().unwrap();
    assert!(!format!("{target:?}").contains("hunter2"), "{target:?}");
    for text in [
        "app:hunter2@a",
        "redis//app:hunter2@a:1",
        "redis://app:hunter2@a:x",
        "rdis://app:hunter2@a",
        "redis://app:hunter2/x@a",
    ] {
        let fault = format!("{0} {0:?}", text.parse::<Target>().unwrap_err());
        assert!(!fault.contains("hunter2"), "{fault}");
    }
}

#[test]
fn a_password_in_a_file_is_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let password = |target: &Target| target.credentials().unwrap().password;
    fs::write(&path, "redis://:one@a\n").unwrap();
    let target = Target::from_file(&path).unwrap();
    assert_eq!(password(&target), "one");
    fs::write(&path, "redis://:two@a\n").unwrap();
    assert_eq!(password(&target), "two");
    // Half written, or gone.
    fs::write(&path, "redis:").unwrap();
    assert_eq!(password(&target), "one");
    fs::remove_file(&path).unwrap();
    assert_eq!(password(&target), "one");
    let fault = Target::from_file(&path).unwrap_err().to_string();
    assert!(fault.contains("store: No such file"), "{fault}");
}

#[test]
fn a_redirection_without_a_host_means_the_one_that_was_asked() {
    let asked = at("10.0.0.1", 1);
    assert_eq!(Address::redirected("10.0.0.2:7", &asked), Some(at("10.0.0.2", 7)));
    assert_eq!(Address::redirected(":7", &asked), Some(at("10.0.0.1", 7)));
    assert_eq!(Address::redirected("?:7", &asked), Some(at("10.0.0.1", 7)));
    assert_eq!(Address::redirected("fe80::1:7", &asked), Some(at("fe80::1", 7)));
    assert_eq!(Address::redirected("nonsense", &asked), None);
}

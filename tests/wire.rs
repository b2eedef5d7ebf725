//! The wire contract of `proto/` is Envoy's.
//!
//! The comparison is done by `wire/compare_descriptors.py`, since Envoy publishes its descriptors for Python.
//! A machine without the virtualenv fails here: a contract that nobody compared is not known to hold.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cota::grpc::proto::FILE_DESCRIPTOR_SET;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};

const DESCRIPTOR_FILE: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
const SERVICE_FILE: &str = "envoy/service/ratelimit/v3/rls.proto";
const UNIT_FILE: &str = "envoy/type/v3/ratelimit_unit.proto";

type Mutation = fn(&mut FileDescriptorSet);

#[test]
fn our_descriptors_equal_envoys() {
    let report = compare(&virtualenv_python(), FILE_DESCRIPTOR_SET).unwrap();
    assert!(report.ends_with("declarations are equal"), "{report}");
}

#[test]
fn the_descriptor_set_has_the_service_and_what_it_imports() {
    let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let pool = prost_reflect::DescriptorPool::from_file_descriptor_set(set).unwrap();
    let service = pool
        .get_service_by_name("envoy.service.ratelimit.v3.RateLimitService")
        .unwrap();
    let methods: Vec<String> = service.methods().map(|method| method.name().to_owned()).collect();
    assert_eq!(methods, ["ShouldRateLimit"]);
    assert!(pool.get_message_by_name("google.protobuf.Struct").is_some());
}

#[test]
fn each_kind_of_difference_is_found() {
    let cases: [(&str, Mutation); 13] = [
        ("RateLimitDescriptor.limit: ours is", |set| {
            message(set, DESCRIPTOR_FILE, "RateLimitDescriptor").field[1].number = Some(9);
        }),
        ("RateLimitDescriptor.limits: not in", |set| {
            message(set, DESCRIPTOR_FILE, "RateLimitDescriptor").field[1].name = Some("limits".to_owned());
        }),
        ("RateLimitDescriptor.is_negative_hits: ours is", |set| {
            message(set, DESCRIPTOR_FILE, "RateLimitDescriptor").field[3].number = Some(5);
        }),
        ("RateLimitRequest.hits_addend: ours is", |set| {
            message(set, SERVICE_FILE, "RateLimitRequest").field[2].set_type(Type::Uint64);
        }),
        ("RateLimitRequest.descriptors: ours is", |set| {
            message(set, SERVICE_FILE, "RateLimitRequest").field[1].set_label(Label::Optional);
        }),
        ("RateLimitDescriptor.hits_addend: ours is", |set| {
            message(set, DESCRIPTOR_FILE, "RateLimitDescriptor").field[2].type_name =
                Some(".google.protobuf.UInt32Value".to_owned());
        }),
        ("RateLimitResponse.Quota.valid_until: ours is", |set| {
            let response = message(set, SERVICE_FILE, "RateLimitResponse");
            let quota = response
                .nested_type
                .iter_mut()
                .find(|nested| nested.name() == "Quota")
                .unwrap();
            quota.field[1].oneof_index = None;
        }),
        ("RateLimitAnswer: not in", |set| {
            message(set, SERVICE_FILE, "RateLimitResponse").name = Some("RateLimitAnswer".to_owned());
        }),
        ("RateLimitUnit.YEAR: ours is", |set| {
            unit(set).value[6].number = Some(7)
        }),
        ("RateLimitUnit.CENTURY: not in", |set| {
            unit(set).value[6].name = Some("CENTURY".to_owned())
        }),
        ("RateLimitService.ShouldRateLimit: ours is", |set| {
            file(set, SERVICE_FILE).service[0].method[0].server_streaming = Some(true);
        }),
        ("RateLimitService.MayPass: not in", |set| {
            file(set, SERVICE_FILE).service[0].method[0].name = Some("MayPass".to_owned());
        }),
        ("envoy/type/v3/unit.proto: not in", |set| {
            file(set, UNIT_FILE).name = Some("envoy/type/v3/unit.proto".to_owned());
        }),
    ];
    for (expected, mutate) in cases {
        let mut set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        mutate(&mut set);
        let report = compare(&virtualenv_python(), &set.encode_to_vec()).unwrap_err();
        assert!(report.contains(expected), "no `{expected}` in:\n{report}");
    }
}

#[test]
fn an_empty_descriptor_set_is_not_equal() {
    let report = compare(&virtualenv_python(), &[]).unwrap_err();
    assert_eq!(report, "the descriptor set declares nothing");
}

#[test]
fn a_missing_virtualenv_or_package_says_what_to_run() {
    let no_virtualenv = compare(Path::new("no/such/python"), FILE_DESCRIPTOR_SET).unwrap_err();
    assert!(no_virtualenv.ends_with("run `make setup`"), "{no_virtualenv}");

    // Python without `site` sees no installed package.
    let script = manifest_dir().join("tests/wire/compare_descriptors.py");
    let output = Command::new(virtualenv_python())
        .args(["-I", "-S"])
        .arg(script)
        .output()
        .unwrap();
    let no_package = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert!(!output.status.success());
    assert!(no_package.ends_with("run `make setup`"), "{no_package}");
}

/// What the comparison says, as an error if the descriptors differ or could not be compared.
fn compare(python: &Path, descriptor_set: &[u8]) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let descriptors = folder.path().join("descriptors.bin");
    fs::write(&descriptors, descriptor_set).unwrap();
    let output = Command::new(python)
        .arg(manifest_dir().join("tests/wire/compare_descriptors.py"))
        .arg(descriptors)
        .output()
        .map_err(|error| format!("cannot run {}: {error}: run `make setup`", python.display()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

fn virtualenv_python() -> PathBuf {
    manifest_dir().join(".venv/bin/python")
}

fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn file<'a>(set: &'a mut FileDescriptorSet, name: &str) -> &'a mut FileDescriptorProto {
    set.file.iter_mut().find(|file| file.name() == name).unwrap()
}

fn message<'a>(set: &'a mut FileDescriptorSet, in_file: &str, name: &str) -> &'a mut DescriptorProto {
    file(set, in_file)
        .message_type
        .iter_mut()
        .find(|message| message.name() == name)
        .unwrap()
}

fn unit(set: &mut FileDescriptorSet) -> &mut EnumDescriptorProto {
    &mut file(set, UNIT_FILE).enum_type[0]
}

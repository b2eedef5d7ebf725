"""Builds every kustomization below deploy/, and checks what comes out.

    manifests.py COTA ENVOY WORK

Kinds of Kubernetes against its schemas, unknown fields refused. Kinds of Istio and of the Prometheus operator against models made
from their definitions. No package holds those of Envoy Gateway: their required fields are written here. What they patch into
Envoy is given to the real Envoy, as is every envoy.yaml of the repository.
"""

import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import certifi
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BIN = ROOT / ".venv" / "bin"
# Brought by the user: docs/KUBERNETES.md.
BROUGHT = {("Secret", "cota-store")}
# The same of components.
FOR_COMPONENTS = {("Secret", "cota-admin"), ("Secret", "cota-tls")}
MODELS = {
    "networking.istio.io/v1": "cloudcoil.models.istio.networking.v1",
    "networking.istio.io/v1alpha3": "cloudcoil.models.istio.networking.v1alpha3",
    "security.istio.io/v1": "cloudcoil.models.istio.security.v1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}
# As `required` and the known fields of Envoy Gateway's definitions: spec, each patch, its operation.
PATCH_SPEC = {"targetRef", "targetRefs", "type", "jsonPatches", "priority"}
PATCH = {"type", "name", "operation"}
OPERATION = {"op", "path", "jsonPath", "from", "value"}
PATCHED = {"listener.v3.Listener", "route.v3.RouteConfiguration", "cluster.v3.Cluster", "endpoint.v3.ClusterLoadAssignment"}


def kustomize(folder):
    output = subprocess.run([BIN / "kubectl", "kustomize", folder], capture_output=True, text=True)
    assert output.returncode == 0 and not output.stderr, f"{folder}:\n{output.stderr}"
    return [document for document in yaml.safe_load_all(output.stdout) if document]


def overlays(work):
    """(name, objects) of every kustomization, and of each with all components."""
    kinds = {path.parent: yaml.safe_load(path.read_text())["kind"] for path in sorted(DEPLOY.rglob("kustomization.yaml"))}
    components = [folder for folder, kind in kinds.items() if kind == "Component"]
    assert components
    for folder, kind in kinds.items():
        if kind == "Component":
            continue
        name = str(folder.relative_to(DEPLOY))
        yield name, kustomize(folder)
        if name != "redis-cluster":
            above = work / f"{name}-and-components"
            above.mkdir(parents=True)
            relative = lambda target: os.path.relpath(target, above)
            (above / "kustomization.yaml").write_text(yaml.safe_dump({
                "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
                "resources": [relative(folder)], "components": [relative(component) for component in components]}))
            objects = kustomize(above)
            assert any(item["kind"] == "ServiceMonitor" for item in objects)
            yield f"{name} and components", objects


def lost(given, kept, at=""):
    """Where something of what was given is missing in what the model kept: a field it does not know."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key not in kept:
                yield f"{at}.{key}"
            else:
                yield from lost(value, kept[key], f"{at}.{key}")
    elif isinstance(given, list) and isinstance(kept, list):
        for index, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{at}[{index}]")


def validate(item):
    version, kind = item["apiVersion"], item["kind"]
    assert item["metadata"]["name"]
    if version in MODELS:
        model = getattr(importlib.import_module(MODELS[version]), kind)
        kept = model.model_validate(item).model_dump(by_alias=True, exclude_unset=True, mode="json")
        unknown = list(lost(item, kept))
        assert not unknown, f"{kind} does not know {unknown}"
    elif version == "gateway.envoyproxy.io/v1alpha1":
        gateway_kind(kind, item["spec"])
    else:
        kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)


def gateway_kind(kind, spec):
    references = spec.get("targetRefs") or [spec["targetRef"]]
    assert all(set(reference) == {"group", "kind", "name"} for reference in references)
    if kind == "EnvoyPatchPolicy":
        assert set(spec) <= PATCH_SPEC and spec["type"] == "JSONPatch"
        for patch in spec["jsonPatches"]:
            assert set(patch) == PATCH and set(patch["operation"]) <= OPERATION
            assert patch["type"].removeprefix("type.googleapis.com/envoy.config.") in PATCHED
            assert patch["operation"]["op"] == "add" and {"path", "jsonPath"} & set(patch["operation"])
    else:
        assert kind == "SecurityPolicy" and set(spec) == {"targetRefs", "jwt"}, kind
        for provider in spec["jwt"]["providers"]:
            assert set(provider) == {"name", "issuer", "audiences", "remoteJWKS"} and set(provider["remoteJWKS"]) == {"uri"}


def pod_specs(objects):
    for item in objects:
        if item["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield item, item["spec"]["template"]


def hold_together(objects, brought):
    """That what refers to something finds it, and that every pod asks for as little as it can."""
    there = {(item["kind"], item["metadata"]["name"]) for item in objects} | brought
    assert len({(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects}) == len(objects)
    labels = [template["metadata"]["labels"] for _, template in pod_specs(objects)]
    matched = lambda selector: [pod for pod in labels if selector.items() <= pod.items()]
    for item in objects:
        spec = item.get("spec", {})
        if item["kind"] == "Service":
            assert len(matched(spec["selector"])) == 1, f"the Service {item['metadata']['name']} selects {matched(spec['selector'])}"
        if item["kind"] in ("PodDisruptionBudget", "NetworkPolicy"):
            assert matched((spec.get("selector") or spec["podSelector"])["matchLabels"]), item["metadata"]["name"]
        if item["kind"] == "HorizontalPodAutoscaler":
            assert (spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]) in there
    for item, template in pod_specs(objects):
        name, spec = item["metadata"]["name"], template["spec"]
        assert item["kind"] == "Job" or item["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items(), name
        for volume in spec.get("volumes", []):
            for kind, key, field in (("ConfigMap", "configMap", "name"), ("Secret", "secret", "secretName")):
                assert key not in volume or (kind, volume[key][field]) in there, f"{name} mounts {volume}, which is not there"
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False, name
        security = spec["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] > 0 and security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                    "capabilities": {"drop": ["ALL"]}}, name
            assert container["resources"]["requests"] and container["resources"]["limits"]["memory"], name
            mounts = container.get("volumeMounts", [])
            assert {mount["name"] for mount in mounts} == {volume["name"] for volume in spec.get("volumes", [])}, name
            assert not any("subPath" in mount for mount in mounts), f"{name}: a file mounted with subPath never changes"


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


def cota_itself(objects, cota):
    """What must be right about cota's own Deployment."""
    deployment = next(item for item in objects if item["kind"] == "Deployment" and item["metadata"]["name"] == "cota")
    spec = deployment["spec"]["template"]["spec"]
    container, = spec["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    help_text = subprocess.run([cota, *container["args"], "--help"], check=True, capture_output=True, text=True).stdout
    for name in variables:
        assert re.search(rf"\b{name}\b", help_text), f"cota does not read {name}"
    drain = seconds(variables["COTA_DRAIN"])
    assert spec["terminationGracePeriodSeconds"] >= drain + 23, "the drain and the way out do not fit in the grace period"
    readiness = container["readinessProbe"]
    assert drain > readiness["periodSeconds"] * readiness["failureThreshold"] + readiness["timeoutSeconds"]
    assert spec["securityContext"]["runAsUser"] == 65534
    assert "replicas" not in deployment["spec"], "the autoscaler's number would be put back"
    probes = {probe: container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/livez", "readiness": "/readyz", "liveness": "/livez"}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert variables["COTA_CONFIG"] in mounts and str(pathlib.PurePosixPath(variables["COTA_STORE_FILE"]).parent) in mounts
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": int(variables["COTA_GRPC_LISTEN"].rsplit(":")[-1]), "http": int(variables["COTA_HTTP_LISTEN"].rsplit(":")[-1])}
    kinds = {item["kind"] for item in objects}
    assert {"PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy", "ServiceAccount"} <= kinds


def policies(objects, cota, work):
    """Checks what the ConfigMap holds, as cota will read it; the domains."""
    config = next(item for item in objects if item["kind"] == "ConfigMap" and item["metadata"]["name"] == "cota-policy")
    folder = work / "policy"
    folder.mkdir(exist_ok=True)
    domains = set()
    for name, text in config["data"].items():
        (folder / name).write_text(text)
        domains |= {document["domain"] for document in yaml.safe_load_all(text)}
    check(cota, folder)
    return domains


def check(cota, path):
    output = subprocess.run([cota, "check", "--deny-warnings", path], capture_output=True, text=True)
    assert output.returncode == 0, output.stdout + output.stderr


def called(config):
    """The clusters that are called over gRPC."""
    if isinstance(config, dict):
        if "envoy_grpc" in config:
            yield config["envoy_grpc"]["cluster_name"]
        for value in config.values():
            yield from called(value)
    elif isinstance(config, list):
        for value in config:
            yield from called(value)


def envoy_accepts(envoy, config, name, work):
    # Envoy itself does not look: it would find no limiter at run time, and let everything pass.
    clusters = {cluster["name"] for cluster in config["static_resources"]["clusters"]}
    assert set(called(config)) <= clusters and set(called(config)), f"{name}: {set(called(config))} of {clusters}"
    file = work / f"{re.sub('[^a-z0-9]+', '-', name)}.json"
    # A bundle of authorities that this machine has, where the container has its own.
    text = json.dumps(config).replace("/etc/ssl/certs/ca-certificates.crt", certifi.where())
    file.write_text(text)
    output = subprocess.run([envoy, "--mode", "validate", "--config-path", file, "--log-level", "error", "--use-dynamic-base-id"],
                            capture_output=True, text=True)
    assert output.returncode == 0, f"Envoy refuses {name}:\n{output.stdout}{output.stderr}"


def gateway(clusters):
    """An Envoy as a mesh's gateway starts out: token, router, two routes with names."""
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "http_filters": [
            {"name": "envoy.filters.http.jwt_authn", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"}},
            {"name": "envoy.filters.http.router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
        "route_config": {"virtual_hosts": [{"name": "api.example.com:443", "domains": ["*"], "routes": [
            {"name": name, "match": {"prefix": f"/{name}"}, "route": {"cluster": "upstream"}} for name in ("export", "login")]}]},
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    listener = {"name": "default/eg/http", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    return listener, chain, manager, [{"name": name, "type": "STATIC"} for name in ["upstream", *clusters]]


def bootstrap(listener, chain, clusters, place="filter_chains"):
    listener[place] = [chain] if place == "filter_chains" else chain
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


def merge(into, value):
    for key, new in value.items():
        if isinstance(new, dict) and isinstance(into.get(key), dict):
            merge(into[key], new)
        else:
            into[key] = new


def istio_patched(objects):
    """What the EnvoyFilters make of a gateway."""
    services = {f"outbound|{port['port']}||{item['metadata']['name']}.{item['metadata']['namespace']}.svc.cluster.local"
                for item in objects if item["kind"] == "Service" for port in item["spec"]["ports"]}
    listener, chain, manager, clusters = gateway(services)
    host = manager["route_config"]["virtual_hosts"][0]
    for item in objects:
        if item["kind"] != "EnvoyFilter":
            continue
        for patch in item["spec"]["configPatches"]:
            value, operation, filters = patch["patch"]["value"], patch["patch"]["operation"], manager["http_filters"]
            match (patch["applyTo"], operation):
                case ("HTTP_FILTER", "INSERT_FIRST"):
                    filters.insert(0, value)
                case ("HTTP_FILTER", "INSERT_BEFORE"):
                    before = patch["match"]["listener"]["filterChain"]["filter"]["subFilter"]["name"]
                    filters.insert([one["name"] for one in filters].index(before), value)
                case ("NETWORK_FILTER", "MERGE"):
                    merge(chain["filters"][0], value)
                case ("VIRTUAL_HOST", "MERGE"):
                    assert patch["match"]["routeConfiguration"]["vhost"]["name"] == host["name"]
                    merge(host, value)
                case ("HTTP_ROUTE", "MERGE"):
                    wanted = patch["match"]["routeConfiguration"]["vhost"]["route"]["name"]
                    merge(next(route for route in host["routes"] if route["name"] == wanted), value)
                case other:
                    raise AssertionError(f"this test does not know {other}")
    return manager, bootstrap(listener, chain, clusters)


def gateway_patched(objects):
    """What the EnvoyPatchPolicy makes of a listener of Envoy Gateway."""
    listener, chain, manager, clusters = gateway([])
    for item in objects:
        if item["kind"] != "EnvoyPatchPolicy":
            continue
        for patch in item["spec"]["jsonPatches"]:
            operation = patch["operation"]
            if patch["type"].endswith("Cluster"):
                assert operation["path"] == "" and patch["name"] == operation["value"]["name"]
                clusters.append(operation["value"])
                continue
            assert patch["name"] == listener["name"]
            filters = manager["http_filters"]
            place = operation.get("path", operation.get("jsonPath"))
            head = "/default_filter_chain/filters/0/typed_config/"
            by_name = re.fullmatch(r"\$\.default_filter_chain\.filters\[0\]\.typed_config\.http_filters\[\?\(@\.name=='([^']+)'\)\]", place)
            if by_name:
                filters.insert([one["name"] for one in filters].index(by_name[1]), operation["value"])
            elif place == head + "http_filters/0":
                filters.insert(0, operation["value"])
            else:
                assert place.startswith(head) and "/" not in place.removeprefix(head), place
                manager[place.removeprefix(head)] = operation["value"]
    return manager, bootstrap(listener, chain, clusters, "default_filter_chain")


def domains_asked(config):
    if isinstance(config, dict):
        if str(config.get("@type", "")).endswith("ratelimit.v3.RateLimit"):
            yield config["domain"]
        for value in config.values():
            yield from domains_asked(value)
    elif isinstance(config, list):
        for value in config:
            yield from domains_asked(value)


def main():
    cota, envoy, work = map(pathlib.Path, sys.argv[1:])
    work = work.resolve()
    built = dict(overlays(work))
    assert {"base", "envoy", "istio", "envoy-gateway", "trial", "redis-cluster"} <= set(built), sorted(built)
    seen = set()
    for name, objects in built.items():
        print(f"{name}: {len(objects)} objects")
        for item in objects:
            # Most objects are in several.
            text = json.dumps(item, sort_keys=True)
            if text in seen:
                continue
            seen.add(text)
            try:
                validate(item)
            except Exception as error:
                raise AssertionError(f"{name}: {item['kind']} {item['metadata']['name']}: {error}") from error
        hold_together(objects, FOR_COMPONENTS | (set() if name.startswith(("trial", "redis-cluster")) else BROUGHT))
        if name != "redis-cluster":
            cota_itself(objects, cota)

    known = policies(built["base"], cota, work)
    istio, istio_config = istio_patched(built["istio"])
    eg, eg_config = gateway_patched(built["envoy-gateway"])
    for name, manager in (("istio", istio), ("envoy-gateway", eg)):
        order = [one["name"] for one in manager["http_filters"]]
        assert order == ["door", "envoy.filters.http.jwt_authn", "tenants", "envoy.filters.http.router"], (name, order)
        assert manager["early_header_mutation_extensions"]
    envoy_accepts(envoy, istio_config, "istio", work)
    envoy_accepts(envoy, eg_config, "envoy-gateway", work)
    mapped = next(item for item in built["envoy"] if item["kind"] == "ConfigMap" and "envoy.yaml" in item["data"])
    plain = yaml.safe_load(mapped["data"]["envoy.yaml"])
    for config in (istio_config, eg_config, plain):
        assert set(domains_asked(config)) == known, f"{set(domains_asked(config))} is not {known}"

    # Every file of the repository that an Envoy reads; templates with what their programs fill in.
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*envoy.yaml"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split()
    listed = [name for name in listed if name.endswith("/envoy.yaml")]
    for name in listed:
        text = (ROOT / name).read_text()
        text = re.sub(r"@ACCESS_LOG@|\$\{access_log\}", "/dev/null", text).replace("@TIMEOUT@", "timeout: 1s").replace("@KEY@", "AAAA")
        text = text.replace("${jwks}", '{"keys":[{"kty":"oct","alg":"HS256","k":"AAAA"}]}')
        text = text.replace("${cota_endpoints}", "[]")
        text = re.sub(r"@[A-Z_]+@|\$\{[a-z_]+\}", "1", text)
        (work / "jwks.json").write_text('{"keys":[{"kty":"oct","alg":"HS256","k":"AAAA"}]}')
        text = text.replace("/etc/envoy/jwks.json", str(work / "jwks.json"))
        envoy_accepts(envoy, yaml.safe_load(text), name, work)
        print(f"{name}: accepted by Envoy")
    assert len(listed) >= 3
    for policy in sorted(DEPLOY.rglob("policy.yaml")):
        check(cota, policy)
        asked = set(domains_asked(yaml.safe_load((policy.parent / "envoy.yaml").read_text())))
        there = {document["domain"] for document in yaml.safe_load_all(policy.read_text())}
        assert asked == there, f"{policy.parent}: asked {asked}, there {there}"


if __name__ == "__main__":
    main()

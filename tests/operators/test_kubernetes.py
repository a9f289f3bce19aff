"""The Kubernetes manifests: what kustomize makes of them is valid, restricted, and fits the server."""

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from pressure_server.app.queue_sections import read_templates
from pressure_server.backend.address import ClusterAddress, SentinelAddress, address_of
from pressure_server.version import RELEASE
from tests.support.paths import ROOT
from tests.support.programs import TIMEOUT
from tests.support.requirements import need, require

pytestmark = pytest.mark.clients

FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = ("embedded", "external", "cluster", "sentinel", "example")
# An old release that clusters still run, and the newest that the checker knows.
RELEASES = ("1.29", "1.37")
Manifest = dict[str, Any]


def _object(required: str = "", **properties: Manifest) -> Manifest:
    """Return the schema of an object that has these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


# What we use of the definition monitoring.coreos.com/v1, which no checker has offline.
_TEXT = {"type": "string"}
_SECRET_KEY = _object("key", name=_TEXT, key=_TEXT, optional={"type": "boolean"})
_ENDPOINT = _object(
    port=_TEXT,
    path={**_TEXT, "pattern": "^/"},
    interval={**_TEXT, "pattern": "^[0-9]+(ms|s|m|h)$"},
    basicAuth=_object(username=_SECRET_KEY, password=_SECRET_KEY),
)
_SERVICE_MONITOR = _object(
    "apiVersion kind metadata spec",
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "ServiceMonitor"},
    metadata={"type": "object", "required": ["name"]},
    spec=_object(
        "selector endpoints",
        selector={"type": "object", "required": ["matchLabels"]},
        endpoints={"type": "array", "items": _ENDPOINT},
    ),
)


@cache
def rendered(folder: Path) -> list[Manifest]:
    """Return what kustomize makes of a folder."""
    kubectl = need("kubectl", "kubernetes-client")
    version = subprocess.run(
        [kubectl, "version", "--client"], capture_output=True, text=True, timeout=TIMEOUT, check=False
    ).stdout
    found = re.search(r"Kustomize Version: v(\d+)", version)
    require(found is not None and int(found[1]) >= 5, f"a kubectl with kustomize 5: {version}")
    ended = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    # Also nothing that is deprecated.
    assert (ended.returncode, ended.stderr) == (0, "")
    return list(yaml.safe_load_all(ended.stdout))


def only(manifests: list[Manifest], kind: str) -> Manifest:
    """Return the manifest of that kind."""
    (found,) = (manifest for manifest in manifests if manifest["kind"] == kind)
    return found


def workload(manifests: list[Manifest]) -> Manifest:
    """Return the StatefulSet or Deployment."""
    (found,) = (manifest for manifest in manifests if manifest["kind"] in ("StatefulSet", "Deployment"))
    return found


def pod_of(manifests: list[Manifest]) -> Manifest:
    pod: Manifest = workload(manifests)["spec"]["template"]["spec"]
    return pod


def container_of(manifests: list[Manifest]) -> Manifest:
    (container,) = pod_of(manifests)["containers"]
    assert isinstance(container, dict)
    return container


def variables_of(manifests: list[Manifest]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container_of(manifests)["env"]}


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    """What kustomize makes of each overlay."""
    return rendered(FOLDER / request.param)


@pytest.fixture(scope="module")
def checker() -> Any:
    """The checker of manifests. Its import takes a second, which workers without these tests save."""
    import kubernetes_validate  # type: ignore[import-untyped] # it has no types

    return kubernetes_validate


@pytest.mark.parametrize("release", RELEASES)
def test_the_manifests_match_the_schemas_of_kubernetes(
    checker: Any, manifests: list[Manifest], release: str
) -> None:
    import jsonschema  # type: ignore[import-untyped] # its types are a package of their own

    for manifest in manifests:
        if manifest["kind"] == "ServiceMonitor":
            jsonschema.validate(manifest, _SERVICE_MONITOR)
        else:
            checker.validate(manifest, release, strict=True)


def test_the_checker_finds_a_misspelt_key(checker: Any) -> None:
    manifest = json.loads(json.dumps(workload(rendered(FOLDER / "embedded"))))
    manifest["spec"]["template"]["spec"]["terminationGracePeriod"] = 75
    with pytest.raises(checker.ValidationError, match="terminationGracePeriod"):
        checker.validate(manifest, RELEASES[-1], strict=True)


def test_the_overlays_have_what_they_are_for() -> None:
    shared = ["NetworkPolicy", "PodDisruptionBudget", "Service"]
    kinds = {name: sorted(one["kind"] for one in rendered(FOLDER / name)) for name in OVERLAYS}
    assert kinds["embedded"] == [*shared, "StatefulSet"]
    assert kinds["external"] == ["Deployment", *shared]
    assert kinds["cluster"] == kinds["sentinel"] == kinds["external"]
    assert kinds["example"] == ["ConfigMap", "Deployment", *shared, "ServiceMonitor"]
    assert {one["metadata"]["namespace"] for one in rendered(FOLDER / "example")} == {"queues"}


def test_the_embedded_backend_has_a_volume_and_one_server() -> None:
    manifests = rendered(FOLDER / "embedded")
    spec = workload(manifests)["spec"]
    assert spec["replicas"] == 1
    (claim,) = spec["volumeClaimTemplates"]
    (mount,) = container_of(manifests)["volumeMounts"]
    assert mount == {"name": claim["metadata"]["name"], "mountPath": "/data"}
    assert "PRESSURE_BACKEND" not in variables_of(manifests)
    assert only(manifests, "NetworkPolicy")["spec"]["egress"] == []


def test_several_servers_share_an_external_backend() -> None:
    manifests = rendered(FOLDER / "external")
    assert workload(manifests)["spec"]["replicas"] > 1
    assert variables_of(manifests)["PRESSURE_BACKEND"] == "redis://redis:6379/0"
    assert {"port": 6379} in only(manifests, "NetworkPolicy")["spec"]["egress"][0]["ports"]


@pytest.mark.parametrize(("overlay", "kind"), [("cluster", ClusterAddress), ("sentinel", SentinelAddress)])
def test_several_servers_share_a_backend_that_fails_over(overlay: str, kind: type) -> None:
    manifests = rendered(FOLDER / overlay)
    assert workload(manifests)["spec"]["replicas"] > 1
    backend = variables_of(manifests)["PRESSURE_BACKEND"]
    assert isinstance(address_of(backend), kind)
    permitted = {port["port"] for port in only(manifests, "NetworkPolicy")["spec"]["egress"][0]["ports"]}
    assert {int(port) for port in re.findall(r":(\d+)", backend)} | {6379} == permitted


def test_a_password_reaches_the_servers_and_prometheus() -> None:
    manifests = rendered(FOLDER / "example")
    (volume,) = (one for one in pod_of(manifests)["volumes"] if "secret" in one)
    (mount,) = (one for one in container_of(manifests)["volumeMounts"] if one["name"] == volume["name"])
    file = f"{mount['mountPath']}/{volume['secret']['items'][0]['path']}"
    assert variables_of(manifests)["PRESSURE_PASSWORD_FILE"] == file
    (endpoint,) = only(manifests, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["basicAuth"]["password"] == {"name": volume["secret"]["secretName"], "key": "password"}
    assert endpoint["path"] == "/metrics"


def test_the_settings_of_queues_reach_the_servers(tmp_path: Path) -> None:
    manifests = rendered(FOLDER / "example")
    configuration = only(manifests, "ConfigMap")
    (volume,) = (one for one in pod_of(manifests)["volumes"] if "configMap" in one)
    (mount,) = (one for one in container_of(manifests)["volumeMounts"] if one["name"] == volume["name"])
    assert volume["configMap"]["name"] == configuration["metadata"]["name"]
    ((name, text),) = configuration["data"].items()
    assert variables_of(manifests)["PRESSURE_CONFIG"] == f"{mount['mountPath']}/{name}"
    (tmp_path / name).write_text(text)
    assert read_templates(tmp_path / name)


def rendered_overlay(folder: Path, text: str) -> list[Manifest]:
    """Return what kustomize makes of an overlay outside the repository: `../` leads to its folders."""
    # kustomize accepts only relative paths.
    up = "/".join([".."] * (len(folder.resolve().parts) - 1))
    (folder / "kustomization.yaml").write_text(text.replace("- ../", f"- {up}{FOLDER}/"))
    return rendered(folder)


def test_a_password_does_not_need_prometheus(tmp_path: Path) -> None:
    overlay = "resources:\n- ../embedded\ncomponents:\n- ../password\n"
    assert "PRESSURE_PASSWORD_FILE" in variables_of(rendered_overlay(tmp_path, overlay))


def blocks_of_the_guide(*, manifests: bool) -> list[str]:
    """Return the YAML in the guide: whole manifests, or the parts of an overlay."""
    guide = (ROOT / "docs/guides/kubernetes.md").read_text()
    found = re.findall(r"^```yaml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    for_kustomize = (block for block in found if not block.startswith("triggers:\n"))  # the others are KEDA's
    return [block for block in for_kustomize if block.startswith("apiVersion: v1\n") is manifests]


def test_the_guide_restores_into_the_volume_of_the_server(checker: Any) -> None:
    (block,) = blocks_of_the_guide(manifests=True)
    pod, embedded = yaml.safe_load(block), rendered(FOLDER / "embedded")
    checker.validate(pod, RELEASES[-1], strict=True)
    server = workload(embedded)
    claim = f"{server['spec']['volumeClaimTemplates'][0]['metadata']['name']}-{server['metadata']['name']}-0"
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": claim}
    (container,) = pod["spec"]["containers"]
    assert container["image"] == container_of(embedded)["image"]
    assert container["volumeMounts"] == container_of(embedded)["volumeMounts"]
    assert pod["spec"]["securityContext"]["fsGroup"] == pod_of(embedded)["securityContext"]["fsGroup"]


def test_the_overlay_of_the_guide_works(tmp_path: Path) -> None:
    manifests = rendered_overlay(tmp_path, "".join(blocks_of_the_guide(manifests=False)))
    assert container_of(manifests)["image"] == f"registry.example.com/pressure-server:{RELEASE}"
    assert "PRESSURE_PASSWORD_FILE" in variables_of(manifests)


def test_every_port_leads_from_the_service_to_a_listener(manifests: list[Manifest]) -> None:
    ports = {port["name"]: port["containerPort"] for port in container_of(manifests)["ports"]}
    service = only(manifests, "Service")["spec"]["ports"]
    assert {port["targetPort"]: port["port"] for port in service} == ports
    variables = variables_of(manifests)
    listeners = f"{variables['PRESSURE_LISTEN']} {variables['PRESSURE_HTTP']}"
    assert {name: int(port) for name, port in re.findall(r"(\w+)://0\.0\.0\.0:(\d+)", listeners)} == ports
    permitted = [port["port"] for port in only(manifests, "NetworkPolicy")["spec"]["ingress"][0]["ports"]]
    assert permitted == list(ports)


def test_the_selectors_find_the_pods(manifests: list[Manifest]) -> None:
    spec = workload(manifests)["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert only(manifests, "Service")["spec"]["selector"] == labels
    assert only(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert only(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels


def test_the_pods_are_restricted_by_the_pod_security_standard(manifests: list[Manifest]) -> None:
    pod, container = pod_of(manifests), container_of(manifests)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert {kind for volume in pod.get("volumes", ()) for kind in volume if kind != "name"} <= {
        "configMap",
        "secret",
    }
    assert pod["automountServiceAccountToken"] is False


def test_the_pods_run_as_the_image_says_are_probed_and_have_time_to_stop(manifests: list[Manifest]) -> None:
    pod, container = pod_of(manifests), container_of(manifests)
    context = pod["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}\n" in (ROOT / "Dockerfile").read_text()
    assert context["fsGroup"] == context["runAsGroup"]
    assert pod["terminationGracePeriodSeconds"] >= 75
    assert pod["enableServiceLinks"] is False
    assert container["image"].endswith(f"pressure-server:{RELEASE}")
    for probe, path in (("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
        assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http"}

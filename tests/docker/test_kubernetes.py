"""The files of docs/kubernetes.md, against each other and against what Ray and Prefect make of them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.utilities.processutils import command_from_string
from prefect.utilities.templating import find_placeholders
from prefect.workers.base import BaseJobConfiguration

from solrl_tasks.config.recipe import WorkersSpec

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "examples" / "kubernetes"
PAGE = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "ray-cluster.yaml").read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "job-template.json").read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def pods(cluster: dict[str, Any], template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the head, of each group of workers, and of a run."""
    groups = {group["groupName"]: group["template"]["spec"] for group in cluster["spec"]["workerGroupSpecs"]}
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    return {"head": head, **groups, "run": template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]}


def test_all_pods_have_one_image_secret_and_store(pods: dict[str, dict[str, Any]], template: dict[str, Any]):
    containers = {name: pod["containers"][0] for name, pod in pods.items()}
    image = template["variables"]["properties"]["image"]["default"]
    assert containers["run"]["image"] == "{{ image }}"
    assert {container["image"] for name, container in containers.items() if name != "run"} == {image}
    assert image in PAGE
    for name, container in containers.items():
        assert container["envFrom"] == [{"secretRef": {"name": "solrl"}}], name
        assert container["volumeMounts"] == [{"name": "home", "mountPath": "/data"}], name
        assert pods[name]["volumes"] == pods["run"]["volumes"], name
        assert pods[name]["securityContext"] == {"fsGroup": 10001}, name
    assert "kubectl create secret generic solrl " in PAGE
    assert "ARG UID=10001" in (ROOT / "docker" / "Dockerfile").read_text("utf-8")


def test_actors_find_no_place_but_on_the_workers(cluster: dict[str, Any], pods: dict[str, dict[str, Any]]):
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in cluster["spec"]["workerGroupSpecs"]:
        limits = pods[group["groupName"]]["containers"][0]["resources"]["limits"]
        assert int(limits["cpu"]) >= int(limits["nvidia.com/gpu"]) * WorkersSpec().cpus
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]


def test_the_cluster_has_the_version_of_ray_that_the_image_has(cluster: dict[str, Any]):
    constrained = re.search(r"^ray==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert constrained is not None and cluster["spec"]["rayVersion"] == constrained[1]


def test_pods_are_probed_where_they_listen(cluster: dict[str, Any], pods: dict[str, dict[str, Any]]):
    """KubeRay's own probes use a program that the image has not, and the dashboard, which is off."""
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["include-dashboard"] == "false"
    (group,) = cluster["spec"]["workerGroupSpecs"]
    ports = {"head": 6379, group["groupName"]: int(group["rayStartParams"]["node-manager-port"])}
    for name, port in ports.items():
        for probe in ("readinessProbe", "livenessProbe"):
            assert pods[name]["containers"][0][probe]["tcpSocket"] == {"port": port}


def test_a_run_joins_that_cluster_in_a_shell_and_becomes_the_flow(cluster: dict[str, Any], template: dict[str, Any]):
    """Prefect splits a command into words and starts no shell."""
    words = command_from_string(template["variables"]["properties"]["command"]["default"])
    assert words[:2] == ["sh", "-c"] and len(words) == 3
    joined, run = words[2].split(" && ")
    service = f"{cluster['metadata']['name']}-head-svc:6379"
    assert joined == f"ray start --address={service} --num-cpus=0 --num-gpus=0"
    assert run == f"exec {BaseJobConfiguration._base_flow_run_command()}"


def test_the_template_is_filled_and_has_what_prefect_asks_of_a_job(template: dict[str, Any]):
    known = template["variables"]["properties"]
    used = {placeholder.name for placeholder in find_placeholders(template["job_configuration"])}
    assert used == set(known)
    pod = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    assert (pod["parallelism"], pod["completions"], pod["restartPolicy"]) == (1, 1, "Never")

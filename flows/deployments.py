"""The deployments that a machine serves."""

from typing import Any, Final

from prefect import serve
from prefect.deployments.runner import RunnerDeployment
from prefect.types.entrypoint import EntrypointType
from prefect.utilities.callables import ParameterSchema

from flows.ablation import ablation
from flows.controls import controls
from flows.evaluate import evaluate
from flows.rank_fidelity import rank_fidelity
from flows.theory import theory
from flows.train import train

DEPLOYMENTS: Final[dict[str, Any]] = {
    "solrl/train": train,
    "solrl-rank-fidelity/default": rank_fidelity,
    "solrl-evaluate/default": evaluate,
    "solrl-controls/default": controls,
    "solrl-ablation/default": ablation,
    "solrl-theory/default": theory,
}
"""Flows by the names that Prefect's command line takes."""
DESCRIPTION: Final = ("title", "description", "position")


class ClosedParameters(ParameterSchema):
    """A flow's parameters and no others: Prefect alone would accept a misspelt name until the run fails."""

    additionalProperties: bool = False


def make_deployments() -> list[RunnerDeployment]:
    """All of ``DEPLOYMENTS``, found by module: they run from any folder."""
    return [_deployment(flow, name.partition("/")[2]) for name, flow in DEPLOYMENTS.items()]


def serve_deployments() -> None:
    """Serve them, one run at a time, until Ctrl-C or SIGTERM.

    One at a time is this process's own limit. A limit kept by the server would outlive a power cut.
    """
    serve(*make_deployments(), limit=1, pause_on_shutdown=False, print_starting_message=False)


def _deployment(flow: Any, name: str) -> RunnerDeployment:
    deployment: RunnerDeployment = flow.to_deployment(name, entrypoint_type=EntrypointType.MODULE_PATH)
    deployment._parameter_openapi_schema = close(deployment._parameter_openapi_schema)
    return deployment


def close(schema: ParameterSchema) -> ClosedParameters:
    """The same schema without other names, and with nothing in the place of a value that is left out.

    The run form sends a default of null back, where it is refused for its type. Without a default, Prefect
    would put the type into an ``anyOf`` with null, and a refusal no longer says what is allowed. Rules that
    stand in an ``allOf`` are left as they are.
    """
    properties = {name: _left_out(rules) for name, rules in schema.properties.items()}
    content = schema.model_dump() | {"properties": properties}
    return ClosedParameters(**content, additionalProperties=False)


def _left_out(rules: dict[str, Any]) -> dict[str, Any]:
    if rules.get("default", ...) is not None:
        return rules
    described = {name: rules[name] for name in DESCRIPTION if name in rules}
    return described | {"allOf": [{k: v for k, v in rules.items() if k not in (*DESCRIPTION, "default")}]}

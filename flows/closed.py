"""Flows that take the parameters they name and no others."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from prefect import Flow
from prefect.exceptions import ParameterTypeError
from prefect.settings import PREFECT_API_URL

from flows.outage import interruptible
from flows.prefect_logs import quieten_outages
from flows.reporting import current_reporter
from flows.server_requests import careful_requests
from flows.server_watch import watching

Function = TypeVar("Function", bound=Callable[..., Any])


class ClosedFlow(Flow[Any, Any]):
    """A flow that refuses a parameter it does not know before anything begins, and says which it takes.

    ``solrl up`` closes the schemas of its deployments, so that such a run is not even created. ``prefect deploy`` makes
    schemas of its own, which are open to other names: there the run itself is the first that can refuse.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As Prefect's; see ``careful_requests``."""
        with careful_requests():
            return super().__call__(*args, **kwargs)

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """As Prefect's, after the names.

        Raises:
            ParameterTypeError: a name is unknown; the message lists those there are.
        """
        known = list(inspect.signature(self.fn).parameters)
        unknown = [name for name in parameters if name not in known]
        if unknown:
            told = ", ".join(f"{name!r}{_hint(name, known)}" for name in unknown)
            raise ParameterTypeError(f"{self.name} has no parameter {told}; it has {', '.join(known)}")
        return super().validate_parameters(parameters)


def closed_flow(name: str, flow_run_name: Callable[[], str] | None = None) -> Callable[[Function], ClosedFlow]:
    """As ``prefect.flow``, for a flow that is deployed. Its results are in the store, so that none is kept besides.

    While it runs, whoever follows it is told when Prefect's server does not answer.
    """

    def made(function: Function) -> ClosedFlow:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            address, note = str(PREFECT_API_URL.value() or ""), current_reporter().note
            quieten_outages()
            # Of a deployment, the engine begins here.
            with careful_requests(), watching(address, note), interruptible():
                return function(*args, **kwargs)

        return ClosedFlow(watched, name=name, flow_run_name=flow_run_name, persist_result=False)

    return made


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""

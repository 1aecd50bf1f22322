"""What decides results where they are computed, as the flow process has to know it."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec, WorkersSpec
from solrl_tasks.engines.base import hardware_name, require_engine
from solrl_tasks.store.records import environment_record
from solrl_tasks.workers.numerics import describe_numerics
from solrl_tasks.workers.ray_cluster import cluster_address


class Site(Protocol):
    """The devices of a worker, which are all alike. Nothing here loads weights."""

    @property
    def device(self) -> torch.device:
        """What a device is called where it is."""
        ...

    @property
    def hardware(self) -> str:
        """In the words of its driver."""
        ...

    @property
    def total_memory(self) -> int:
        """Bytes of one device; 0 for a CPU, whose memory says nothing."""
        ...

    def environment(self) -> dict[str, Any]:
        """What is recorded with every block; see ``store.records.environment_record``."""
        ...

    def numerics(self, model: ModelSpec, engine: ExtensionSpec | None) -> dict[str, str]:
        """See ``numerics.describe_numerics``."""
        ...

    def require_engine(self, name: str) -> None:
        """Refuse an engine that the devices cannot run.

        Raises:
            EngineError: the message names those that they can.
        """
        ...


def work_elsewhere(workers: WorkersSpec) -> str | None:
    """Address of the cluster that does the work, where it is there already and may have other machines' devices.

    A cluster that a run starts for itself has the devices of this machine.
    """
    return cluster_address(workers) if workers.kind == "ray" else None


@dataclass(frozen=True)
class LocalSite:
    """A device of this process."""

    device: torch.device

    @property
    def hardware(self) -> str:
        """See ``Site``."""
        return hardware_name(self.device)

    @property
    def total_memory(self) -> int:
        """See ``Site``."""
        if self.device.type != "cuda":
            return 0
        return int(torch.cuda.get_device_properties(self.device).total_memory)

    def environment(self) -> dict[str, Any]:
        """See ``Site``."""
        return environment_record(str(self.device))

    def numerics(self, model: ModelSpec, engine: ExtensionSpec | None) -> dict[str, str]:
        """See ``Site``."""
        return describe_numerics(model, engine, self.device)

    def require_engine(self, name: str) -> None:
        """See ``Site``."""
        require_engine(name, self.device)


@dataclass(frozen=True)
class StandInSite(LocalSite):
    """A device of this process in the place of a cluster's, for plans: what those can run only its actors know."""

    def require_engine(self, name: str) -> None:
        """Refuse what no device could run.

        Raises:
            UnknownExtensionError: there is no engine of that name.
        """
        find_extension("engine", name)

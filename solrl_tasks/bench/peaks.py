"""What the matrix units of known hardware can do."""

from typing import Final, Literal

from solrl_tasks.config.base import Frozen

Precision = Literal["bf16", "fp8", "nvfp4"]


class Peak(Frozen):
    """Rates of dense matrix multiplication, in operations a second (a multiply-add is two).

    Attributes:
        nominal: the vendor's figure.
        practical: the best that a large product on random data was seen to reach; None where nobody measured it.
    """

    nominal: float
    practical: float | None = None

    @property
    def rate(self) -> float:
        """The practical rate where it is known, else the nominal one."""
        return self.practical or self.nominal


_TERA: Final = 1e12
PEAKS: Final[dict[str, dict[Precision, Peak]]] = {
    # Practical rates of the H200: products of 8192 x 8192 x 8192 through torch 2.11, bf16 in the models' own shapes.
    "NVIDIA H200": {
        "bf16": Peak(nominal=989 * _TERA, practical=790 * _TERA),
        "fp8": Peak(nominal=1979 * _TERA, practical=1370 * _TERA),
    },
    "NVIDIA H100 80GB HBM3": {"bf16": Peak(nominal=989 * _TERA), "fp8": Peak(nominal=1979 * _TERA)},
    "NVIDIA H100 PCIe": {"bf16": Peak(nominal=756 * _TERA), "fp8": Peak(nominal=1513 * _TERA)},
    "NVIDIA A100": {"bf16": Peak(nominal=312 * _TERA)},
    # NVIDIA's HGX B200 data sheet states 4.5, 9 and 18 PFLOPS a GPU with 2:4 sparsity: half of it is dense.
    "NVIDIA B200": {
        "bf16": Peak(nominal=2250 * _TERA),
        "fp8": Peak(nominal=4500 * _TERA),
        "nvfp4": Peak(nominal=9000 * _TERA),
    },
}
"""By the beginning of the name that the driver gives; sparsity is left out of every figure."""


def find_peaks(hardware: str) -> dict[Precision, Peak]:
    """What is known of a device, by its driver's name; empty for hardware that is not in the table."""
    found = [name for name in PEAKS if hardware.startswith(name)]
    return PEAKS[max(found, key=len)] if found else {}


def nominal_rates(hardware: str) -> dict[Precision, float]:
    """Operations a second by precision as the vendor states them for dense operands; empty where nothing is known."""
    return {precision: peak.nominal for precision, peak in find_peaks(hardware).items()}


def precision_of(engine: str, kind: str) -> Precision:
    """Which units an engine multiplies on. An emulated one uses those of the numbers that it emulates with."""
    if kind == "emulated":
        return "bf16"
    return "fp8" if engine == "fp8" else "nvfp4" if engine == "nvfp4" else "bf16"

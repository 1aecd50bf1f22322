"""Names as MLflow takes them."""

import re
from typing import Final

_REFUSED: Final = re.compile(r"[^\w./ -]")


def mlflow_name(name: str) -> str:
    """A metric's or parameter's name; characters that MLflow refuses become underscores."""
    return _REFUSED.sub("_", name)

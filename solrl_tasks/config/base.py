"""The base of every typed record in the project."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A record that cannot change after validation and refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

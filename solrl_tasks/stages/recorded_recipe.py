"""The recipe that a run recorded."""

from typing import Final

from pydantic import ValidationError

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.runs import RunView

_NAMED: Final = 5  # fields in a message


def recorded_recipe(view: RunView) -> Recipe:
    """The recipe of a run, with the fields that recipes have got since.

    Raises:
        MissingObjectError: there is no such run.
        DamagedError: its configuration is damaged.
        StoreError: this version cannot read it: a newer one, or another program, recorded it.
    """
    content = view.config
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        more = f" and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
        raise StoreError(
            f"run {view.run_id} was recorded with a recipe that this version cannot read, in "
            f"{view.path / 'config.json'} ({'; '.join(faults[:_NAMED])}{more}): a newer sol-rl wrote it, so upgrade "
            "this one (docs/upgrading.md); the run is as it was"
        ) from error

"""What a study refers to without a run of its own that made it: kept from the garbage collection."""

from collections.abc import Iterable

from solrl_tasks.store import atomic
from solrl_tasks.store.object_path import Place
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store, check_name


def hold(store: Store, study: str, refs: Iterable[Ref]) -> Place:
    """Note what a study has read; noted again it is replaced.

    Args:
        study: its run id.

    Returns:
        The note; to let go of what it names, remove it.
    """
    path = store.studies / f"{check_name(study, 'study')}.json"
    content = {"refs": [ref.model_dump(mode="json") for ref in refs]}
    if not atomic.holds_json(path, content):
        atomic.write_json(path, content)
    return path

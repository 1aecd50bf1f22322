"""What people call the base models whose digests stand in the keys."""

from solrl_tasks.store import atomic
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.root import Store


def name_model(store: Store, digest: str, name: str) -> None:
    """Remember a name for a base, for listings only: the same files under another path are the same model."""
    path = store.root / "cache" / "models" / f"{digest[:24]}.json"
    if model_name(store, digest) != name:
        atomic.write_sealed(path, name)


def model_name(store: Store, digest: str) -> str:
    """The last name given to a base, else the head of its digest."""
    try:
        return str(atomic.read_sealed(store.root / "cache" / "models" / f"{digest[:24]}.json"))
    except (FileNotFoundError, DamagedError):
        return digest[:12]

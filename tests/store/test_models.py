"""Names of base models are for listings; their loss loses nothing."""

from solrl_tasks.store.models import model_name, name_model
from solrl_tasks.store.root import Store


def test_a_base_is_called_by_its_last_name_or_else_by_its_digest(tmp_path):
    store = Store.open(tmp_path / "store")
    assert model_name(store, "ab" * 32) == "abababababab"
    for name in ("embedded", "owner/name"):
        name_model(store, "ab" * 32, name)
        assert model_name(store, "ab" * 32) == name


def test_a_damaged_name_falls_back_to_the_digest(tmp_path):
    store = Store.open(tmp_path / "store")
    name_model(store, "ab" * 32, "embedded")
    next((store.root / "cache" / "models").iterdir()).write_text("{")
    assert model_name(store, "ab" * 32) == "abababababab"

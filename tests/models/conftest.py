"""Tiny pipelines in folders, as users have them."""

import pytest

from tests.support.tiny import FAMILIES, save_tiny


@pytest.fixture(scope="session", params=FAMILIES)
def tiny_folder(request, tmp_path_factory):
    """(family, folder of its tiny pipeline)."""
    return request.param, save_tiny(request.param, tmp_path_factory.mktemp("tiny") / request.param)

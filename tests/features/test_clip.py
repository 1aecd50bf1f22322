import numpy as np
import pytest

from solrl_tasks.config.recipe import ExtensionSpec
from solrl_tasks.features.base import feature_id, make_feature

TINY = {"source": "random:tiny"}


def images(count=5):
    return np.random.default_rng(0).integers(0, 256, (count, 40, 32, 3), dtype=np.uint8)


def test_vectors_have_length_one_and_do_not_depend_on_the_other_images():
    feature = make_feature(ExtensionSpec(name="clip", options={**TINY, "batch": 3}))
    whole = feature(images())
    assert whole.shape == (5, 16)
    assert np.linalg.norm(whole, axis=1) == pytest.approx(np.ones(5), rel=1e-5)
    assert np.array_equal(np.concatenate([feature(image[None]) for image in images()]), whole)
    assert feature.memory() > 0
    feature.unload()
    assert feature.memory() == 0
    assert np.array_equal(feature(images()), whole)


def test_the_weights_are_part_of_the_identity_and_asking_for_it_loads_nothing():
    published, tiny = make_feature(ExtensionSpec(name="clip")), make_feature(ExtensionSpec(name="clip", options=TINY))
    assert feature_id(published) == "clip@1"
    assert tiny.version.startswith("1+")
    assert (published.metric, published.memory()) == ("cosine", 0)

import numpy as np
import pytest

from solrl_tasks.config.recipe import ExtensionSpec
from solrl_tasks.features.base import FeatureError, feature_id, make_feature

SPEC = ExtensionSpec(name="pixels")


def images(count=3, side=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def test_a_vector_is_the_mean_colours_of_areas():
    found = make_feature(SPEC)(images())
    means = images().reshape(3, 16, 2, 16, 2, 3).mean(axis=(2, 4)) / 255
    assert found.dtype == np.float32
    assert found == pytest.approx(means.reshape(3, -1), abs=1e-6)


def test_a_vector_does_not_depend_on_the_other_images():
    feature = make_feature(SPEC)
    whole = feature(images(5))
    assert np.array_equal(np.concatenate([feature(image[None]) for image in images(5)]), whole)


def test_options_that_decide_vectors_are_part_of_the_version():
    assert feature_id(make_feature(SPEC)) == "pixels@1"
    assert feature_id(make_feature(ExtensionSpec(name="pixels", options={"side": 16}))) == "pixels@1"
    other = make_feature(ExtensionSpec(name="pixels", options={"side": 4}))
    assert other.version.startswith("1+")
    assert other(images()).shape == (3, 48)


class OneNumber:
    """Half of a feature: one vector too few."""

    version = "1"
    metric = "rms"

    def __call__(self, images):
        return np.zeros((len(images) - 1, 2))


class Plain:
    """No feature: it does not say how vectors are compared."""

    version = "1"


@pytest.mark.parametrize(
    ("name", "message"),
    [("OneNumber", "must give one finite vector for each of 3 images"), ("Plain", "metric"), ("SPEC", "is a class")],
)
def test_what_is_no_feature_is_refused(name, message):
    with pytest.raises(FeatureError, match=message):
        make_feature(ExtensionSpec(name=f"{__name__}:{name}"))(images())

import numpy as np
import pytest

from solrl_tasks.analysis.distances import distances, diversity, paired_distance


def test_distances_by_hand():
    assert distances(np.array([0.0, 0.0]), np.array([3.0, 4.0]), "rms") == pytest.approx(np.sqrt(12.5))
    assert distances(np.array([1.0, 0.0]), np.array([0.0, 5.0]), "cosine") == pytest.approx(1.0)
    assert distances(np.array([1.0, 1.0]), np.array([2.0, 2.0]), "cosine") == pytest.approx(0.0, abs=1e-12)
    assert distances(np.array([1.0, 0.0]), np.array([-1.0, 0.0]), "cosine") == pytest.approx(2.0)
    assert np.isnan(distances(np.zeros(2), np.ones(2), "cosine"))


@pytest.mark.parametrize("metric", ["rms", "cosine"])
def test_diversity_is_the_mean_over_all_pairs_of_a_prompt(metric):
    vectors = np.random.default_rng(0).standard_normal((2, 4, 8))
    found = diversity(vectors, metric)
    for row in range(2):
        pairs = [distances(vectors[row, i], vectors[row, j], metric) for i in range(4) for j in range(i)]
        assert found[row] == pytest.approx(np.mean(pairs))
    assert diversity(vectors[:, ::-1], metric) == pytest.approx(found)


@pytest.mark.parametrize("metric", ["rms", "cosine"])
def test_equal_images_have_no_diversity_and_no_distance(metric):
    vectors = np.repeat(np.random.default_rng(0).standard_normal((3, 1, 8)), 4, axis=1)
    assert diversity(vectors, metric) == pytest.approx(np.zeros(3), abs=1e-7)
    assert paired_distance(vectors, vectors, metric) == pytest.approx(np.zeros(3), abs=1e-7)
    assert (distances(vectors, vectors, metric) >= 0).all()


def test_images_that_cannot_be_seen_are_left_out():
    vectors = np.array([[[0.0], [1.0], [np.nan]], [[0.0], [np.nan], [np.nan]]])
    assert diversity(vectors, "rms").tolist() == pytest.approx([1.0, np.nan], nan_ok=True)
    assert np.isnan(diversity(vectors[:, :1], "rms")).all()
    moved = vectors + np.array([1.0, 3.0, 5.0])[:, None]
    assert paired_distance(moved, vectors, "rms").tolist() == [2.0, 1.0]

"""The learning rate rises, stays and falls; checkpoints are at the requested steps."""

import pytest

from probekit.training import recipe


def rates(**changes):
    training = recipe.TrainingSection(
        **({"steps": 100, "batch": 1, "learning_rate": 0.5, "warm_up": 10} | changes)
    )
    return [recipe.learning_rate(step, training) for step in range(training.steps)]


def test_the_warm_up_is_even_and_reaches_the_highest():
    assert rates()[:11] == pytest.approx([0.05 * (n + 1) for n in range(10)] + [0.5])


def test_the_cosine_falls_over_all_steps_to_its_final_share():
    falling = rates(final_learning_rate=0.1)
    assert falling[55] == pytest.approx((0.5 + 0.05) / 2)
    assert falling[10:] == sorted(falling[10:], reverse=True)
    assert 0.05 < falling[-1] < 0.051


def test_a_late_decay_leaves_the_rest_level():
    late = rates(decay="linear", decay_steps=20, final_learning_rate=0.0)
    assert set(late[9:81]) == {0.5}
    assert late[90] == pytest.approx(0.25)
    assert late[-1] == pytest.approx(0.025)


def test_more_steps_leave_the_rates_before_the_decay_as_they_were():
    kept = {"decay": "linear", "decay_steps": 20}
    assert rates(**kept)[:80] == rates(**kept, steps=500)[:80]


@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_the_last_step_is_always_kept(steps):
    assert recipe.checkpoint_steps(recipe.CheckpointsSection(), steps) == (steps,)
    section = recipe.CheckpointsSection(log_spaced=5, at=(0,))
    assert recipe.checkpoint_steps(section, steps)[-1] == steps

"""Constructors show every option, those of upstream with its defaults, in its order."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import sb3_contrib
import stable_baselines3
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy

import rlgates
from rlgates.agents import MlpLstmPolicy

OTHER_DEFAULTS = {"features_extractor_class"}  # it depends on the observations


@pytest.mark.parametrize(
    ("ours", "upstream"),
    [
        (rlgates.RecurrentPPO, sb3_contrib.RecurrentPPO),
        (rlgates.MaskableRecurrentPPO, sb3_contrib.RecurrentPPO),
        (rlgates.RecurrentA2C, stable_baselines3.A2C),
        (MlpLstmPolicy, RecurrentActorCriticPolicy),
    ],
)
def test_signatures(ours: Any, upstream: Any) -> None:
    parameters = inspect.signature(ours).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    expected = inspect.signature(upstream).parameters
    assert set(expected) <= set(parameters)
    positional = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    assert positional == list(expected)
    for name in expected.keys() - OTHER_DEFAULTS:
        assert parameters[name].default == expected[name].default, name


@pytest.mark.parametrize("name", ["rollout_buffer_class", "rollout_buffer_kwargs"])
def test_a_buffer_of_another_kind_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be None"):
        rlgates.RecurrentA2C("MlpLstmPolicy", "CartPole-v1", **{name: dict})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ours", "upstream"),
    [
        (rlgates.RecurrentPPO, sb3_contrib.RecurrentPPO),
        (rlgates.MaskableRecurrentPPO, sb3_contrib.MaskablePPO),
        (rlgates.RecurrentA2C, stable_baselines3.A2C),
    ],
)
def test_arguments_of_learn(ours: Any, upstream: Any) -> None:
    parameters, expected = (inspect.signature(kind.learn).parameters for kind in (ours, upstream))
    assert list(parameters) == list(expected)
    for name in expected.keys() - {"tb_log_name"}:
        assert parameters[name].kind is expected[name].kind
        assert parameters[name].default == expected[name].default, name


@pytest.mark.parametrize(
    ("ours", "upstream"),
    [
        (rlgates.RecurrentPPO, sb3_contrib.RecurrentPPO),
        (rlgates.RecurrentA2C, stable_baselines3.A2C),
        (rlgates.MaskableRecurrentPPO, sb3_contrib.MaskablePPO),
        (rlgates.MlpLstmPolicy, RecurrentActorCriticPolicy),
        (rlgates.MaskableMlpLstmPolicy, MaskableActorCriticPolicy),
    ],
)
def test_arguments_of_predict(ours: Any, upstream: Any) -> None:
    parameters, expected = (
        {
            name: (one.kind, one.default)
            for name, one in inspect.signature(k.predict).parameters.items()
        }
        for k in (ours, upstream)
    )
    assert list(parameters.items()) == list(expected.items())


class Passes(rlgates.RecurrentPPO):
    """A class of a user's."""

    def __init__(self, *args: Any, bonus: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bonus = bonus


def test_unknown_arguments_through_a_class_of_the_users() -> None:
    assert Passes("MlpLstmPolicy", "CartPole-v1", bonus=0.5).bonus == 0.5
    with pytest.raises(TypeError, match=r"of Passes 'n_step'. Did you mean 'n_steps'"):
        Passes("MlpLstmPolicy", "CartPole-v1", n_step=8)


def test_a_policy_that_takes_more_arguments() -> None:
    class Own(MlpLstmPolicy):
        def __init__(self, *args: Any, mine: int, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.mine = mine

    agent = rlgates.RecurrentPPO(Own, "CartPole-v1", policy_kwargs={"mine": 3})
    assert agent.policy.mine == 3
    with pytest.raises(TypeError, match=r"of Own 'lstm_hiden_size'. Did you mean 'lstm_hidden"):
        rlgates.RecurrentPPO(Own, "CartPole-v1", policy_kwargs={"mine": 3, "lstm_hiden_size": 4})

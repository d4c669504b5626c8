"""PPO's update and step in native code: the same as in torch, and only where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from gymnasium import spaces
from support.native import needs_native
from support.toys import BOX, CRITICS, IMAGE, Masked, collected, model, parameters, toy
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from rlgates import MaskableRecurrentPPO, kernels
from rlgates.agents import MlpLstmPolicy
from rlgates.agents.sequences.losses import LossSettings, native_ppo_losses, ppo_loss
from rlgates.kernels.cpu import actor_critic

pytestmark = needs_native
in_torch = patch.object(kernels, "supports_heads", lambda heads: False)


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("net_arch", [[], [11], {"pi": [5, 6], "vf": [7]}])
def test_losses_and_gradients_are_those_of_evaluate(critic: str, net_arch: Any) -> None:
    options = {**CRITICS[critic], "net_arch": net_arch, "activation_fn": nn.ReLU}
    agent = model(policy_kwargs=options)
    weights = list(agent.policy.parameters())
    settings = LossSettings(0.2, 0.1, 0.03, 0.5)
    for batch in collected(agent).minibatches(32, agent.policy):
        advantages = batch.advantages
        native = native_ppo_losses(agent.policy, batch, advantages, settings)
        plain = ppo_loss(agent._evaluate(batch), batch, advantages, settings)
        assert native is not None
        torch.testing.assert_close(torch.stack(native), torch.stack(plain), rtol=1e-5, atol=1e-6)
        for found, expected in zip(
            torch.autograd.grad(native.loss, weights, allow_unused=True),
            torch.autograd.grad(plain.loss, weights, allow_unused=True),
            strict=True,
        ):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


CORES = {
    "gru": True,
    "o_lstm": True,
    "um_lstm": True,
    "nru": True,
    "none": True,
    "mingru": True,
    "lru": False,
    "transformer": False,
}
"""Whether cores and heads run in one call."""


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("core", CORES)
def test_gradients_through_any_core_are_those_of_evaluate(core: str, critic: str) -> None:
    agent = model(policy_kwargs={**CRITICS[critic], "core": core})
    weights, settings = list(agent.policy.parameters()), LossSettings(0.2, None, 0.03, 0.5)
    for batch in collected(agent).minibatches(32, agent.policy):
        with patch.object(actor_critic, "ppo_losses", wraps=actor_critic.ppo_losses) as one_call:
            native = native_ppo_losses(agent.policy, batch, batch.advantages, settings)
        assert one_call.called == (CORES[core] and critic != "none")
        plain = ppo_loss(agent._evaluate(batch), batch, batch.advantages, settings)
        assert native is not None
        torch.testing.assert_close(torch.stack(native), torch.stack(plain), rtol=1e-5, atol=1e-6)
        for found, expected in zip(
            torch.autograd.grad(2 * native.loss, weights, allow_unused=True),
            torch.autograd.grad(2 * plain.loss, weights, allow_unused=True),
            strict=True,
        ):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_learned_state_is_trained() -> None:
    options = {**CRITICS["shared, both gradients"], "core_kwargs": {"learned_state": True}}
    agent = model(policy_kwargs=options)
    batch = next(iter(collected(agent).minibatches(None, agent.policy)))
    settings = LossSettings(0.2, None, 0.03, 0.5)
    learned = list(agent.policy.lstm_actor.core.learned.parameters())
    native = native_ppo_losses(agent.policy, batch, batch.advantages, settings)
    plain = ppo_loss(agent._evaluate(batch), batch, batch.advantages, settings)
    assert native is not None
    assert batch.episode_starts.any()
    for found, expected in zip(
        torch.autograd.grad(native.loss, learned),
        torch.autograd.grad(plain.loss, learned),
        strict=True,
    ):
        assert expected.any()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


def test_gradients_are_handed_out_once() -> None:
    agent = model()
    batch = next(iter(collected(agent).minibatches(32, agent.policy)))
    losses = native_ppo_losses(
        agent.policy, batch, batch.advantages, LossSettings(0.2, None, 0.0, 0.5)
    )
    assert losses is not None
    losses.loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="used before: compute the loss again"):
        losses.loss.backward()


@pytest.mark.parametrize("space", [BOX, IMAGE], ids=["box", "image"])
def test_learning_is_the_same(space: spaces.Space[Any]) -> None:
    def learn() -> tuple[Tensor, list[float]]:
        policy = "MlpLstmPolicy" if space is BOX else "CnnLstmPolicy"
        agent = model(toy(space), policy, ent_coef=0.02, clip_range_vf=0.3, chunk_len=8)
        agent.learn(64)
        names = ("policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "loss")
        logged = agent.logger.name_to_value
        return parameters(agent), [logged[f"train/{name}"] for name in names]

    weights, metrics = learn()
    with in_torch:
        expected_weights, expected_metrics = learn()
    assert metrics == pytest.approx(expected_metrics, rel=1e-3, abs=1e-5)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_step_is_the_same(deterministic: bool) -> None:
    agent = model(policy_kwargs=CRITICS["shared, both gradients"])
    buffer = collected(agent)
    arguments = buffer.observations[0], buffer.states[0], buffer.episode_starts[0], None
    with torch.no_grad():
        assert agent.policy.native_heads() is not None
        torch.manual_seed(0)
        native = agent.policy.act(*arguments, deterministic)
        torch.manual_seed(0)
        with in_torch:
            plain = agent.policy.act(*arguments, deterministic)
    assert torch.equal(native.actions, plain.actions)
    torch.testing.assert_close(native.values, plain.values)
    torch.testing.assert_close(native.log_probs, plain.log_probs)
    assert torch.equal(native.states.pi, plain.states.pi)


OTHERS: dict[str, Callable[[], Any]] = {
    "Box": lambda: model(toy(action=BOX)),
    "MultiDiscrete": lambda: model(toy(action=spaces.MultiDiscrete([2, 3]))),
    "MultiBinary": lambda: model(toy(action=spaces.MultiBinary(2))),
    "masks": lambda: model(toy(kind=Masked), algorithm=MaskableRecurrentPPO),
    "ELU": lambda: model(policy_kwargs={"activation_fn": nn.ELU}),
    "more layers": lambda: model(policy_kwargs={"net_arch": [4] * 5}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_heads_run_in_torch(name: str) -> None:
    agent = OTHERS[name]()
    assert agent.policy.native_heads() is None
    agent.learn(64)
    assert parameters(agent).isfinite().all()


def test_float64_and_autocast_run_in_torch() -> None:
    policy = model().policy
    assert policy.native_heads() is not None
    with torch.autocast("cpu"):
        assert policy.native_heads() is None
    assert policy.double().native_heads() is None


MODULES = ("action_net", "value_net", "mlp_extractor.policy_net", "mlp_extractor.value_net.0")


@pytest.mark.parametrize("place", MODULES)
def test_hooks_are_called(place: str) -> None:
    agent, calls = model(), []
    module = agent.policy.get_submodule(place)
    handle = module.register_forward_hook(lambda *_: calls.append("forward"))
    agent.learn(64)
    assert calls
    handle.remove()
    assert agent.policy.native_heads() is not None
    module.register_full_backward_hook(lambda *_: calls.append("backward"))
    agent.learn(64)
    assert "backward" in calls


def test_hooks_of_cores_are_called() -> None:
    agent, calls = model(), []
    agent.policy.lstm_critic.core.register_forward_hook(
        lambda *_: calls.append(torch.is_grad_enabled())
    )
    agent.learn(64)
    assert True in calls, "it was passed over in the update"


def test_hooks_of_all_modules_and_of_gradients_are_called() -> None:
    agent, calls = model(), []
    agent.policy.action_net.weight.register_hook(lambda gradient: calls.append("gradient"))
    assert agent.policy.native_heads() is not None
    handle = nn.modules.module.register_module_forward_hook(lambda *_: calls.append("module"))
    assert agent.policy.native_heads() is None
    handle.remove()
    agent.learn(64)
    assert calls == ["gradient"] * 4  # two epochs of two minibatches


def test_parametrized_weights_are_trained() -> None:
    agent = model()
    parametrizations.weight_norm(agent.policy.action_net)
    assert agent.policy.native_heads() is None


METHODS = (
    "evaluate",
    "latents",
    "distribution",
    "values_of",
    "flat_actions",
    "auxiliary_losses",
    "_get_action_dist_from_latent",
    "core_outputs",
    "core_inputs",
    "run_cores",
)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("of", ["subclass", "instance", "module"])
def test_own_methods_are_called(name: str, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = getattr(MlpLstmPolicy, name)

    def own(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(torch.is_grad_enabled())
        return original(self, *args, **kwargs)

    kind = type("Own", (MlpLstmPolicy,), {name: own} if of == "subclass" else {})
    agent = model(policy=kind)
    if of == "instance":
        monkeypatch.setattr(agent.policy, name, own.__get__(agent.policy))
    if of == "module":
        monkeypatch.setattr(MlpLstmPolicy, name, own)
    agent.learn(64)
    assert True in calls, "it was passed over in the update"

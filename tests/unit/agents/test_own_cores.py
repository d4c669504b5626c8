"""A script outside the package registers a gate and a core of its own, and trains with them."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

CORES = """
import torch
from torch import nn
from rlgates import Activation, Cell, Core, register_core, register_gate
from rlgates.cores import LSTM

STEEP = Activation(lambda z: torch.sigmoid(4 * z), from_logit=lambda y: y / 4)
register_gate("steep", activation=STEEP)


class Leaky(Cell):
    def __init__(self, input_size, hidden_size, rate=0.5):
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.output_size, self.rate = hidden_size, rate
        self.state_shapes = {"h": (hidden_size,)}
        self.linear = nn.Linear(input_size, hidden_size)

    def reset_parameters(self, generator=None):
        nn.init.uniform_(self.linear.weight, -0.5, 0.5, generator=generator)
        nn.init.zeros_(self.linear.bias)

    def project(self, x):
        return self.linear(x)

    def step(self, projected, state):
        h = self.rate * state[0] + (1 - self.rate) * torch.tanh(projected)
        return h, (h,)


register_core("leaky", Leaky)


def zoned(input_size, hidden_size, rate=0.25):
    return LSTM(input_size, hidden_size, "f", zoneout_cell=rate)


def deep(input_size, hidden_size):
    return Core([Leaky(input_size, hidden_size), zoned(hidden_size, hidden_size)])


register_core("zoned", zoned)
register_core("deep", deep)
"""

TRAIN = """
from cores import Leaky, deep, zoned
from rlgates import RecurrentPPO

for name, core in (("class", Leaky), ("gate", "steep_gru"), ("options", "leaky"),
                   ("factory", zoned), ("whole", deep)):
    kwargs = {"core": core, "lstm_hidden_size": 8}
    if name == "options":
        kwargs["core_kwargs"] = {"rate": 0.9}
    model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=16, batch_size=16, n_epochs=1,
                         policy_kwargs=kwargs, seed=0, device="cpu")
    before = model.policy.lstm_actor.core.state_dict()
    before = {key: value.clone() for key, value in before.items()}
    model.learn(32)
    after = model.policy.lstm_actor.core.state_dict()
    assert any((before[key] != after[key]).any() for key in before)
    model.save(name)
    model.save(f"{name}.rlgates", format="safe")
"""

LOAD = """
import cores
import numpy as np
from rlgates import RecurrentPPO

for name, core in (("class", "leaky"), ("gate", "steep_gru"), ("options", "leaky"),
                   ("factory", "zoned"), ("whole", "deep")):
    for suffix in ("zip", "rlgates"):
        model = RecurrentPPO.load(f"{name}.{suffix}")
        assert model.policy.core == core, model.policy.core
        model.predict(np.zeros(4, np.float32))
        if name == "options":
            assert model.policy.lstm_actor.core.cells[0].rate == 0.9
"""

FORGETFUL = """
from rlgates import RecurrentPPO

for name in ("class.zip", "gate.zip", "factory.zip", "class.rlgates", "gate.rlgates"):
    try:
        RecurrentPPO.load(name)
    except Exception as error:
        message = str(error)
        assert "has to be registered first" in message, (name, message)
        assert "it was registered by cores." in message, (name, message)
    else:
        raise AssertionError(f"{name} was loaded")
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def test_own_gates_and_cores_train_and_are_saved_by_name(tmp_path: Path) -> None:
    (tmp_path / "cores.py").write_text(CORES)
    for code in (TRAIN, LOAD, FORGETFUL):
        finished = run(code, tmp_path)
        assert finished.returncode == 0, finished.stderr


def test_a_class_must_be_registered() -> None:
    from rlgates import Cell, RecurrentPPO
    from rlgates.cores import LSTM

    class Unregistered(Cell):
        pass

    with pytest.raises(ValueError, match="register_core"):
        RecurrentPPO("MlpLstmPolicy", "CartPole-v1", policy_kwargs={"core": Unregistered})
    with pytest.raises(ValueError, match="register_core"):
        RecurrentPPO(
            "MlpLstmPolicy", "CartPole-v1", policy_kwargs={"core": partial(LSTM, gate="u")}
        )

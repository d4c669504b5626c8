"""Every core gives the same results and gradients on GPU and CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from support.cases import build, every_core
from support.devices import no_synchronization
from support.equivalence import inputs_and_state, typical_episode_starts
from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@every_core
def test_a_gpu_computes_what_the_cpu_does(name: str) -> None:
    core = build(name, num_layers=2, dtype=torch.float64)
    arguments = (*inputs_and_state(core), typical_episode_starts())
    results: list[list[Tensor]] = []
    for device in ("cpu", "cuda"):
        moved = copy.deepcopy(core).to(device)
        outputs, final = moved(*(tensor.to(device) for tensor in arguments))
        assert outputs.device.type == final.device.type == device
        (outputs.sum() + final.sum()).backward()
        gradients = [p.grad for p in moved.parameters() if p.grad is not None]
        results.append([tensor.detach().cpu() for tensor in (outputs, final, *gradients)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@every_core
def test_autocast_on_a_gpu(name: str) -> None:
    core = build(name, num_layers=2)
    arguments = [tensor.cuda() for tensor in (*inputs_and_state(core), typical_episode_starts())]
    core.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        outputs, final = core(*arguments)
    assert outputs.dtype == final.dtype == torch.float32
    assert outputs.isfinite().all()


@every_core
def test_nothing_synchronises_the_gpu(name: str) -> None:
    core = build(name, num_layers=2)
    arguments = [tensor.cuda() for tensor in (*inputs_and_state(core), typical_episode_starts())]
    core.cuda()
    core(*arguments)[0].sum().backward()  # tables are copied to the device once
    with no_synchronization():
        core(*arguments)[0].sum().backward()

"""The RMA: writes to and reads from its memory, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from support.cases import build_double
from support.equivalence import assert_close, random_inputs, seeded
from torch import Tensor

from rlgates import Core, make_core
from rlgates.cores.rma import RMA, Recall, recall

B, N, H, L, K = 3, 7, 2, 4, 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def random_query(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """A random memory with two empty rows, keys and strengths."""
    memory = normal(B, N, L, seed=seed)
    memory[:, 5:] = 0
    return memory, normal(B, H, L, seed=seed + 1), normal(B, H, seed=seed + 2).exp()


def cell_of(core: Core) -> RMA:
    cell = core.cells[0]
    assert isinstance(cell, RMA)
    return cell


def slow_recall(memory: Tensor, keys: Tensor, strengths: Tensor, top_k: int) -> Tensor:
    """The definition over all rows; rows outside the top k have weight zero."""
    lengths = keys.norm(dim=-1).unsqueeze(-1) * memory.norm(dim=-1).unsqueeze(-2)
    dots = torch.einsum("bhl,bnl->bhn", keys, memory)
    cosine = torch.where(lengths > 0, dots / lengths.clamp(min=1e-9), 0)
    logits = strengths.unsqueeze(-1) * cosine
    border = logits.sort(dim=-1, descending=True).values[..., top_k - 1 : top_k]
    weights = torch.where(logits >= border, logits, -torch.inf).softmax(dim=-1)
    return torch.einsum("bhn,bnl->bhl", weights, memory)


@pytest.mark.parametrize("top_k", [1, 3, 5])
def test_recall_is_its_definition_with_all_gradients(top_k: int) -> None:
    memory, keys, strengths = (
        t.requires_grad_() for t in (random_query()[0][:, :5], *random_query()[1:])
    )
    result = recall(memory, keys, strengths, top_k).reads
    expected = slow_recall(memory, keys, strengths, top_k)
    assert_close(result, expected)
    weights = normal(B, H, L, seed=9)
    leaves = (memory, keys, strengths)
    for one, other in zip(
        torch.autograd.grad((result * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        assert_close(one, other)


def test_recall_takes_the_largest_logits() -> None:
    memory, keys, strengths = random_query()
    recalled = recall(memory, keys, strengths, K)
    cosine = torch.cosine_similarity(keys.unsqueeze(2), memory.unsqueeze(1), dim=-1)
    logits = strengths.unsqueeze(-1) * cosine
    largest = logits.topk(K).values
    assert_close(logits.gather(-1, recalled.rows), largest)
    assert_close(recalled.weights, torch.softmax(largest, dim=-1))
    assert (recalled.weights.diff(dim=-1) <= 0).all()
    rows = (
        memory.unsqueeze(1)
        .expand(-1, H, -1, -1)
        .gather(2, recalled.rows.unsqueeze(-1).expand(-1, -1, -1, L))
    )
    assert_close(recalled.reads, (recalled.weights.unsqueeze(-1) * rows).sum(dim=2))


def test_a_strong_key_returns_one_row() -> None:
    memory, _, _ = random_query()
    keys = 0.01 * memory[:, [2, 4]]
    recalled = recall(memory, keys, torch.full((B, H), 1e4, dtype=torch.float64), K)
    assert_close(recalled.reads, memory[:, [2, 4]])
    assert recalled.rows[..., 0].tolist() == [[2, 4]] * B


def test_rows_of_zeros_have_similarity_zero_and_finite_gradients() -> None:
    memory = torch.zeros(B, N, L, dtype=torch.float64)
    memory[:, 0] = -1
    keys = torch.ones(B, H, L, dtype=torch.float64)
    keys[0] = 0  # has similarity zero with all
    strengths = torch.ones(B, H, dtype=torch.float64)
    memory, keys, strengths = (t.requires_grad_() for t in (memory, keys, strengths))
    recalled = recall(memory, keys, strengths, N)
    e = math.exp(-1)
    expected = torch.tensor([1 / N, e / (e + N - 1), e / (e + N - 1)], dtype=torch.float64)
    assert_close(recalled.reads, -expected.view(B, 1, 1).expand(B, H, L))
    for gradient in torch.autograd.grad(recalled.reads.sum(), (memory, keys, strengths)):
        assert gradient.isfinite().all()
        assert gradient.abs().max() < 10
    # An empty row is better than an opposite one.
    assert (recall(memory, keys, strengths, N - 1).rows[1:] != 0).all()


def test_equal_rows_are_interchangeable() -> None:
    memory, keys, strengths = random_query()
    memory[:, 1] = memory[:, 2] = memory[:, 4] = memory[:, 0]
    keys[:, 0] = memory[:, 0]
    shuffled = memory[:, [3, 4, 0, 6, 1, 5, 2]]
    for top_k in range(1, N + 1):
        recalled, other = (recall(m, keys, strengths, top_k) for m in (memory, shuffled))
        assert_close(other.reads, recalled.reads)
        assert_close(other.weights, recalled.weights)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_round_the_memory(dtype: torch.dtype) -> None:
    arguments = [t.float() for t in random_query()]
    with torch.autocast("cpu", dtype):
        result = recall(*arguments, K)
    expected = recall(*arguments, K)
    assert all(map(torch.equal, result, expected))


def written(core: Core, steps: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs of `steps` steps, and the final state of the first layer by name."""
    outputs, state = core(random_inputs(core, steps))
    return outputs, {name: part[0] for name, part in core.unpack(state).items()}


@pytest.mark.parametrize("steps", [1, 3, 5, 6, 12])
def test_latents_are_written_in_turn(steps: int) -> None:
    core = build_double("rma")  # five slots
    outputs, state = written(core, steps)
    latents = cell_of(core).split(outputs).latent
    expected = torch.zeros(3, 5, 4, dtype=torch.float64)
    for t in range(steps):
        expected[:, t % 5] = latents[t]
    assert torch.equal(state["memory"], expected)
    assert torch.equal(state["step"], torch.full((3, 1), float(steps), dtype=torch.float64))
    assert torch.equal(state["reads"].flatten(1), outputs[-1, :, -8:])


def test_a_step_reads_what_earlier_steps_wrote() -> None:
    """The reads depend only on earlier latents; the first ones are zero."""
    core = build_double("rma")
    cell = cell_of(core)
    outputs, _ = written(core, 9)
    latent, controller, reads = cell.split(outputs)
    memory = torch.zeros(3, 5, 4, dtype=torch.float64)
    for t in range(9):
        queries = controller[t] @ cell.W_read.T + cell.b_read
        keys, strengths = queries[:, :8].view(3, 2, 4), queries[:, 8:].exp().log1p()
        expected = recall(memory, keys, strengths, cell.top_k).reads
        assert_close(reads[t].view(3, 2, 4), expected)
        memory[:, t % 5] = latent[t].detach()
    assert not reads[0].any()
    assert reads[2:].any(dim=-1).all()


def test_a_latent_is_its_own_key() -> None:
    core = build_double("rma")
    cell = cell_of(core)
    outputs, state = written(core, 4)
    latents = cell.split(outputs).latent[:, :1]
    with torch.no_grad():
        cell.W_read.zero_()
        cell.b_read.copy_(torch.cat([latents[1, 0], 3 * latents[2, 0], torch.full((2,), 1e4)]))
    recalled: Recall = cell.read(torch.zeros(1, 12, dtype=torch.float64), state["memory"][:1])
    assert_close(recalled.reads, latents[[1, 2], 0].unsqueeze(0))
    assert recalled.rows[0, :, 0].tolist() == [1, 2]


def test_an_episode_start_empties_the_memory() -> None:
    core = build_double("rma")
    x = random_inputs(core, 4)
    episode_starts = torch.zeros(4, 3, dtype=torch.bool)
    episode_starts[3, 1] = True
    outputs, state = core(x, None, episode_starts)
    parts = core.unpack(state)
    assert parts["step"].flatten().tolist() == [4, 1, 4]
    assert not parts["memory"][0, 1, 1:].any()
    assert torch.equal(parts["memory"][0, 1, 0], outputs[3, 1, :4])
    assert not outputs[3, 1, -8:].any()


def test_no_gradient_reaches_the_writer_of_a_row() -> None:
    core = build_double("rma", top_k=5)
    cell = cell_of(core)
    x = random_inputs(core, 2).requires_grad_()
    _, state = cell.step(x[0], cell.initial_state(3))
    assert state[0].requires_grad
    assert not state[4].requires_grad, "the memory carries no gradient, so it costs none"
    # All ways to the first step but the memory are cut: nothing is left. Keys do learn.
    cut = [part if name == "memory" else part.detach() for name, part in named(cell, state)]
    output, _ = cell.step(x[1], tuple(cut))
    leaves = (x, cell.W_read, cell.b_read)
    in_x, *learned = torch.autograd.grad(cell.split(output).reads.square().sum(), leaves)
    assert not in_x[0].any()
    assert in_x[1].any()
    for gradient in learned:
        assert (gradient != 0).all()


def named(cell: RMA, state: tuple[Tensor, ...]) -> list[tuple[str, Tensor]]:
    return list(zip(cell.state_shapes, state, strict=True))


def test_the_controller_is_two_lstm_layers_on_the_latents() -> None:
    core = build_double("ur_rma")
    cell = cell_of(core)
    x = random_inputs(core, 6)
    trace = core.trace_gates(x)
    latent, controller, _ = cell.split(trace.outputs)
    first = Core([cell.controller_1]).trace_gates(latent)
    assert_close(first.outputs, controller[..., :6])
    above = Core([cell.controller_2]).trace_gates(torch.cat([latent, first.outputs], dim=-1))
    assert_close(above.outputs, controller[..., 6:])
    assert trace.forget[0].shape == (6, 3, 12)
    assert_close(trace.forget[0], torch.cat([first.forget[0], above.forget[0]], dim=-1))


@pytest.mark.parametrize("memory", [True, False])
def test_the_sizes_of_the_paper_are_the_defaults(memory: bool) -> None:
    """RMA on images of 5 x 5 with 4 actions: 505 features, two layers of 256."""
    core = make_core("rma", 505, 256, memory=memory)
    reads = 600 * memory
    counts = {
        "z": (505 + 512 + reads) * 400 + 400 + 400 * 200 + 200,
        "layers": 4 * 256 * (200 + 256 + 456 + 256) + 2 * 2 * 4 * 256,
        "read": (512 * 603 + 603) * memory,
    }
    assert sum(p.numel() for p in core.parameters()) == sum(counts.values())
    assert core.state_size == 4 * 256 + (1000 * 200 + 600 + 1) * memory
    assert core.output_size == 200 + 512 + reads
    outputs, state = core(torch.randn(2, 2, 505, generator=seeded(0)))
    assert outputs.shape == (2, 2, core.output_size)
    assert outputs.isfinite().all()
    if memory:
        # The authors' agent has 3.11 million parameters, with one bias vector a layer.
        encoder = 27 * 16 + 16 + 9 * 16 * 32 + 32 + 800 * 500 + 500
        heads = 1312 * 200 + 200 + 200 * 4 + 4 + 204 * 200 + 200 + 200 + 1
        decoders = 200 * 800 + 800 + 9 * 32 * 16 + 16 + 9 * 16 * 3 + 3 + 200 * 4 + 4 + 200 + 1
        total = sum(counts.values()) - 2 * 4 * 256 + encoder + heads + decoders
        assert round(total / 1e6, 2) == 3.11
        # The memory holds two latents; a read is of 50 rows, most of them empty.
        memories = core.unpack(state)["memory"][0]
        assert memories.any(dim=-1).sum(dim=-1).tolist() == [2, 2]
        recalled = cell_of(core).read(outputs[1, :, 200:712], memories)
        assert recalled.weights.shape == (2, 3, 50)
        assert len(set(recalled.rows[0, 0].tolist())) == 50


def test_weights_are_initialised_truncated_normal() -> None:
    core = make_core("rma", 30, 64, latent_size=40, num_slots=50, generator=seeded(0))
    weights = core.gate_weights()
    inputs = {"W_z1": 30 + 128 + 120, "W_z2": 80, "W_read": 128}
    for name, weight in weights.items():
        if name in ("b_f_1", "b_f_2"):
            assert (weight == 1).all()
        elif name.startswith("W") or name in ("b_u_1", "b_o_1", "b_u_2", "b_o_2"):
            fan_in = inputs.get(name, 40 + 64 if name.endswith("_1") else 40 + 128)
            cut = 2 / fan_in**0.5
            assert 0.75 * cut < weight.abs().max() <= cut
            # Cut at two deviations, a normal distribution keeps 0.88 of its deviation.
            error = 0.5 * weight.numel() ** -0.5
            assert weight.std().item() == pytest.approx(0.44 * cut, rel=4 * error)
        else:
            assert not weight.any(), name


def test_without_memory_it_is_the_two_layers() -> None:
    core = build_double("rma", memory=False)
    cell = cell_of(core)
    assert list(cell.state_shapes) == ["h1", "c1", "h2", "c2"]
    assert core.state_size == 24
    assert not any("read" in name for name in core.gate_weights())
    outputs, state = core(random_inputs(core))
    latent, controller, reads = cell.split(outputs)
    assert (latent.shape[-1], controller.shape[-1], reads.shape[-1]) == (4, 12, 0)
    assert torch.equal(controller[-1], state[:, [*range(6), *range(12, 18)]])
    assert cell.read_strengths(outputs).shape == (5, 3, 0)
    # It is what a core with memory does as long as that is empty.
    full = build_double("rma")
    weights = full.gate_weights()
    for name, weight in core.gate_weights().items():
        weights[name][..., : weight.shape[-1]].copy_(weight)
    x = random_inputs(core, 1)
    assert_close(full(x)[0][..., :16], core(x)[0])


def test_read_strengths_are_differentiable() -> None:
    core = build_double("rma")
    cell = cell_of(core)
    outputs, _ = core(random_inputs(core))
    strengths = cell.read_strengths(outputs)
    controller = outputs[..., 4:16]
    queries = torch.einsum("tbi,oi->tbo", controller, cell.W_read[8:]) + cell.b_read[8:]
    assert_close(strengths, torch.log1p(queries.exp()))
    strengths.sum().backward()
    for name, parameter in core.named_parameters():
        # A strength leads back through the layers to earlier reads, and so to earlier keys.
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
    core.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert cell.read_strengths(outputs.detach().float()).dtype == torch.float32


def test_a_learned_state_is_that_of_the_layers() -> None:
    core = build_double("rma", num_layers=2, learned_state=True)
    names = {f"{part}_{layer}" for part in ("h1", "c1", "h2", "c2") for layer in (0, 1)}
    assert set(core.learned) == names
    parts = core.unpack(core.initial_state(2))
    for name in ("memory", "reads", "step"):
        assert not parts[name].any()


def test_outputs_of_another_width_are_refused() -> None:
    cell = cell_of(build_double("rma"))
    for call in (cell.split, cell.read_strengths):
        with pytest.raises(ValueError, match=r"outputs must be \(\.\.\., 24\), got \(2, 5\)"):
            call(torch.zeros(2, 5))

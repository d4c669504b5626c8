"""The DNC: memory addressing, one step by hand, and options."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from support.equivalence import seeded
from torch import Tensor

from rlgates import Core, make_core
from rlgates.cores import addressing
from rlgates.cores.dnc import DNC
from rlgates.gates import Gate

B, N, W, R, K = 3, 5, 4, 2, 2
SIZES = {"num_slots": N, "word_size": W, "num_reads": R, "num_writes": K}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def weights(*shape: int, seed: int = 0) -> Tensor:
    """Weights over the slots: non-negative, with a sum below 1."""
    return 0.9 * torch.softmax(3 * normal(*shape, seed=seed), dim=-1)


def one_hot(slot: int) -> Tensor:
    """All weight on one slot, of one head: (1, 1, N)."""
    return torch.eye(N, dtype=torch.float64)[slot].view(1, 1, N)


def wild(num_writes: int = K, seed: int = 0, **options: Any) -> tuple[Core, dict[str, Tensor]]:
    """A core with large weights, and the parts of its state after 40 steps in one layer."""
    generator = seeded(seed)
    options = SIZES | {"num_writes": num_writes} | options
    core = make_core("dnc", 3, 6, generator=generator, **options)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter += 5 * torch.randn(parameter.shape, generator=generator)
        state = core(4 * torch.randn(40, 16, 3, generator=generator))[1]
    return core, {name: part[0] for name, part in core.unpack(state).items()}


def test_cosines_are_cosines_but_for_the_epsilons() -> None:
    keys, memory = 50 * normal(B, R, W), 50 * normal(B, N, W, seed=1)
    expected = torch.cosine_similarity(keys.unsqueeze(2), memory.unsqueeze(1), dim=-1)
    result = addressing.cosine_similarity(keys, memory)
    torch.testing.assert_close(result, expected, rtol=1e-7, atol=1e-7)
    small = addressing.cosine_similarity(1e-3 * keys, 1e-3 * memory)
    k, m = (1e-3 * keys[1, 0]).tolist(), (1e-3 * memory[1, 2]).tolist()
    dot = sum(a * b for a, b in zip(k, m, strict=True))
    norms = [(sum(a * a for a in v) + 1e-6) ** 0.5 for v in (k, m)]
    assert small[1, 0, 2].item() == pytest.approx(dot / (norms[0] * norms[1] + 1e-6), abs=1e-12)


def test_nothing_is_like_an_empty_slot() -> None:
    keys = normal(B, R, W).requires_grad_()
    memory = torch.zeros(B, N, W, dtype=torch.float64, requires_grad=True)
    cosine = addressing.cosine_similarity(keys, memory)
    assert not cosine.any()
    for gradient in torch.autograd.grad(cosine.sum(), (keys, memory)):
        assert gradient.isfinite().all()


def test_equal_slots_are_equally_like_a_key() -> None:
    for slots, word in ((5, 3), (16, 16), (33, 7)):
        row = torch.randn(2, 1, word, generator=seeded(slots))
        keys = torch.randn(2, 3, word, generator=seeded(word))
        cosine = addressing.cosine_similarity(keys, row.repeat(1, slots, 1))
        assert torch.equal(cosine, cosine[..., :1].expand_as(cosine))


def test_content_weights_are_a_softmax_by_hand() -> None:
    keys, strengths, memory = normal(B, R, W), normal(B, R), normal(B, N, W, seed=1)
    result = addressing.content_weights(keys, strengths, memory)
    cosine = addressing.cosine_similarity(keys, memory)
    for b in range(B):
        for head in range(R):
            sharp = torch.log(1 + torch.exp(strengths[b, head]))
            numbers = torch.exp(sharp * cosine[b, head])
            torch.testing.assert_close(result[b, head], numbers / numbers.sum())


def test_usage_by_hand() -> None:
    usage, free = weights(B, N), torch.sigmoid(normal(B, R))
    write, read = weights(B, K, N, seed=1), weights(B, R, N, seed=2)
    written = 1 - (1 - write[:, 0]) * (1 - write[:, 1])
    raised = usage + written - usage * written
    left = (1 - free[:, 0, None] * read[:, 0]) * (1 - free[:, 1, None] * read[:, 1])
    result = addressing.next_usage(usage, write, read, free)
    torch.testing.assert_close(result, raised * left)


def test_only_the_weights_of_the_last_write_have_no_gradient_in_the_usage() -> None:
    arguments = [weights(B, N), weights(B, K, N), weights(B, R, N), torch.sigmoid(normal(B, R))]
    usage, write, read, free = (tensor.requires_grad_() for tensor in arguments)
    addressing.next_usage(usage, write, read, free).sum().backward()
    assert write.grad is None
    for other in (usage, read, free):
        assert other.grad is not None
        assert other.grad.any()
    core, _ = wild()
    state = core(torch.randn(3, 2, 3, generator=seeded(0)))[1].detach().requires_grad_()
    core(torch.randn(3, 2, 3, generator=seeded(1)), state)[0].sum().backward()
    assert state.grad is not None
    for name, gradient in core.unpack(state.grad).items():
        assert gradient.any() == (name != "write_weights"), name


def test_the_first_allocation_goes_to_the_first_slot() -> None:
    result = addressing.allocation_weights(torch.zeros(B, N))
    assert (result[:, 0] > 1 - 2e-6).all()
    assert (result[:, 1:] < 2e-6).all()
    assert (result[:, 1:] >= 0).all()


@pytest.mark.parametrize("slots", [1, 2, 20, 200])
@pytest.mark.parametrize("usage", [0.0, 0.3, 1.0])
def test_slots_of_equal_usage_keep_their_order(usage: float, slots: int) -> None:
    """200 slots: a sort that is not stable would mix them."""
    result = addressing.allocation_weights(torch.full((2, slots), usage, dtype=torch.float64))
    u = 1e-6 + (1 - 1e-6) * usage
    expected = torch.tensor([(1 - u) * u**j for j in range(slots)], dtype=torch.float64)
    torch.testing.assert_close(result, expected.expand(2, slots), rtol=1e-9, atol=1e-12)


def test_allocation_by_hand() -> None:
    usage = torch.tensor([[0.5, 0.1, 0.9, 0.1, 1.0]], dtype=torch.float64)
    expected = [0.9 * 0.1 * 0.1 * 0.5 / 0.9, 0.9, 0.1 * 0.1 * 0.1 * 0.5, 0.9 * 0.1, 0.0]
    result = addressing.allocation_weights(usage)
    torch.testing.assert_close(result, result.new_tensor([expected]), rtol=1e-4, atol=1e-6)


def test_allocation_is_at_most_everything() -> None:
    for seed in range(20):
        usage = torch.rand(50, N, generator=seeded(seed))
        usage[torch.rand(50, N, generator=seeded(seed + 50)) < 0.2] = 0
        usage[torch.rand(50, N, generator=seeded(seed + 99)) < 0.2] = 1
        result = addressing.allocation_weights(usage)
        assert (result >= 0).all()
        assert (result.sum(-1) <= 1 + 1e-6).all()
        assert (result[usage == 1] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "usage", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1], [1, 0.5, 0, 0.5], [0, 1e-30, 1e-7, 1]]
)
def test_gradients_of_the_allocation_are_finite_and_right(
    usage: list[float], dtype: torch.dtype
) -> None:
    """Also where usages are 0 or 1: against the derivative of the product by hand."""
    leaf = torch.tensor([usage], dtype=dtype, requires_grad=True)
    factors = torch.tensor([0.3, -1.0, 2.0, 0.7], dtype=dtype)
    (addressing.allocation_weights(leaf) * factors).sum().backward()
    order = sorted(range(4), key=lambda slot: 1e-6 + (1 - 1e-6) * usage[slot])
    u = [1e-6 + (1 - 1e-6) * usage[slot] for slot in order]

    def allocated(j: int, changed: int | None) -> float:
        """a_j, or its derivative in one of the usages."""
        value = (1 - u[j]) if changed != j else -1.0
        for i in range(j):
            value *= u[i] if changed != i else 1.0
        return value if changed is None or changed <= j else 0.0

    expected = [0.0] * 4
    for i, slot in enumerate(order):
        steps = (factors[order[j]].item() * allocated(j, i) for j in range(4))
        expected[slot] = (1 - 1e-6) * sum(steps)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, leaf.new_tensor([expected]), rtol=1e-5, atol=1e-5)


def test_write_heads_share_the_free_slots() -> None:
    usage, gates = torch.zeros(1, N, dtype=torch.float64), torch.tensor([[1.0, 0.5, 1.0]]).double()
    result = addressing.allocations(usage, gates)
    assert result.shape == (1, 3, N)
    # The first head takes a slot, the second half of another one; the third finds a free one.
    chosen = result[0].argmax(-1).tolist()
    assert len(set(chosen)) == 3
    torch.testing.assert_close(result[:, 0], addressing.allocation_weights(usage))
    for head in (0, 1):
        usage = usage + (1 - usage) * gates[:, head, None] * result[:, head]
        torch.testing.assert_close(result[:, head + 1], addressing.allocation_weights(usage))
    closed = addressing.allocations(torch.zeros(1, N), torch.zeros(1, 2))
    assert torch.equal(closed[:, 0], closed[:, 1])


def test_memory_erases_before_it_adds() -> None:
    memory, vectors = normal(1, N, W), normal(1, K, W, seed=1)
    write = torch.cat([one_hot(1), one_hot(1)], dim=1)
    erase = torch.zeros(1, K, W, dtype=torch.float64)
    erase[:, 0, :2] = 1
    result = addressing.next_memory(memory, write, erase, vectors)
    kept = memory[0, 1] * torch.tensor([0.0, 0, 1, 1])
    torch.testing.assert_close(result[0, 1], kept + vectors[0].sum(0))
    others = [0, 2, 3, 4]
    assert torch.equal(result[0, others], memory[0, others])


def test_links_lead_along_the_order_of_writing() -> None:
    order = [3, 0, 4, 1, 2]
    link = torch.zeros(1, 1, N, N, dtype=torch.float64)
    precedence = torch.zeros(1, 1, N, dtype=torch.float64)
    for slot in order:
        link = addressing.next_link(link, precedence, one_hot(slot))
        precedence = addressing.next_precedence(precedence, one_hot(slot))
        assert torch.equal(precedence, one_hot(slot))
    backward, forward, content = torch.eye(3, dtype=torch.float64).view(3, 1, 1, 3)
    by_content = weights(1, 1, N)
    for earlier, later in pairwise(order):
        result = addressing.read_weights(one_hot(earlier), link, by_content, forward)
        assert torch.equal(result, one_hot(later))
        result = addressing.read_weights(one_hot(later), link, by_content, backward)
        assert torch.equal(result, one_hot(earlier))
    assert not addressing.read_weights(one_hot(order[-1]), link, by_content, forward).any()
    assert not addressing.read_weights(one_hot(order[0]), link, by_content, backward).any()
    result = addressing.read_weights(one_hot(0), link, by_content, content)
    torch.testing.assert_close(result, by_content)


def test_read_modes_are_backward_then_forward_then_content() -> None:
    read, link, by_content = weights(B, R, N), weights(B, K, N, N, seed=1), weights(B, R, N, seed=2)
    modes = torch.softmax(normal(B, R, 1 + 2 * K), dim=-1)
    result = addressing.read_weights(read, link, by_content, modes)
    for b in range(B):
        for head in range(R):
            m, r = modes[b, head], read[b, head]
            expected = m[2 * K] * by_content[b, head]
            for k in range(K):
                expected = expected + m[k] * link[b, k].T @ r + m[K + k] * link[b, k] @ r
            torch.testing.assert_close(result[b, head], expected)


@pytest.mark.parametrize("num_writes", [1, 2, 3])
def test_bounds_hold_in_a_run(num_writes: int) -> None:
    """After 40 steps of a core with large weights."""
    largest: dict[str, float] = {}
    for seed in range(4):
        _, state = wild(num_writes, seed)
        for name in ("usage", "link", "read_weights", "write_weights", "precedence"):
            assert state[name].min() >= -1e-6, name
            assert state[name].max() <= 1 + 1e-6, name
            largest[name] = max(largest.get(name, 0.0), state[name].max().item())
        for name in ("read_weights", "write_weights", "precedence"):
            assert state[name].sum(-1).max() <= 1 + 1e-5, name
        link = state["link"]
        assert not link.diagonal(dim1=-2, dim2=-1).any()
        assert link.sum(-1).max() <= 1 + 1e-5
        assert link.sum(-2).max() <= 1 + 1e-5
    assert min(largest.values()) > 0.2, f"a part that is hardly used proves nothing: {largest}"


def test_the_first_step_by_hand() -> None:
    """From an empty memory: one slot is allocated, content is uniform, nothing is linked."""
    core = make_core("dnc", 3, 6, **(SIZES | {"num_writes": 1}), dtype=torch.float64)
    w = core.gate_weights()
    output, final = core(normal(1, 1, 3))
    parts = {name: part[0, 0] for name, part in core.unpack(final).items()}

    def mapped(name: str) -> Tensor:
        return w[f"W_{name}"] @ parts["h"] + w[f"b_{name}"]

    gate, allocate = (torch.sigmoid(mapped(f"{name}_gate")) for name in ("write", "allocation"))
    by_content = (1 - allocate) / N * torch.ones(N, dtype=torch.float64)
    write = gate * (allocate * addressing.allocation_weights(torch.zeros(1, N)) + by_content)
    torch.testing.assert_close(parts["write_weights"], write, rtol=1e-6, atol=1e-6)
    memory = write.T @ mapped("write_vectors")[None]
    torch.testing.assert_close(parts["memory"], memory, rtol=1e-6, atol=1e-6)
    assert not parts["usage"].any()
    assert not parts["link"].any()
    modes = torch.softmax(mapped("read_mode").view(R, 3), dim=-1)
    keys, strengths = mapped("read_keys").view(1, R, W), mapped("read_strengths").view(1, R)
    content_weights = addressing.content_weights(keys, strengths, parts["memory"][None])[0]
    torch.testing.assert_close(parts["read_weights"], modes[:, 2:] * content_weights)
    torch.testing.assert_close(parts["reads"], parts["read_weights"] @ parts["memory"])
    both = torch.cat([parts["h"], parts["reads"].flatten()])
    torch.testing.assert_close(output[0, 0].detach(), w["W_out"] @ both + w["b_out"])


def test_the_clip_bounds_controller_and_output() -> None:
    x = 10 * torch.randn(30, 4, 3, generator=seeded(0))
    outputs, clipped = {}, {}
    for clip in (None, 1e9, 0.5):
        core, _ = wild(clip=clip)
        outputs[clip], final = core(x)
        parts = core.unpack(final)
        clipped[clip] = max(parts[name].abs().max().item() for name in ("h", "c"))
    assert torch.equal(outputs[None], outputs[1e9])
    assert outputs[None].abs().max() > 1
    assert clipped[None] > 1
    assert outputs[0.5].abs().max() == clipped[0.5] == 0.5


def test_sizes_and_defaults() -> None:
    core = make_core("dnc", 3, 8)
    assert core.output_size == 8
    assert core.state_size == 8 + 8 + 16 * 16 + 4 * 16 + 16 + 16 * 16 + 16 + 16 + 4 * 16
    assert make_core("dnc", 3, 8, 2, output_size=5).output_size == 5
    cell = core.cells[0]
    sizes = (cell.num_slots, cell.word_size, cell.num_reads, cell.num_writes)
    assert (sizes, cell.clip) == ((16, 16, 4, 1), 20)


def test_refine_gates_cost_no_parameters() -> None:
    counts = {
        name: sum(parameter.numel() for parameter in make_core(name, 3, 8).parameters())
        for name in ("dnc", "u_dnc", "r_dnc", "ur_dnc", "or_dnc", "f_dnc")
    }
    tied = counts.pop("f_dnc")
    assert len(set(counts.values())) == 1
    assert counts["dnc"] - tied == 8 * (3 + 4 * 16 + 8 + 2)


def test_starting_weights_are_cut_off_normals() -> None:
    core = make_core("dnc", 40, 100, generator=seeded(0))
    inputs = 40 + 4 * 16
    scaled = []
    for name, weight in core.gate_weights().items():
        if weight.ndim == 2 or name in ("b_u", "b_o"):
            controller = name.startswith(("W_x", "W_h")) or weight.ndim == 1
            fan_in = inputs + 100 if controller else weight.shape[1]
            scaled.append(weight.flatten() * fan_in**0.5)
            assert scaled[-1].abs().max() <= 2.0001, name
            # A normal distribution that is cut off at 2 has the deviation 0.88.
            assert scaled[-1].numel() < 2_000 or abs(scaled[-1].std() - 0.88) < 0.05, name
        else:
            assert torch.equal(weight, torch.full_like(weight, float(name == "b_f"))), name
    assert abs(torch.cat(scaled).std() - 0.88) < 0.01
    assert make_core("dnc", 3, 4, forget_bias=2.0).gate_weights()["b_f"].tolist() == [2.0] * 4


def test_only_h_and_c_can_be_learned() -> None:
    core = make_core("ur_dnc", 3, 4, 2, learned_state=True, **SIZES)
    assert set(core.learned) == {"h_0", "c_0", "h_1", "c_1"}


def test_several_write_heads_run_in_pieces_as_in_one() -> None:
    core, _ = wild(num_writes=3)
    core = core.double()
    x = normal(9, 2, 3)
    whole, final = core(x)
    first, state = core(x[:4])
    second, last = core(x[4:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(last, final)


def test_a_cell_checks_its_sizes() -> None:
    with pytest.raises(ValueError, match="input_size must be at least 1"):
        DNC(0, 4, Gate("", 4))
    with pytest.raises(ValueError, match=r"must have 4 units, got Gate\('', 5\)"):
        DNC(3, 4, Gate("", 5))

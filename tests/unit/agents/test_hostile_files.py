"""Damaged and hostile model files: each is a clear ValueError, and nothing in them runs.

`--random-cases 0:10000` runs more of the random ones.
"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import random
import resource
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load, save
from stable_baselines3.common.vec_env import VecNormalize
from support.rma import rma_model
from support.toys import BOX, model, toy

from rlgates import RecurrentA2C, RecurrentPPO
from rlgates.agents import TVT, load_vec_normalize
from rlgates.agents.files import archive

# Its statistics are loaded apart.
pytestmark = pytest.mark.filterwarnings("ignore:the agent was trained in a VecNormalize")

Header = dict[str, Any]
Parts = dict[str, bytes]
# Of a processor for one case, and of all: none computes long or takes memory that it declares.
SECONDS, MEGABYTES = 5, 300


@cache
def sound() -> bytes:
    """A file with every part."""
    stream = io.BytesIO()
    model(VecNormalize(toy()), policy_kwargs={"net_arch": [3]}).learn(64).save(
        stream, format="safe"
    )
    return stream.getvalue()


def contents() -> tuple[Header, Parts]:
    return archive.unpack(io.BytesIO(sound()))


def read(content: bytes, cls: type[Any] = RecurrentPPO) -> Any:
    """Load a file, and its statistics, in the time that a case may take."""
    begin = time.process_time()
    try:
        return cls.load(io.BytesIO(content), device="cpu", safe=True)
    finally:
        assert time.process_time() - begin < SECONDS


def refused(content: bytes, message: str | None = None) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read(content)
    assert type(caught.value) is ValueError
    assert 20 < len(str(caught.value)) < 700


def entries() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(sound())) as file:
        return {name: file.read(name) for name in file.namelist()}


def zipped(items: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip as Python's module writes it, duplicates included."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as file:
        for name, content in items:
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            file.writestr(info, content)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    sound()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MEGABYTES * 1024


def test_the_sound_file_is_loaded() -> None:
    assert read(sound()).num_timesteps == 64
    header, parts = contents()
    assert archive.pack(header, parts) == archive.join(entries()) == sound()


@pytest.mark.parametrize("share", [i / 60 for i in range(60)])
def test_truncated(share: float) -> None:
    refused(sound()[: int(share * len(sound()))])


def test_truncated_at_the_end_or_with_more_behind_it() -> None:
    for cut in range(1, 30):
        refused(sound()[:-cut], "truncated|damaged")
    refused(sound() + b"\0", "more than its entries")
    refused(sound() + sound(), "more than its entries")


@pytest.mark.parametrize("name", ["any", archive.HEADER, *archive.PARTS])
def test_a_flipped_bit(name: str, pytestconfig: pytest.Config) -> None:
    """Of every part, and of the records between them."""
    content = bytearray(sound())
    part = content if name == "any" else entries()[name]
    begin = 0 if name == "any" else sound().index(part)
    first, _, last = pytestconfig.getoption("random_cases").partition(":")
    for seed in range(int(first), int(last or int(first) + 1)):
        bit = random.Random(f"{name} {seed}").randrange(8 * len(part))
        at, mask = begin + bit // 8, 1 << bit % 8
        content[at] ^= mask
        refused(bytes(content))
        content[at] ^= mask


def test_every_bit_of_the_records_counts() -> None:
    """Of the last 22 + 46 bytes, and the 30 before the first entry."""
    content = bytearray(sound())
    for at in [*range(30), *range(len(content) - 68, len(content))]:
        for bit in range(8):
            content[at] ^= 1 << bit
            refused(bytes(content))
            content[at] ^= 1 << bit


@pytest.mark.parametrize("part", archive.PARTS)
def test_a_wrong_digest_or_a_part_that_is_missing(part: str) -> None:
    items = entries()
    changed = items[part][:-1] + bytes([items[part][-1] ^ 1])
    refused(archive.join({**items, part: changed}), "another size or SHA-256")
    del items[part]
    refused(archive.join(items), "its parts are not those")
    header, parts = contents()
    del parts[part]
    refused(archive.pack(header, parts), f"the part {part} is missing")


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/passwd", "..\\evil", "policy.pth", "data", "HEADER.JSON", "a" * 60_000, ""],
)
def test_foreign_names(name: str) -> None:
    items = list(entries().items())
    refused(zipped([*items, (name, b"x")]), "foreign entry")
    refused(zipped([(name, b"x"), *items]), "does not begin|not of the safe format")


def test_duplicate_entries() -> None:
    items = list(entries().items())
    with pytest.warns(UserWarning, match="Duplicate name"):
        content = zipped([*items, items[1]])
    refused(content, r"holds policy\.safetensors twice")


def test_zip_bombs() -> None:
    items = entries()
    bomb = zipped([*items.items()], zipfile.ZIP_DEFLATED)
    refused(bomb, "stored in another way|not of the safe format")
    header = items.pop(archive.HEADER)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr(zipfile.ZipInfo(archive.HEADER), header)
        file.writestr("policy.safetensors", bytes(2**26), zipfile.ZIP_DEFLATED)
    assert len(stream.getvalue()) < 2**18
    refused(stream.getvalue(), "stored in another way")


@pytest.mark.parametrize("size", [0, 2**16, 2**31, 2**32 - 1])
def test_a_wrong_size_of_an_entry(size: int) -> None:
    content = bytearray(sound())
    content[18:26] = struct.pack("<2I", size, size)
    refused(bytes(content), "too large|truncated")


def test_foreign_files(tmp_path: Path) -> None:
    model().save(tmp_path / "sb3.zip")
    foreign = {
        "empty": b"",
        "text": b"no model",
        "zip": zipped([("a", b"b")]),
        "sb3": (tmp_path / "sb3.zip").read_bytes(),
        "pickle": pickle.dumps({"a": 1}),
        "safetensors": save({"a": torch.zeros(3)}),
    }
    for content in foreign.values():
        refused(content, "not of the safe format")
        (tmp_path / "agent.rlgates").write_bytes(content)
        with pytest.raises(ValueError, match=r"agent\.rlgates is not of the safe format"):
            RecurrentPPO.load(tmp_path / "agent.rlgates")


class Command:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_pickles_in_parts_are_not_run(tmp_path: Path) -> None:
    evil = pickle.dumps(Command(tmp_path / "ran"))
    header, parts = contents()
    for part in parts:
        refused(archive.pack(header, {**parts, part: evil}), "not a safetensors file")
    data = json.dumps({":serialized:": "gASV", "x": evil.hex()})
    refused(zipped([("data", data.encode()), *entries().items()]))
    assert not (tmp_path / "ran").exists()


def edited(change: Callable[[Header], Any]) -> bytes:
    """The file with a header that `change` edited, digests included."""
    header, parts = contents()
    header = copy.deepcopy(header)
    change(header)
    return archive.pack(header, parts)


def set_at(path: str, value: Any) -> Callable[[Header], None]:
    def change(header: Header) -> None:
        *parents, last = path.split("/")
        node = header
        for key in parents:
            node = node[key]
        node[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("algorithm", "os.system", "unknown algorithm 'os.system'"),
        ("algorithm", "RecurrentA2C", r"load it with RecurrentA2C\.load"),
        ("policy", "posix.system", "unknown policy"),
        ("policy", "RMAPolicy", "unknown option of RMAPolicy|cannot be built"),
        ("policy_kwargs/activation_fn", "torch.nn.ReLU", "unknown activation_fn"),
        ("policy_kwargs/activation_fn", "eval", "unknown activation_fn"),
        ("policy_kwargs/features_extractor_class", "builtins.exec", "unknown features_extractor"),
        ("policy_kwargs/optimizer_class", "LBFGS", "unknown optimizer_class"),
        ("policy_kwargs/core", "os.system", "unknown core"),
        ("policy_kwargs/observation_space", 1, "unknown option"),
        ("policy_kwargs/__class__", 1, "unknown option"),
        ("policy_kwargs/use_sde", True, "cannot be loaded"),
        ("optimizer/class", "torch.optim.Adam", "unknown optimizer"),
        ("settings/tensorboard_log", "/etc", "unknown key 'tensorboard_log'"),
        ("policy_kwargs/optimizer_class", "SGD", "state of Adam, not of SGD"),
        ("optimizer/group/step", 3, "unknown option of Adam"),
        ("optimizer/group/lr", "x", "lr of Adam"),
        ("optimizer/group/betas", [0.5], "betas of Adam"),
        ("optimizer/group/differentiable", 1, "differentiable of Adam"),
        ("optimizer/state/99", {}, "there is no parameter '99'"),
        ("optimizer/state/0", {"step": 3}, "step of parameter 0"),
        ("optimizer/state/0", {"other": 3}, "Adam keeps no 'other'"),
        ("settings/policy", "x", "unknown key 'policy'"),
        ("settings/__class__", "x", "unknown key"),
        ("settings/save", "x", "unknown key"),
        ("settings/n_steps", 2**40, "n_steps = 1099511627776 is more"),
        ("settings/n_envs", 2**40, "states of 1099511627776 environments"),
        ("settings/seed", -1, "seed: it must be at least 0"),
        ("settings/gamma", "0.9", "gamma: it must be a number"),
        ("settings/learning_rate", {"schedule": "os.system"}, "unknown schedule"),
        ("settings/learning_rate", {"schedule": "linear"}, "'start' is missing"),
        ("settings/tvt", {"alpha": 1, "threshold": 1, "window": None}, "the core 'rma'"),
        ("progress/num_timesteps", 1.5, "num_timesteps: it must be a whole number"),
        ("progress/_total_timesteps", -1.0, "_total_timesteps: it must be at least 0, got -1.0"),
        ("progress/_total_timesteps", {"!float": "nan"}, "_total_timesteps: it must be at least 0"),
        ("progress/ep_info_buffer", [{"r": "x", "l": 1}], "ep_info_buffer"),
        ("progress/ep_info_buffer", 3, "cannot be loaded"),
        ("arrays/_last_obs", "pickle", "unknown kind of _last_obs 'pickle'"),
        ("arrays/_last_obs", {"a": "numpy"}, "unknown kind of _last_obs"),
        ("arrays/_last_obs", None, "_last_obs.*not expected"),
        ("states", [], "its states are"),
        ("states", [{"name": "pi", "shape": [2**40], "dtype": "float32"}], "its states are"),
        ("observation_space/shape", [2**20, 2**20], "at most 67,108,864 numbers"),
        ("observation_space/shape", [-1], "at least 0"),
        ("observation_space/shape", [1] * 100, "at most 8 sizes"),
        ("observation_space/dtype", "object", "unknown dtype"),
        ("observation_space/low", [1, 2], "cannot be loaded"),
        ("observation_space/low", "x", "cannot be loaded"),
        ("observation_space/space", "Graph", "unknown space"),
        ("action_space/n", 2**30, "at most 67,108,864 numbers"),
        ("action_space/n", 0, "at least 1"),
        ("action_space/n", 4, "action_net"),
        ("policy_kwargs/lstm_hidden_size", 2**20, "its states are"),
        ("policy_kwargs/lstm_hidden_size", 2**40, "cannot be built"),
        ("policy_kwargs/net_arch", [2**20], "must be float32"),
        ("policy_kwargs/net_arch", [3] * 10**5, "at most 256 layers"),
        ("policy_kwargs/n_lstm_layers", 10**7, "at most 256 layers"),
        ("policy_kwargs/core_kwargs", {"num_layers": 10**7}, "at most 256 layers"),
        ("policy_kwargs/core_kwargs", {"backend": "os"}, "cannot be built"),
        ("policy_kwargs/core_kwargs", {"!evil": 1}, "unknown tag"),
        ("policy_kwargs", [], "must be a table"),
        ("vec_normalize", None, r"vec_normalize\.safetensors is not expected"),
        ("kind", "policy", "not an agent"),
        ("kind", None, "not an agent"),
        ("version", "1", "must be a whole number"),
        ("version", True, "must be a whole number"),
        ("version", 99, "upgrade rlgates"),
        ("libraries", None, None),  # says nothing about what is built
        ("extra", 1, "unknown key 'extra'"),
    ],
)
def test_hostile_headers(path: str, value: Any, message: str | None) -> None:
    content = edited(set_at(path, value))
    if message is None:
        read(content)
    else:
        refused(content, message)


def test_a_core_with_endless_rounds() -> None:
    header, parts = contents()
    header["policy_kwargs"] |= {"core": "mogrifier", "core_kwargs": {"rounds": 10**7}}
    begin = time.process_time()
    with pytest.raises(ValueError, match=r"too many parts|cannot be built"):
        RecurrentPPO.load(io.BytesIO(archive.pack(header, parts)))
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("vec_normalize/clip_obs", "x"),
        ("vec_normalize/norm_obs_keys", ["a"]),
        ("vec_normalize/norm_obs", False),
        ("vec_normalize/venv", 1),
        ("vec_normalize", 3),
    ],
)
def test_hostile_statistics(path: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "agent.rlgates").write_bytes(edited(set_at(path, value)))
    with pytest.raises(ValueError, match=r"agent\.rlgates cannot be loaded"):
        load_vec_normalize(tmp_path / "agent.rlgates", toy())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{" * 100_000,
        '{"a":' * 100_000,
        '{\n "format": "rlgates-model"' + ', "x": ' + "[" * 100_000,
        '{\n "format": "rlgates-model", "format": "rlgates-model"}',
        '{\n "format": "rlgates-model", "version": 1e999}',
        '{\n "format": "rlgates-model", "version": NaN}',
        '{\n "format": "rlgates-model", "version": 1, "x": ' + "9" * 5000 + "}",
        '{\n "format": "rlgates-model", "version": 1, "x": "\ud800"}',
    ],
    ids=range(11),
)
def test_headers_that_are_no_json(text: str) -> None:
    items = {**entries(), archive.HEADER: text.encode(errors="surrogatepass")}
    refused(archive.join(items))


def moved(change: Callable[[dict[str, torch.Tensor]], Any], part: str) -> bytes:
    """The file with changed tensors in a part, digests included."""
    header, parts = contents()
    tensors = load(parts[part])
    change(tensors)
    return archive.pack(header, {**parts, part: save(tensors)})


def first(tensors: dict[str, torch.Tensor]) -> str:
    return min(name for name, x in tensors.items() if x.ndim)


@pytest.mark.parametrize(
    "part", ["policy.safetensors", "optimizer.safetensors", "state.safetensors"]
)
def test_tensors_that_do_not_fit(part: str) -> None:
    """With the fused optimizer a moment of another shape would be read beyond its end."""
    refused(moved(lambda x: x.pop(first(x)), part), "is missing|got none")
    refused(moved(lambda x: x.update(other=torch.zeros(1)), part), "'other' is not expected")
    refused(moved(lambda x: x.update({first(x): torch.zeros(1)}), part), "must be")
    refused(moved(lambda x: x.update({first(x): x[first(x)][None]}), part), "must be")
    if part != "state.safetensors":
        refused(moved(lambda x: x.update({first(x): x[first(x)].double()}), part), "must be")
        refused(moved(lambda x: x.update({first(x): x[first(x)].bfloat16()}), part), "must be")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [2**63, 0], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 2**40]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "os", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1]},
    ],
)
def test_hostile_safetensors(entry: dict[str, Any]) -> None:
    header, parts = contents()
    text = json.dumps({"log_std": entry}).encode()
    for size in (len(text), 2**40, 2**63):
        part = struct.pack("<Q", size) + text + bytes(4)
        refused(archive.pack(header, {**parts, "policy.safetensors": part}))


VALUES = (
    *(None, True, False, -1, 0, 1, 7, 2**31, 2**40, 2**63, 2**64, 0.5, -1e300, 1e300, "", "x"),
    *("os.system", "__class__", "RecurrentPPO", [], [1], [[]], {}, {"a": 1}, {"!float": "nan"}),
    *({"!float": "inf"}, {"!tuple": [1, 2]}, {"!other": 1}, {"schedule": "linear"}, "\0", "é"),
)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every key of every table and list, with its owner."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        yield node, key
        if isinstance(value, dict | list):
            yield from places(value)


@cache
def kinds() -> dict[str, tuple[type[Any], bytes]]:
    """Files of several kinds of agents, each with its class."""
    box, image = spaces.Box(-1, 1, (2,)), spaces.Box(0, 255, (3, 6, 6), np.uint8)
    agents = {
        "large": model(toy(spaces.Dict(a=image, b=BOX), box), "MultiInputLstmPolicy", use_sde=True),
        "dnc": model(algorithm=RecurrentA2C, policy_kwargs={"core": "dnc"}),
        "rma": rma_model(tvt=TVT(), n_steps=13),
    }
    files = {"ppo": (RecurrentPPO, sound())}
    for name, agent in agents.items():
        stream = io.BytesIO()
        agent.learn(agent.n_steps * agent.n_envs).save(stream, format="safe")
        files[name] = type(agent), stream.getvalue()
    return files


@pytest.mark.parametrize("kind", ["ppo", "large", "dnc", "rma"])
def test_random_headers(kind: str, pytestconfig: pytest.Config) -> None:
    """Values of wrong types and sizes in random places: a ValueError, or a file that loads."""
    begin, _, end = pytestconfig.getoption("random_cases").partition(":")
    loaded, cases = 0, range(int(begin), int(end or int(begin) + 1))
    cls, content = kinds()[kind]
    existing = cls.load(io.BytesIO(content), device="cpu")
    for seed in cases:
        draw = random.Random(f"{kind} {seed}")
        header, parts = archive.unpack(io.BytesIO(content))
        for name in ("ep_info_buffer", "ep_success_buffer"):
            header["progress"][name] = header["progress"][name][:1]  # or most places are here
        for _ in range(draw.choice([1, 1, 3])):
            owner, key = draw.choice(list(places(header)))
            change = draw.choice(["set", "set", "delete", "add"])
            if change == "delete":
                del owner[key]
            elif change == "set" or isinstance(owner, list):
                owner[key] = draw.choice(VALUES)
            else:
                owner[str(draw.choice(VALUES))] = draw.choice(VALUES)
        try:
            changed = archive.pack(header, parts)
            with suppress(ValueError):
                existing.set_parameters(io.BytesIO(changed))
            read(changed, cls)
        except ValueError as error:
            assert len(str(error)) > 20, (seed, error)  # noqa: PT017
        else:
            loaded += 1
    assert loaded < len(cases) / 2 or len(cases) < 10


@pytest.mark.parametrize("part", archive.PARTS)
def test_random_parts(part: str, pytestconfig: pytest.Config) -> None:
    """Bytes of a part's own header, with a right digest: a ValueError, or other numbers."""
    begin, _, end = pytestconfig.getoption("random_cases").partition(":")
    header, parts = contents()
    names = 8 + struct.unpack("<Q", parts[part][:8])[0]
    for seed in range(int(begin), int(end or int(begin) + 1)):
        draw = random.Random(f"{part} {seed}")
        changed = bytearray(parts[part])
        for _ in range(draw.choice([1, 1, 4])):
            changed[draw.randrange(names)] = draw.choice(b'\0\xff019-{}[]",:aF') or 1
        if draw.random() < 0.3:
            del changed[draw.randrange(len(changed)) :]
        with suppress(ValueError):
            assert read(archive.pack(header, {**parts, part: bytes(changed)})).num_timesteps == 64

"""Agents on the Hugging Face hub: in the safe format, with a model card, pinned to a commit."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rlgates
from rlgates.agents.evaluation import PolicyEvaluation
from rlgates.agents.sequences.updates import SequenceAlgorithm
from rlgates.errors import check_seeds

FILE = "agent.rlgates"


def push_to_hub(
    model: SequenceAlgorithm,
    repo_id: str,
    *,
    env_id: str,
    seeds: Sequence[int],
    evaluation: PolicyEvaluation,
    command: str,
    private: bool = True,
    token: str | None = None,
    api: Any = None,
) -> str:
    """Upload an agent and its model card to a repository of the hub, created if it does not exist.

        evaluation = evaluate_policy(model, env, seed=7)
        commit = push_to_hub(
            model, "me/tmaze-ur_lstm", env_id="rlgates/PassiveTMaze-v0", seeds=[0],
            evaluation=evaluation, command="python train.py",
        )

    Args:
        model: in the safe format, see `RecurrentPPO.save`.
        repo_id: owner and name.
        env_id: of the environment, with its version.
        seeds: with which the agent was trained and selected.
        evaluation: on episodes that the agent was not trained on; the card shows its means and
            intervals.
        command: that reproduces the training.
        private: whether a new repository is private.
        token: of the hub; None for the one that `hf auth login` stored.
        api: a `huggingface_hub.HfApi`; None for the default one.

    Returns:
        the commit, which `load_from_hub` takes.

    Raises:
        ValueError: no valid seeds; an agent that cannot be written as data.
        ModuleNotFoundError: huggingface_hub is not installed.
    """
    check_seeds(seeds)
    api = _api() if api is None else api
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / FILE, format="safe")
        card = model_card(model, repo_id, env_id, seeds, evaluation, command)
        (Path(folder) / "README.md").write_text(card, encoding="utf-8")
        api.create_repo(repo_id, token=token, private=private, exist_ok=True)
        text = f"{type(model).__name__} on {env_id}"
        commit = api.upload_folder(
            repo_id=repo_id, folder_path=folder, commit_message=text, token=token
        )
    return str(commit.oid)


def load_from_hub(
    repo_id: str,
    revision: str,
    filename: str = FILE,
    *,
    token: str | None = None,
    api: Any = None,
) -> Path:
    """Download a file from a repository of the hub into the cache of huggingface_hub.

        path = load_from_hub("me/tmaze-ur_lstm", "0123456789abcdef0123456789abcdef01234567")
        model = RecurrentPPO.load(path, safe=True)

    Args:
        repo_id: owner and name.
        revision: a commit, as 40 hexadecimal digits; not a branch, whose agent may change.
        filename: in the repository.
        token, api: as in `push_to_hub`.

    Raises:
        ValueError: `revision` is no commit.
        ModuleNotFoundError: huggingface_hub is not installed.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ValueError(
            f"revision must be a commit of 40 hexadecimal digits, got {revision!r}: the page of "
            f"{repo_id} lists them under Files and versions, History."
        )
    api = _api() if api is None else api
    return Path(api.hf_hub_download(repo_id, filename, revision=revision, token=token))


def model_card(
    model: SequenceAlgorithm,
    repo_id: str,
    env_id: str,
    seeds: Sequence[int],
    evaluation: PolicyEvaluation,
    command: str,
) -> str:
    """The card of an agent, as Markdown with the metadata that the hub reads."""
    policy: Any = model.policy
    algorithm, core = type(model).__name__, policy.core
    estimate = evaluation.estimate("return")
    metadata = {
        "library_name": "rlgates",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", core, env_id],
        "model-index": [
            {
                "name": f"{algorithm} {core}",
                "results": [
                    {
                        "task": {
                            "type": "reinforcement-learning",
                            "name": "reinforcement-learning",
                        },
                        "dataset": {"type": env_id, "name": env_id},
                        "metrics": [
                            {"type": "mean_reward", "name": "mean return", "value": estimate.mean}
                        ],
                    }
                ],
            }
        ],
    }
    rows = {
        "environment": env_id,
        "algorithm": algorithm,
        "core": f"`{core}` {policy.core_kwargs or ''}".strip(),
        "steps of training": f"{model.num_timesteps:,}",
        "seeds": ", ".join(map(str, seeds)),
        **{
            f"{name}, mean [95 % interval]": f"{one} of {one.episodes} episodes"
            for name in evaluation.names
            for one in [evaluation.estimate(name)]
        },
        "command": f"`{command}`",
        "version": f"rlgates {rlgates.__version__}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    # JSON is YAML too, and quotes whatever needs it.
    return f"""---
{json.dumps(metadata, indent=1)}
---

# {algorithm} with {core} on {env_id}

| | |
| --- | --- |
{table}

```python
from rlgates import {algorithm}
from rlgates.agents import load_from_hub

path = load_from_hub("{repo_id}", "<commit>")  # of this repository
model = {algorithm}.load(path, safe=True)  # runs no code
```
"""


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the hub needs {error.name}: install rlgates with its extra [share].", name=error.name
        ) from error
    return HfApi(library_name="rlgates", library_version=rlgates.__version__)

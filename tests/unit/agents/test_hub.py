"""Agents on the hub, which is a server on the loopback here."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.rma import SMALL, rma_env
from support.toys import model, parameters, toy

from rlgates import RecurrentA2C, RecurrentPPO
from rlgates.agents import PolicyEvaluation, evaluate_policy, load_from_hub, push_to_hub
from rlgates.agents.hub import model_card

huggingface_hub = pytest.importorskip("huggingface_hub")

REPO, COMMIT = "me/agent", "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """What HfApi needs to make a repository, upload small files, and download them."""

    files: dict[str, bytes]
    created: list[dict[str, Any]]

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, content: bytes, **headers: str) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer: dict[str, Any] = {}
        if self.path == "/api/repos/create":
            self.created.append(json.loads(body))
            answer = {"url": f"http://{self.headers['Host']}/{REPO}", "name": REPO}
        elif self.path == f"/api/models/{REPO}/preupload/main":
            paths = [file["path"] for file in json.loads(body)["files"]]
            answer = {
                "files": [
                    {"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths
                ]
            }
        elif self.path == f"/api/models/{REPO}/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"http://{self.headers['Host']}/{REPO}/commit/{COMMIT}"
            answer = {"commitOid": COMMIT, "commitUrl": url, "success": True}
        self._answer(json.dumps(answer).encode(), Content_Type="application/json")

    def do_HEAD(self) -> None:
        name = self.path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")
        if name not in self.files:
            self.send_error(404)
            return
        content = self.files[name]
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        self._answer(content, ETag=etag, X_Repo_Commit=COMMIT)

    do_GET = do_HEAD


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from huggingface_hub import HfApi, constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    Hub.files, Hub.created = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield HfApi(endpoint=f"http://127.0.0.1:{server.server_port}", token="hf_test")
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_agent_comes_back_from_the_hub(api: Any) -> None:
    agent = model().learn(64)
    evaluation = evaluate_policy(agent, toy(), n_eval_episodes=8, seed=1)
    settings = {"env_id": "Toy-v0", "seeds": [0, 3], "command": "python train.py --seed 0"}
    commit = push_to_hub(agent, REPO, evaluation=evaluation, api=api, **settings)
    assert commit == COMMIT
    (created,) = Hub.created
    assert created["name"] == "agent"
    assert created.get("visibility") == "private" or created.get("private")
    assert set(Hub.files) == {"agent.rlgates", "README.md"}
    path = load_from_hub(REPO, commit, api=api)
    assert torch.equal(parameters(RecurrentPPO.load(path, safe=True)), parameters(agent))

    _, metadata, text = Hub.files["README.md"].decode().split("---\n", 2)
    (entry,) = json.loads(metadata)["model-index"]
    (result,) = entry["results"]
    assert result["metrics"][0]["value"] == evaluation.estimate("return").mean
    for said in (
        "| environment | Toy-v0 |",
        "| core | `ur_lstm` |",
        "| seeds | 0, 3 |",
        f"| return, mean [95 % interval] | {evaluation.estimate('return')} of 8 episodes |",
        "| command | `python train.py --seed 0` |",
        "RecurrentPPO.load(path, safe=True)",
    ):
        assert said in text


def test_a_card_names_the_default_core_of_the_policy() -> None:
    options = {name: value for name, value in SMALL.items() if name != "core"}
    agent = RecurrentA2C("RMAPolicy", rma_env(), policy_kwargs=options, device="cpu")
    one = np.ones(2)
    card = model_card(agent, REPO, "Toy-v0", [0], PolicyEvaluation(one, one, {}), "")
    assert f"| core | `rma` {SMALL['core_kwargs']} |" in card
    assert "# RecurrentA2C with rma on Toy-v0" in card


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:7], COMMIT.upper(), f"{COMMIT}\n"])
def test_only_commits_are_downloaded(revision: str, api: Any) -> None:
    with pytest.raises(ValueError, match="revision must be a commit of 40 hexadecimal digits"):
        load_from_hub(REPO, revision, api=api)


def test_what_cannot_be_shared_is_said_before_the_hub_is_asked(api: Any) -> None:
    agent = model(learning_rate=lambda _: 1e-3)
    evaluation = evaluate_policy(agent, toy(), n_eval_episodes=2, seed=1)
    settings: dict[str, Any] = {"env_id": "Toy-v0", "command": "", "evaluation": evaluation}
    with pytest.raises(ValueError, match="learning_rate"):
        push_to_hub(agent, REPO, seeds=[0], api=api, **settings)
    with pytest.raises(ValueError, match="seeds must be one or more"):
        push_to_hub(agent, REPO, seeds=[], api=api, **settings)
    assert not Hub.created

"""A film of a trained agent: it plays, and below the picture its gates open and close."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from PIL import Image

import rlgates.envs  # noqa: F401 (gymnasium learns the ids)
from rlgates.agents import observe_gates
from rlgates.envs.render import FPS
from rlgates.errors import check_number, check_size
from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.evaluate import evaluation_seed
from rlgates.experiments.film_frames import Episode, Pixels, frames
from rlgates.experiments.manifest import read_config
from rlgates.experiments.play import action_names
from rlgates.experiments.train import AGENTS, Agent

HOLD = 1.5  # seconds that the end of an episode is shown
_COLORS = 256  # of a GIF


def film(folder: Path, out: Path | None = None, episodes: int = 1, fps: float = FPS) -> Path:
    """Let the agent of a finished run play fresh episodes, those of its last evaluation.

    A core without forget gates is filmed without them.

    Args:
        folder: of the run.
        out: file to write, .gif or .mp4, which needs ffmpeg; None: film.gif in the folder.
        episodes: how many, at least 1.
        fps: steps a second.

    Returns:
        the file.

    Raises:
        ValueError: no finished run, another kind of file, no ffmpeg.
    """
    out = folder / "film.gif" if out is None else out
    write = writer(out)
    check_size("episodes", episodes)
    check_number("fps", fps, above=0)
    config, seed = read_config(folder)
    weights = folder / "model.zip"
    if not weights.exists():
        raise ValueError(f"{folder} holds no finished run: it has no model.zip.")
    model = AGENTS[config.algo].load(weights, device="cpu")
    pictures: list[Pixels] = []
    seconds: list[float] = []
    for number, episode in enumerate(record(model, config, seed, episodes), 1):
        title = config.core if episodes == 1 else f"{config.core}  episode {number} of {episodes}"
        shown = list(frames(episode, title))
        pictures += shown
        seconds += [*[1 / fps] * (len(shown) - 1), HOLD]
    out.parent.mkdir(parents=True, exist_ok=True)
    write(pictures, seconds, out)
    return out


def record(model: Agent, config: TrainConfig, seed: int, episodes: int) -> list[Episode]:
    """Fresh episodes of a run's environment; the process's random numbers stay as they were."""
    env = gymnasium.make(config.env, render_mode="rgb_array", **config.env_settings).unwrapped
    first: int | None = evaluation_seed(seed, final=True)
    played = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(episodes):
            played.append(_episode(model, env, config, first))
            first = None
    env.close()
    return played


def _episode(model: Agent, env: Any, config: TrainConfig, seed: int | None) -> Episode:
    policy: Any = model.policy
    names = action_names(config.env, int(env.action_space.n))
    obs, info = env.reset(seed=seed)
    pictures, seen, actions, rewards, phases = [env.render()], [], [], [], []
    state, starts, done = None, np.ones(1, dtype=bool), False
    while not done:
        seen.append(policy.obs_to_tensor(obs)[0])
        phases.append(_phase(env))
        how = config.eval_deterministic
        action, state = model.predict(obs, state, starts, deterministic=how)
        starts = np.zeros(1, dtype=bool)
        obs, reward, terminated, truncated, info = env.step(np.int64(action))
        done = terminated or truncated
        actions.append(names[int(action)])
        rewards.append(float(reward))
        pictures.append(env.render())
    if isinstance(seen[0], dict):
        stacked: Any = {name: torch.stack([one[name] for one in seen]) for name in seen[0]}
    else:
        stacked = torch.stack(seen)
    gates = observe_gates(policy, stacked).forget
    forget = torch.cat(gates, dim=-1)[:, 0].cpu().numpy() if gates else None
    result = {True: "success", False: "failure"}.get(info.get("is_success"), "end")
    return Episode(pictures, actions, rewards, phases, result, forget)


def _phase(env: Any) -> str:
    names = env.task.phase_names if hasattr(env, "task") else ()
    return names[env.phase] if names else ""


def writer(out: Path) -> Callable[[Sequence[Pixels], Sequence[float], Path], None]:
    """What writes pictures, with the seconds that each is shown, into a file of this name.

    Raises:
        ValueError: another kind of file, or no ffmpeg for an MP4.
    """
    if out.suffix == ".gif":
        return write_gif
    if out.suffix != ".mp4":
        raise ValueError(f"a film is a .gif or an .mp4, got {str(out)!r}.")
    if shutil.which("ffmpeg") is None:
        raise ValueError("an .mp4 needs ffmpeg, which is not on the path; a .gif needs nothing.")
    return write_mp4


def write_gif(pictures: Sequence[Pixels], seconds: Sequence[float], out: Path) -> None:
    """An animated GIF that goes round and round."""
    coded = [
        picture.astype(np.uint32) @ np.array([1, 256, 65536], np.uint32) for picture in pictures
    ]
    palette = np.unique(np.concatenate([np.unique(codes) for codes in coded]))
    if len(palette) <= _COLORS:
        colors = palette.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
        images = [
            Image.fromarray(np.searchsorted(palette, codes).astype(np.uint8)) for codes in coded
        ]
        for image in images:
            image.putpalette(colors)
    else:
        images = [Image.fromarray(picture) for picture in pictures]
        model = images[0].quantize(_COLORS)
        images = [image.quantize(palette=model, dither=Image.Dither.NONE) for image in images]
    times = [round(1000 * time) for time in seconds]
    images[0].save(out, save_all=True, append_images=images[1:], duration=times, loop=0)


def write_mp4(pictures: Sequence[Pixels], seconds: Sequence[float], out: Path) -> None:
    """A film by the program ffmpeg.

    Raises:
        ValueError: ffmpeg failed; its last words are told.
    """
    height, width, _ = pictures[0].shape
    shortest = min(seconds)
    command = ["ffmpeg", "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", f"{1 / shortest:.6g}", "-i", "-"]
    # Most players want an even size, and colours at half the resolution.
    command += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stderr is not None
        try:
            for picture, time in zip(pictures, seconds, strict=True):
                program.stdin.write(picture.tobytes() * round(time / shortest))
            program.stdin.close()
        except BrokenPipeError:
            pass  # it has failed, and says why
        words = program.stderr.read().decode(errors="replace").strip().splitlines()
    if program.returncode:
        raise ValueError(f"ffmpeg failed: {words[-1] if words else 'without a word'}")

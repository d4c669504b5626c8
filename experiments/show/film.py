"""Film a trained agent: the frames of an episode, with its forget gates below."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from PIL import Image
from stable_baselines3.common.vec_env import DummyVecEnv

import rlgates.envs  # noqa: F401 (gymnasium learns the ids)
from rlgates.agents import trace_gates
from rlgates.envs.render.frames import FPS
from rlgates.errors import check_number, check_size
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.runs.agent.evaluate import evaluation_seed
from rlgates.experiments.runs.files import check_folder
from rlgates.experiments.runs.gym.envs import Replay
from rlgates.experiments.runs.load import LoadedRun, load_run
from rlgates.experiments.show.film_frames import Episode, Pixels, frames
from rlgates.experiments.show.play import action_names

HOLD = 1.5  # seconds that the end of an episode is shown
MIN_WIDTH = 300  # pixels, for the text below an image
_COLORS = 256  # of a GIF


def film(
    folder: Path,
    out: Path | None = None,
    episodes: int = 1,
    fps: float = FPS,
    best: bool = False,
) -> Path:
    """Film the agent of a finished run on the episodes of its final evaluation.

    Args:
        folder: run folder.
        out: file to write, .gif or .mp4 (needs ffmpeg); None: film.gif in the folder.
        episodes: number of episodes, at least 1.
        fps: steps per second.
        best: the agent of the best evaluation during training, not the last one.

    Returns:
        the file.

    Raises:
        ValueError: no finished run, an unsupported file type, no ffmpeg, an environment without
            images or without the package that draws them, or a folder that cannot be written to.
    """
    out = folder / "film.gif" if out is None else out
    write = writer(out)
    check_size("episodes", episodes)
    check_number("fps", fps, above=0)
    check_folder("out", out.parent)
    run = load_run(folder, best)
    plural = "s" * (episodes > 1)
    print(f"filming {episodes} episode{plural} of {folder} ...", file=sys.stderr, flush=True)
    config = run.config
    film_frames: list[Pixels] = []
    seconds: list[float] = []
    for number, episode in enumerate(record(run, episodes), 1):
        title = config.core if episodes == 1 else f"{config.core}  episode {number} of {episodes}"
        episode_frames = list(frames(episode, title))
        film_frames += episode_frames
        seconds += [*[1 / fps] * (len(episode_frames) - 1), HOLD]
    out.parent.mkdir(parents=True, exist_ok=True)
    write(film_frames, seconds, out)
    return out


def record(run: LoadedRun, episodes: int) -> list[Episode]:
    """Record fresh episodes; the global random state is left unchanged."""
    env, normalize = _env(run)
    env_seed: int | None = evaluation_seed(run.seed, final=True)
    recorded = []
    with torch.random.fork_rng():
        torch.manual_seed(run.seed)
        for _ in range(episodes):
            recorded.append(_record_episode(run, env, normalize, env_seed))
            env_seed = None
    env.close()
    return recorded


def _env(run: LoadedRun) -> tuple[Any, Callable[[Any], Any]]:
    """The environment with images, and what to do with its observations."""
    config = run.config
    if isinstance(config, AgentConfig) or config.is_batched:
        env: Any = gymnasium.make(config.env, render_mode="rgb_array", **config.env_settings)
        env = env.unwrapped
    else:
        with closing(config.make_env()) as blind:
            if "rgb_array" not in blind.metadata.get("render_modes", ()):
                raise ValueError(f"{config.env} renders no images: it has no mode 'rgb_array'.")
        env = Replay(config.make_env("rgb_array"))
    if isinstance(config, AgentConfig) or not config.normalize:
        return env, lambda obs: obs
    normalized: Any = run.normalized(DummyVecEnv([lambda: env]))
    return env, normalized.normalize_obs


def _record_episode(
    run: LoadedRun, env: Any, normalize: Callable[[Any], Any], seed: int | None
) -> Episode:
    policy: Any = run.model.policy
    base = env.unwrapped
    discrete = isinstance(env.action_space, spaces.Discrete)
    names = action_names(run.config.env, int(env.action_space.n)) if discrete else ()
    phase_names = getattr(base, "phase_names", ())
    obs, info = env.reset(seed=seed)
    images, observations, actions, rewards, phases = [_image(env)], [], [], [], []
    state, episode_starts, done = None, np.ones(1, dtype=bool), False
    while not done:
        obs = normalize(obs)
        observations.append(policy.obs_to_tensor(obs)[0])
        phases.append(phase_names[base.phase] if phase_names else "")
        action, state = run.model.predict(
            obs, state, episode_starts, deterministic=run.config.eval_deterministic
        )
        episode_starts = np.zeros(1, dtype=bool)
        obs, reward, terminated, truncated, info = env.step(
            np.int64(action) if discrete else action
        )
        done = terminated or truncated
        actions.append(names[int(action)] if discrete else _action_text(action))
        rewards.append(float(reward))
        images.append(_image(env))
    if isinstance(observations[0], dict):
        stacked: Any = {
            name: torch.stack([obs[name] for obs in observations]) for name in observations[0]
        }
    else:
        stacked = torch.stack(observations)
    gates = trace_gates(policy, stacked).forget
    forget = torch.cat(gates, dim=-1)[:, 0].cpu().numpy() if gates else None
    result = {True: "success", False: "failure"}.get(info.get("is_success"), "end")
    return Episode(images, actions, rewards, phases, result, forget)


def _image(env: Any) -> Pixels:
    """The rendered environment, at least `MIN_WIDTH` pixels wide."""
    try:
        image = env.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"{env.unwrapped} has no images here: {error}") from error
    if not (isinstance(image, np.ndarray) and image.ndim == 3):
        raise ValueError(f"{env} has no images: it does not render 'rgb_array'.")
    factor = -(-MIN_WIDTH // image.shape[1])
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def _action_text(action: Any) -> str:
    return " ".join(f"{value:.2g}" for value in np.ravel(action))


def writer(out: Path) -> Callable[[Sequence[Pixels], Sequence[float], Path], None]:
    """The function that writes frames, each with its duration in seconds, to such a file.

    Raises:
        ValueError: an unsupported file type, or no ffmpeg for an MP4.
    """
    if out.suffix == ".gif":
        return write_gif
    if out.suffix != ".mp4":
        raise ValueError(f"a film is a .gif or an .mp4, got {str(out)!r}.")
    if shutil.which("ffmpeg") is None:
        raise ValueError("an .mp4 needs ffmpeg, which is not on the path; a .gif needs nothing.")
    return write_mp4


def write_gif(frames: Sequence[Pixels], seconds: Sequence[float], out: Path) -> None:
    """Write an animated GIF that loops."""
    rgb_bases = np.array([1, 256, 65536], np.uint32)
    coded = [frame.astype(np.uint32) @ rgb_bases for frame in frames]
    palette = np.unique(np.concatenate([np.unique(codes) for codes in coded]))
    if len(palette) <= _COLORS:
        colors = palette.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
        images = [
            Image.fromarray(np.searchsorted(palette, codes).astype(np.uint8)) for codes in coded
        ]
        for image in images:
            image.putpalette(colors)
    else:
        images = [Image.fromarray(frame) for frame in frames]
        model = images[0].quantize(_COLORS)
        images = [image.quantize(palette=model, dither=Image.Dither.NONE) for image in images]
    times = [round(1000 * time) for time in seconds]
    images[0].save(out, save_all=True, append_images=images[1:], duration=times, loop=0)


def write_mp4(frames: Sequence[Pixels], seconds: Sequence[float], out: Path) -> None:
    """Write an MP4 with ffmpeg.

    Raises:
        ValueError: ffmpeg failed; the message ends with its last line.
    """
    height, width, _ = frames[0].shape
    shortest = min(seconds)
    command = ["ffmpeg", "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", f"{1 / shortest:.6g}", "-i", "-"]
    # Most players need even sizes and 4:2:0 colours.
    command += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stderr is not None
        try:
            for frame, time in zip(frames, seconds, strict=True):
                program.stdin.write(frame.tobytes() * round(time / shortest))
            program.stdin.close()
        except BrokenPipeError:
            pass  # ffmpeg failed; stderr has the reason
        lines = program.stderr.read().decode(errors="replace").strip().splitlines()
    if program.returncode:
        raise ValueError(f"ffmpeg failed: {lines[-1] if lines else 'no message'}")

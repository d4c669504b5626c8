"""The window of the human mode, with SDL's dummy driver in place of a screen."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import rlgates.envs  # noqa: F401
from rlgates.envs.render import window
from rlgates.envs.render.window import Window, WindowClosed

pygame = pytest.importorskip("pygame")

ID = "rlgates/PassiveMatch-v0"


@pytest.fixture(autouse=True)
def _no_screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    yield
    pygame.display.quit()


def shown() -> np.ndarray:
    """What the window shows, (height, width, 3)."""
    surface = pygame.display.get_surface()
    pixels = np.frombuffer(pygame.image.tobytes(surface, "RGB"), np.uint8)
    return pixels.reshape(surface.get_height(), surface.get_width(), 3)


def frame(height: int, width: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(height, width, 3), dtype=np.uint8)


def press(*keys: int) -> None:
    for key in keys:
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))


def test_it_shows_each_image_in_its_size() -> None:
    one = Window("A title", fps=None)
    for k, size in enumerate(((30, 40), (30, 40), (50, 20))):
        one.show(frame(*size, k))
        np.testing.assert_array_equal(shown(), frame(*size, k))
    assert pygame.display.get_caption()[0] == "A title"
    one.close()
    assert pygame.display.get_surface() is None
    one.close()  # nothing is left to be closed
    one.show(frame(9, 9))
    np.testing.assert_array_equal(shown(), frame(9, 9))


def test_views_of_an_array_are_shown_as_they_are() -> None:
    whole = frame(40, 40)
    Window("", fps=None).show(whole[5:20:2, ::-3])
    np.testing.assert_array_equal(shown(), whole[5:20:2, ::-3])


def test_a_window_closed_by_the_user_says_so() -> None:
    one = Window("", fps=None)
    one.show(frame(20, 20))
    for ask in (lambda: one.show(frame(20, 20)), one.pressed):
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        with pytest.raises(WindowClosed, match=r"the window was closed\."):
            ask()
        assert pygame.display.get_surface() is None
        one.show(frame(20, 20))  # it opens again


def test_keys_have_names_and_are_queued() -> None:
    one = Window("", fps=None)
    one.show(frame(20, 20))
    press(pygame.K_LEFT, pygame.K_a)
    pygame.event.post(pygame.event.Event(pygame.KEYUP, key=pygame.K_b))
    press(pygame.K_3, pygame.K_KP3, pygame.K_ESCAPE)
    one.show(frame(20, 20))  # looks for the closing of the window, and leaves the keys
    assert one.pressed() == ["left", "a", "3", "[3]", "escape"]


def test_images_are_shown_at_the_frame_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(window.time, "sleep", sleep)
    monkeypatch.setattr(window.time, "monotonic", lambda: now[0])
    one = Window("", fps=4)
    for between in (0.0, 0.1, 7.0):
        one.show(frame(20, 20))
        now[0] += between
    one.show(frame(20, 20))
    assert slept == pytest.approx([0, 0.25, 0.15, 0])
    with pytest.raises(ValueError, match="fps must be finite and above 0, got 0"):
        Window("", fps=0)


def test_without_a_screen_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    # SDL falls back to this driver by itself, and everything would seem to work.
    monkeypatch.delenv("SDL_VIDEODRIVER")
    monkeypatch.setattr(pygame.display, "init", lambda: None)
    monkeypatch.setattr(pygame.display, "get_driver", lambda: "offscreen")
    with pytest.raises(
        RuntimeError,
        match=r"no window can be opened \(offscreen\): is there a .* SDL_VIDEODRIVER=dummy",
    ):
        Window("").show(frame(20, 20))


@pytest.mark.parametrize("driver", ["dummy", "offscreen"])
def test_the_checker_of_gymnasium_passes_without_a_screen(
    monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", driver)
    check_env(gymnasium.make("rlgates/RepeatFirst-v0", render_mode="rgb_array").unwrapped)


def test_without_pygame_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ImportError, match=r'pip install "rlgates\[play\]"'):
        Window("")


def test_human_mode_shows_what_rgb_array_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window.time, "sleep", lambda _: None)
    env = gymnasium.make(ID, render_mode="human")
    other = gymnasium.make(ID, render_mode="rgb_array")
    env.reset(seed=5)
    other.reset(seed=5)
    np.testing.assert_array_equal(shown(), other.render())
    for action in (0, 1):
        env.step(action)
        other.step(action)
        np.testing.assert_array_equal(shown(), other.render())
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    with pytest.raises(WindowClosed):
        env.step(0)
    env.close()

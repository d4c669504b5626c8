"""A window on the screen, for `render_mode="human"` and for playing; needs pygame."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

from rlgates.envs.engine.arrays import Array
from rlgates.envs.render.frames import FPS
from rlgates.errors import check_number


class WindowClosed(RuntimeError):
    """The user closed the window."""


class Window:
    """Shows images one after the other; opens with the first one.

    pygame has one window for a process: two of these objects take turns in it.

    Args:
        title: of the window.
        fps: images a second at most; `show` waits for that. None: as fast as they come.

    Raises:
        ImportError: pygame is not installed. ValueError, TypeError: unusable `fps`.
    """

    def __init__(self, title: str, fps: float | None = FPS) -> None:
        self.title = title
        self.fps = None if fps is None else check_number("fps", fps, above=0)
        self._pygame = _pygame()
        self._next_time = 0.0

    def show(self, image: Array) -> None:
        """Show an image, uint8 (height, width, 3), in a window of its size.

        Raises:
            WindowClosed: the user closed the window since the last image.
            RuntimeError: there is no screen.
        """
        pygame, size = self._pygame, (image.shape[1], image.shape[0])
        self._fit(size)
        if pygame.event.get(pygame.QUIT):
            self._closed()
        if self.fps is not None:
            time.sleep(max(0.0, self._next_time - time.monotonic()))
            self._next_time = time.monotonic() + 1 / self.fps
        surface = pygame.image.frombuffer(image.tobytes(), size, "RGB")
        pygame.display.get_surface().blit(surface, (0, 0))
        pygame.display.flip()

    def pressed(self) -> list[str]:
        """Wait for a key, and give the names of those pressed: "a", "1", "left" or "escape".

        Raises:
            WindowClosed: the user closed the window.
        """
        pygame = self._pygame
        while True:
            events = [pygame.event.wait(100), *pygame.event.get()]  # not longer, for Ctrl-C
            if any(event.type == pygame.QUIT for event in events):
                self._closed()
            keys = [event.key for event in events if event.type == pygame.KEYDOWN]
            if keys:
                return [pygame.key.name(key) for key in keys]

    def close(self) -> None:
        """Close the window, if it is open."""
        self._pygame.display.quit()

    def _fit(self, size: tuple[int, int]) -> None:
        """Open the window, or give it another size."""
        pygame = self._pygame
        surface = pygame.display.get_surface()
        if surface is not None and surface.get_size() == size:
            return
        try:
            pygame.display.init()
            # Where there is no screen SDL goes on without one, and nobody would see anything.
            if pygame.display.get_driver() == "offscreen" and "SDL_VIDEODRIVER" not in os.environ:
                pygame.display.quit()
                raise pygame.error("offscreen")
            pygame.display.set_mode(size)
        except pygame.error as error:
            raise RuntimeError(
                f"no window can be opened ({error}): is there a screen? To go on without one, for "
                "example in gymnasium's check_env, set SDL_VIDEODRIVER=dummy in the environment."
            ) from error
        pygame.display.set_caption(self.title)
        pygame.key.set_repeat(300, 80)  # milliseconds: a key held down walks on

    def _closed(self) -> None:
        self.close()
        raise WindowClosed("the window was closed.")


def _pygame() -> Any:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it would greet on the terminal
    try:
        return importlib.import_module("pygame")
    except ImportError as error:
        raise ImportError(
            f'pygame cannot be imported ({error}): pip install "rlgates[play]"'
        ) from error

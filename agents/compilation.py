"""What an agent computes again and again, as graphs of `torch.compile`.

A graph is made for one shape; other shapes, such as a last minibatch with fewer sequences, run
without. The cores stay in native code or in Triton, whose operators graphs contain.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch

from rlgates.errors import check_choice

CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
"""The modes of `torch.compile`; "reduce-overhead" and "max-autotune" record CUDA graphs."""

_CUDA_GRAPHS = "triton.cudagraphs"


def records_graphs(option: bool | CompileMode) -> bool:
    """Whether this is a mode that records CUDA graphs."""
    return isinstance(option, str) and _CUDA_GRAPHS in _inductor().list_mode_options(option)


def check_compile(option: Any) -> bool | CompileMode:
    """The argument `compile` of an agent.

    Raises:
        TypeError, ValueError: it is neither a bool nor a mode of torch.compile.
    """
    if isinstance(option, bool):
        return option
    modes = get_args(CompileMode)
    if not isinstance(option, str):
        raise TypeError(
            f"compile must be True, False or one of {', '.join(modes)}, got {option!r} "
            f"({type(option).__name__})."
        )
    name: Any = option
    mode: CompileMode = check_choice("compile", name, modes)
    return mode


class Compiled:
    """A function as a graph of torch.compile, made when it is first called.

    Where this machine cannot compile, such as without a C++ compiler, it warns once and runs the
    function as it is, which computes the same.

    Args:
        function: of tensors, modules and named tuples; a call without a graph break. Python floats
            among its arguments would be constants of the graph: see `as_tensors`.
        mode: of torch.compile; True for "default".
        warm_up: before the graph is made, call the function once for what it keeps, such as tables;
            it must be pure otherwise.

    Raises:
        ValueError: at the first call, where the function cannot be one graph.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        mode: Literal[True] | CompileMode,
        warm_up: bool = False,
    ) -> None:
        self.function, self.mode, self.warm_up = function, mode, warm_up
        options = _inductor().list_mode_options("default" if mode is True else mode)
        self._run: Callable[..., Any] = torch.compile(
            _with_own_code(function),
            fullgraph=True,
            dynamic=False,
            options={
                **options,
                # Random numbers are those of eager calls: the same seed, the same actions.
                "fallback_random": True,
                # Those of `Recorded` hold several of these graphs, and the steps between them.
                _CUDA_GRAPHS: False,
            },
        )
        self._is_new = True

    @property
    def works(self) -> bool:
        """Whether calls run a graph, as far as is known."""
        return self._run is not self.function

    def __call__(self, *args: Any) -> Any:
        return self._first(args) if self._is_new else self._run(*args)

    def _first(self, args: tuple[Any, ...]) -> Any:
        # Here, because importing them takes a second and turns off the checks of distributions.
        from torch._dynamo.exc import TorchDynamoException, Unsupported
        from torch._inductor.exc import InductorError

        self._is_new = False
        if self.warm_up:
            self.function(*args)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, about its own code
                return self(*args)
        except Unsupported as error:
            self._is_new = True
            raise ValueError(
                f"compile={self.mode!r} needs {_name(self.function)} to be one graph, without "
                f"breaks: {_first_line(error)} Leave compile out to train without."
            ) from error
        except (TorchDynamoException, InductorError) as error:
            warnings.warn(
                f"compile={self.mode!r} has no effect, training goes on without: torch.compile "
                f"does not work here ({_first_line(error)}).",
                stacklevel=3,
            )
            self._run = self.function
            return self(*args)


def _inductor() -> Any:
    import torch._inductor

    return torch._inductor


def as_tensors(numbers: Any, device: torch.device) -> Any:
    """A named tuple with its floats as scalars on the device, which a graph does not fix."""
    return type(numbers)(
        *(
            torch.full((), value, device=device) if isinstance(value, float) else value
            for value in numbers
        )
    )


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function: torch counts the graphs of a code object, of all agents together."""
    bound = getattr(function, "__self__", None)
    plain: Any = getattr(function, "__func__", function)
    copy = types.FunctionType(
        plain.__code__.replace(),
        plain.__globals__,
        plain.__name__,
        plain.__defaults__,
        plain.__closure__,
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    return copy if bound is None else types.MethodType(copy, bound)


def _name(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    return function.__name__ if owner is None else f"{type(owner).__name__}.{function.__name__}"


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].removesuffix(".") + "."

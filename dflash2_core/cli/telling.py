"""What is being done, told while a user waits for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


@contextmanager
def saying(console: Console, doing: str) -> Iterator[Callable[[str], None]]:
    """`doing`, and what the yielded function is told next: in one place of a terminal, elsewhere a line each."""
    if console.is_terminal:
        with console.status(escape(doing)) as status:
            yield lambda next_: status.update(escape(next_))
        return

    def line(what: str) -> None:
        console.print(f"{what} ...", markup=False, highlight=False, soft_wrap=True)

    line(doing)
    yield line

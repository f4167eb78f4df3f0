"""What pictures in a terminal are drawn with, and what stands for it where a terminal can't show it."""

from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

SPARKS: Final = "▁▂▃▄▅▆▇█"
FULL, MAY, DOT = "█", "░", "●"
# One for each part of a bar, so that it can be read without colours.
PARTS: Final = "█▓▒▚░▖"
_IN_ASCII: Final = str.maketrans(f"{SPARKS}▓▒▚{MAY}▖{DOT}…", "_.,-~=+#%+/.x*.")


@dataclass(frozen=True, slots=True)
class Legible:
    """What is in it, in letters that the console's encoding has: a picture must not end a program."""

    inner: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.inner, options):
            if segment.control or not options.ascii_only:
                yield segment
            else:
                text = segment.text.translate(_IN_ASCII).encode(options.encoding, "replace")
                yield Segment(text.decode(options.encoding), segment.style)

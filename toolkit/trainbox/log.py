"""trainbox's own lines, on standard error, without secrets."""

from __future__ import annotations

import os

from trainbox.masking import Mask
from trainbox.values import TYPE_CHECKING

if TYPE_CHECKING:
    from trainbox.output import Sink

INFO, WARNING, ERROR = 20, 30, 40


class Log:
    """Writes one line a call. While the script runs, lines go through the sink of its standard error.

    line_open: whether the script's last line there has no end yet.
    """

    def __init__(self) -> None:
        self.level = INFO
        self.host = ""
        self.mask = Mask()
        self.sink: Sink | None = None
        self.line_open = False

    def __call__(self, text: str, level: int = INFO) -> None:
        if level < self.level:
            return
        words = {WARNING: "warning: ", ERROR: "error: "}.get(level, "")
        head = f"trainbox {self.host}: " if self.host else "trainbox: "
        data = "".join(f"{head}{words}{line}\n" for line in self.mask.text(text).splitlines()).encode(
            "utf-8", "backslashreplace"
        )
        if self.sink:
            self.sink.line(self, data, complete=True)
            return
        if self.line_open:
            data, self.line_open = b"\n" + data, False
        try:
            os.write(2, data)
        except OSError:
            pass  # nobody reads us

    def warning(self, text: str) -> None:
        self(text, WARNING)

    def error(self, text: str) -> None:
        self(text, ERROR)

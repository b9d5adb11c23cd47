"""The one tree of errors: an exit code, who is to blame, a sentence, and the next step."""

from __future__ import annotations


class TrainboxError(Exception):
    """A failure that a person can act on.

    sentence: what is wrong, with the file, key or name it is about.
    next_step: what to do about it; may be empty.
    """

    exit_code = 70
    blame = "toolkit"

    def __init__(self, sentence: str, next_step: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.sentence}; {self.next_step}" if self.next_step else self.sentence


class UserError(TrainboxError):
    """The job as it was asked for cannot run. Exit code 2: the script was never started."""

    exit_code = 2
    blame = "user"


class InstallError(UserError):
    """The script's requirements could not be installed. Exit code 2."""


class PlatformError(TrainboxError):
    """What the platform should have provided is not there (peers, names, files). Exit code 69."""

    exit_code = 69
    blame = "platform"


class ToolkitError(TrainboxError):
    """A fault of trainbox itself. Exit code 70."""

"""Our named tuples beside those of `typing`, whose place they take."""

from __future__ import annotations

import copy
import pickle
import typing

import pytest

from trainbox import values


class Ours(values.NamedTuple):
    """A point."""

    x: int
    y: int = 2

    @property
    def sum(self) -> int:
        return self.x + self.y


class Theirs(typing.NamedTuple):
    """A point."""

    x: int
    y: int = 2

    @property
    def sum(self) -> int:
        return self.x + self.y


@pytest.mark.parametrize("kind", [Ours, Theirs])
class TestNamedTuple:
    def test_fields_defaults_and_methods(self, kind):
        assert kind(1) == kind(x=1) == kind(1, 2) == kind(1, y=2) == (1, 2)
        assert (kind(1).x, kind(1).y, kind(1).sum) == (1, 2, 3)
        assert kind._fields == ("x", "y")
        assert kind._field_defaults == {"y": 2}
        assert kind.__doc__ == "A point."
        assert hash(kind(1)) == hash((1, 2))

    def test_copies(self, kind):
        assert kind(1)._replace(y=5) == (1, 5)
        assert kind(1)._asdict() == {"x": 1, "y": 2}
        assert type(kind(1)._replace(x=3)) is kind
        for again in (pickle.loads(pickle.dumps(kind(1, 3))), copy.deepcopy(kind(1, 3))):
            assert again == (1, 3)
            assert type(again) is kind

    def test_it_cannot_be_changed(self, kind):
        with pytest.raises(AttributeError):
            kind(1).x = 2
        with pytest.raises(AttributeError):
            kind(1).z = 2

    @pytest.mark.parametrize(
        ("given", "named"),
        [((), {}), ((1, 2, 3), {}), ((1,), {"z": 3}), ((1, 2, 3), {"y": 1}), ((1,), {"x": 2})],
    )
    def test_wrong_arguments(self, kind, given, named):
        with pytest.raises(TypeError):
            kind(*given, **named)

    def test_text(self, kind):
        assert repr(kind(1)) == f"{kind.__name__}(x=1, y=2)"

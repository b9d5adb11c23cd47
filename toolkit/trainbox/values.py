"""`NamedTuple` and `TYPE_CHECKING` for the launch path, where those of `typing` would take 10 ms."""

from __future__ import annotations

from operator import itemgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Meta(type):
        """Makes a tuple of the names that a class statement annotates, with its values as defaults."""

        def __new__(cls, name, bases, body):
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body.pop(field) for field in fields if field in body}
            body |= {field: property(itemgetter(index)) for index, field in enumerate(fields)}
            body |= {"__slots__": (), "_fields": fields, "_field_defaults": defaults}
            return super().__new__(cls, name, bases, body)

    class NamedTuple(tuple, metaclass=_Meta):
        """As `typing.NamedTuple`, as far as it is used here."""

        def __new__(cls, *values, **named):
            if named or len(values) != len(cls._fields):
                given = dict(zip(cls._fields, values, strict=False))
                filled = {**cls._field_defaults, **given, **named}
                twice = given.keys() & named.keys()
                if twice or len(values) > len(cls._fields) or filled.keys() != set(cls._fields):
                    raise TypeError(f"{cls.__name__} takes {', '.join(cls._fields)}, each once")
                values = [filled[field] for field in cls._fields]
            return tuple.__new__(cls, values)

        def __repr__(self):
            return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._asdict().items())})"

        def __getnewargs__(self):
            return tuple(self)

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **changes):
            return type(self)(**{**self._asdict(), **changes})

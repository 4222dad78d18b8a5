from __future__ import annotations

import inspect

from outrider import errors


def test_every_error_is_one_of_ours_public_and_drawn_in_the_tree() -> None:
    found = {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert set(found) == set(errors.__all__)
    for name, error in found.items():
        assert issubclass(error, errors.OutriderError)
        assert name in (errors.__doc__ or "")

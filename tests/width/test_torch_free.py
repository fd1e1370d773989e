"""Whoever only reads records or predicts a width never pays for torch."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "imports",
    ["cast", "cast.errors, cast.width", "cast.experiments.records, cast.experiments.statistics"],
)
def test_imports_without_torch(imports):
    code = f"import sys, {imports}; sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_the_package_names_what_it_exports_and_nothing_else():
    import cast

    assert set(cast.__all__) <= set(dir(cast))
    assert cast.width.predict_width is not None
    assert issubclass(cast.CastError, Exception)
    with pytest.raises(AttributeError, match="no attribute 'widht'"):
        _ = cast.widht

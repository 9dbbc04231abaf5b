"""Rows of the catalogue that no kernel test reaches: the list is kept honest, on any machine."""

import pytest
from kernel_calls import WITHOUT_KERNELS

import gnomon as gn
from gnomon.dsl.errors import UnsupportedError


@pytest.mark.parametrize("name", sorted(WITHOUT_KERNELS))
def test_rows_that_have_no_kernels_say_so(name: str) -> None:
    """A row that gets kernels leaves the list, and is tested."""
    with pytest.raises(UnsupportedError):
        gn.compile(gn.catalogue.find(name))

"""The preallocated cache: what it holds, and that it never grows past its capacity."""

import pytest
import torch

from cast.errors import CastError
from cast.models import KVCache


@pytest.fixture
def cache():
    return KVCache(layers=2, kv_heads=3, head_dim=4, capacity=6, dtype=torch.float32, device=torch.device("cpu"))


def pack(n, value):
    return torch.full((n, 3, 4), float(value)), torch.full((n, 3, 4), -float(value))


def test_a_pack_is_visible_but_not_committed(cache):
    keys, values = cache.write(0, *pack(2, 1))
    assert keys.shape == values.shape == (3, 2, 4)
    assert cache.length == 0
    keys, _ = cache.write(0, *pack(3, 2))
    assert keys.shape == (3, 3, 4)
    assert (keys == 2).all()


def test_write_returns_views_of_prefix_and_pack(cache):
    cache.write(0, *pack(2, 1))
    cache.commit(2)
    keys, values = cache.write(0, *pack(1, 5))
    assert keys[:, :, 0].tolist() == [[1.0, 1.0, 5.0]] * 3
    assert values[:, :, 0].tolist() == [[-1.0, -1.0, -5.0]] * 3
    assert keys.untyped_storage().data_ptr() == cache.keys.untyped_storage().data_ptr()


def test_two_writes_make_one_pack(cache):
    cache.write(1, *pack(2, 1))
    keys, _ = cache.write(1, *pack(2, 2), offset=2)
    assert keys[0, :, 0].tolist() == [1.0, 1.0, 2.0, 2.0]
    cache.commit(2)
    assert cache.length == 2


def test_exactly_full_is_allowed_and_one_more_is_refused(cache):
    cache.write(0, *pack(6, 1))
    cache.commit(4)
    cache.write(0, *pack(2, 1))
    for too_many, offset in ((3, 0), (1, 2), (7, 0)):
        with pytest.raises(CastError, match="allocated") as error:
            cache.write(0, *pack(too_many, 1), offset=offset)
        assert "\n" not in str(error.value)
    assert cache.length == 4


def test_layers_do_not_mix(cache):
    cache.write(0, *pack(1, 1))
    cache.write(1, *pack(1, 2))
    assert (cache.keys[0, :, 0] == 1).all()
    assert (cache.keys[1, :, 0] == 2).all()

"""Draws are a pure function of (seed, position, purpose), the same on every device."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash2_core.sampling import Purpose, RandomStreams, streams
from dflash2_core.sampling.streams import philox4x32

INT64 = st.integers(-(2**63), 2**63 - 1)

# Known answers of philox4x32-10 in Random123's kat_vectors.
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
@pytest.mark.parametrize("words", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_philox_gives_the_known_answers(counter, key, answer, words) -> None:
    found = philox4x32(tuple(words([c]) for c in counter), tuple(words([k]) for k in key))
    assert [int(word[0]) for word in found] == answer


def test_the_known_answers_see_a_missing_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_ROUNDS", 9)
    counter, key, answer = KNOWN_ANSWERS[2]
    found = philox4x32(tuple(np.array([c]) for c in counter), tuple(np.array([k]) for k in key))
    assert [int(word[0]) for word in found] != answer


@settings(max_examples=40)
@given(st.lists(st.tuples(INT64, st.integers(0, 2**63 - 1)), min_size=1, max_size=8), st.sampled_from(list(Purpose)))
def test_a_draw_depends_on_its_own_seed_position_and_purpose_alone(keys, purpose: Purpose) -> None:
    seeds, positions = torch.tensor(keys).unbind(1)
    together = RandomStreams(seeds).uniform(positions, purpose)
    backwards = RandomStreams(seeds.flip(0)).uniform(positions.flip(0)[:, None], str(purpose))[:, 0].flip(0)
    alone = [RandomStreams(seed).uniform(torch.tensor([position]), purpose).item() for seed, position in keys]
    assert torch.equal(together, backwards)
    assert together.tolist() == alone
    assert together.dtype == torch.float64
    assert ((together >= 0) & (together < 1)).all()


@settings(max_examples=40)
@given(INT64, st.integers(0, 2**63 - 1))
def test_numpy_and_torch_draw_the_same_bits(seed: int, position: int) -> None:
    seeds, positions = torch.tensor([[seed]]), torch.tensor([[position, position ^ 1, 0]])
    for code in range(len(Purpose)):
        by_numpy = streams._mantissa(seeds.numpy(), positions.numpy(), code)
        assert torch.from_numpy(by_numpy).equal(streams._mantissa(seeds, positions, code))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_an_accelerator_draws_the_same_bits() -> None:
    seeds, positions = torch.arange(-50, 50), torch.arange(10_000).view(100, 100) * 2**40
    on_device = RandomStreams(seeds.cuda()).uniform(positions.cuda(), Purpose.ACCEPT)
    assert on_device.is_cuda
    assert on_device.cpu().equal(RandomStreams(seeds).uniform(positions, Purpose.ACCEPT))


def test_a_seed_of_more_than_63_bits_is_taken_bit_by_bit() -> None:
    position = torch.tensor([5])
    high, negative = (RandomStreams(seed).uniform(position, "draft") for seed in (2**64 - 3, -3))
    assert high.equal(negative)
    assert not high.equal(RandomStreams(3).uniform(position, "draft"))


def test_one_seed_serves_all_rows() -> None:
    positions = torch.arange(12).view(4, 3)
    assert RandomStreams(9).uniform(positions, "bonus").equal(RandomStreams(torch.full((4,), 9)).uniform(positions, "bonus"))


def test_seeds_positions_and_purposes_all_tell_draws_apart() -> None:
    positions = torch.arange(500).expand(20, 500)
    values = torch.stack([RandomStreams(torch.arange(20)).uniform(positions, purpose) for purpose in Purpose])
    assert len(values.unique()) == values.numel()


def test_draws_are_uniform_and_those_of_neighbouring_keys_uncorrelated() -> None:
    u = RandomStreams(torch.arange(400)).uniform(torch.arange(500).expand(400, 500), "accept")
    counts = torch.histc(u, bins=100, min=0, max=1)
    assert ((counts - 2000) ** 2 / 2000).sum() < 180  # 99 degrees of freedom, 1 in 10**6
    centred = u - 0.5
    for neighbour in (centred.roll(1, 0), centred.roll(1, 1)):
        assert (centred * neighbour).mean().abs() * 12 < 0.01


def test_an_unknown_purpose_is_no_purpose() -> None:
    with pytest.raises(ValueError, match="prefill"):
        RandomStreams(1).uniform(torch.tensor([0]), "prefill")

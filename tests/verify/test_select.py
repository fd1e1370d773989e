"""Greedy and sampled selection: the arg-max, the law, the processor, NaN."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chisquare

from cast.errors import CastError
from cast.trees import CandidateTree, chain_tree
from cast.verify import GreedySelector, RecursiveSelector, SampledSelector, walk

NAN = float("nan")


def never():
    raise AssertionError("the history was asked for without a processor")


class OnAnotherDevice:
    """CPU logits that say they live elsewhere, to take the branch of one device-to-host copy."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, logits):
        self._logits = logits

    def max(self, dim):
        return self._logits.max(dim=dim)


@pytest.fixture(params=[lambda logits: logits, OnAnotherDevice], ids=["cpu", "copied"])
def placed(request):
    return request.param


def test_greedy_is_the_arg_max_of_each_row(placed):
    logits = torch.randn(6, 11, generator=torch.Generator().manual_seed(0))
    select = GreedySelector().over(placed(logits), never)
    assert [select(row, [], {}) for row in range(6)] == logits.argmax(-1).tolist()


def test_greedy_ties_are_the_same_on_both_branches():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]] * 2).bfloat16()
    choices = {GreedySelector().over(kind(logits), never)(1, [], {}) for kind in (lambda x: x, OnAnotherDevice)}
    assert choices == {1}


def test_greedy_refuses_nan_in_a_visited_row_only(placed):
    select = GreedySelector().over(placed(torch.tensor([[0.0, 1.0], [NAN, 1.0], [5.0, 1.0]])), never)
    assert select(0, [], {}) == 1
    assert select(2, [], {}) == 0
    with pytest.raises(CastError, match="NaN") as error:
        select(1, [], {})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("sampler", [SampledSelector, RecursiveSelector])
@pytest.mark.parametrize("row", [[0.0, NAN], [float("-inf")] * 2], ids=["nan", "all banned"])
@pytest.mark.parametrize("children", [(), (0,), (1, 0)])
def test_samplers_refuse_a_row_without_a_law(sampler, row, children, tree_of):
    tree = tree_of(*((token, -1) for token in children))
    with pytest.raises(CastError, match="NaN") as error:
        sampler(1.0, 0).walk(tree, torch.tensor([row] * 3), never)
    assert "\n" not in str(error.value)


def probability_of_acceptance(law_of_code, tree, p):
    """By the recursion's own code, for the root's children."""

    def accepted(chance):
        selector = RecursiveSelector(1.0, 0)
        selector.chance = chance
        return tuple(selector.walk(tree, p.log()[None].repeat(len(tree) + 1, 1), never).accepted)

    return law_of_code(accepted)


@pytest.mark.parametrize("log_probs", [None, torch.tensor([-0.1])])
def test_a_chain_is_accepted_as_by_the_direct_walk(law_of_code, log_probs):
    """Unscored or not: one sibling is proposed with certainty, whatever q says of it."""
    p = torch.tensor([0.5, 0.2, 0.3]).double()
    outcomes = probability_of_acceptance(law_of_code, chain_tree(torch.tensor([2]), log_probs), p)
    assert outcomes == pytest.approx({(2,): 0.3, (): 0.7})


def test_siblings_without_defined_scores_count_the_same(law_of_code):
    p = torch.tensor([0.5, 0.2, 0.3]).double()
    for mass in ([float("-inf")] * 2, [NAN, -1.0], [-1e4, -2e4]):
        tree = CandidateTree(*torch.tensor([[2, 0], [-1, -1], [1, 1]]), torch.tensor(mass))
        outcomes = probability_of_acceptance(law_of_code, tree, p)
        assert outcomes == pytest.approx({(2,): 0.3, (0,): 0.5, (): 0.2})


def test_greedy_with_a_processor_sees_history_and_path():
    seen = []

    def ban_best(input_ids, scores):
        assert input_ids.dtype == torch.int64
        seen.append((input_ids.tolist(), tuple(scores.shape)))
        return scores.scatter(1, scores.argmax(-1, keepdim=True), float("-inf"))

    logits = torch.tensor([[0.0, 3.0, 2.0], [1.0, 0.0, 2.0]])
    select = GreedySelector(ban_best).over(logits, lambda: [9, 8])
    assert select(0, [], {}) == 2
    assert select(1, [4, 5], {}) == 0
    assert seen == [([[9, 8]], (1, 3)), ([[9, 8, 4, 5]], (1, 3))]


def test_the_processor_comes_after_the_temperature():
    logits, seen = torch.tensor([[1.0, -2.0, 0.5]]), []

    def record(input_ids, scores):
        seen.append(scores.clone())
        return torch.where(torch.arange(3) == 1, 0.0, float("-inf"))[None]

    assert SampledSelector(0.25, 0, record).over(logits, lambda: [1])(0, [], {}) == 1
    torch.testing.assert_close(seen[0], logits / 0.25)


def test_a_seed_fixes_the_draws_and_another_changes_them():
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))

    def draws(seed):
        select = SampledSelector(1.0, seed).over(logits, never)
        return [select(0, [], {}) for _ in range(30)]

    assert draws(3) == draws(3) != draws(4)


# Over a vocabulary of five: children of the root are 0 and 3, below 3 there are 1 and 2.
NODES = (3, -1), (0, -1), (1, 0), (2, 0)
DRAWS, SIGNIFICANCE = 6000, 1e-3


def law(logits, temperature=0.7):
    return (logits.double() / temperature).softmax(-1)


@pytest.mark.parametrize("sampler", [SampledSelector, RecursiveSelector])
def test_the_committed_tokens_have_the_targets_law(tree_of, sampler):
    """First token, and second token given an accepted first one, by chi-square at T = 0.7."""
    logits = torch.randn(5, 5, generator=torch.Generator().manual_seed(2))
    selector, first, second = sampler(0.7, 1234), Counter(), Counter()
    tree = tree_of(*NODES)
    select = selector.over(logits, never, tree)
    for _ in range(DRAWS):
        result = walk(tree, select)
        committed = [*result.accepted, result.next_root]
        first[committed[0]] += 1
        if committed[0] == 3:
            second[committed[1]] += 1
        else:
            assert len(committed) == (2 if committed[0] == 0 else 1)
    for counts, row in ((first, 0), (second, 1)):
        observed = [counts[token] for token in range(5)]
        expected = (law(logits[row]) * sum(observed)).tolist()
        assert min(expected) > 5
        assert chisquare(observed, expected).pvalue > SIGNIFICANCE


def test_the_chi_square_has_power():
    """The same draws must not pass for a law at another temperature."""
    logits = torch.randn(5, 5, generator=torch.Generator().manual_seed(2))
    select = SampledSelector(0.7, 1234).over(logits, never)
    counts = Counter(select(0, [], {}) for _ in range(DRAWS))
    observed = [counts[token] for token in range(5)]
    assert chisquare(observed, (law(logits[0], 0.9) * DRAWS).tolist()).pvalue < 1e-6


def test_every_tree_consumes_the_draws_of_plain_sampling(tree_of):
    """One draw per committed token, in order: same seed, same tokens, whatever the tree."""
    table = torch.randn(5, 5, generator=torch.Generator().manual_seed(3))  # next-token logits after each token

    def sample(tree_after, seed, length):
        selector, tokens, token = SampledSelector(0.7, seed), [], 0
        while len(tokens) < length:
            tree = tree_after(token)
            packed = [token, *(tree.tokens.tolist() if tree else [])]
            result = walk(tree, selector.over(table[packed], never))
            tokens += [*result.accepted, result.next_root]
            token = result.next_root
        return tokens[:length]

    small = tree_of(*NODES)
    wide = tree_of(*((token, -1) for token in range(5)), *((token, 2) for token in range(5)))
    for seed in range(20):
        plain = sample(lambda token: None, seed, 40)
        assert sample(lambda token: small, seed, 40) == plain
        assert sample(lambda token: wide, seed, 40) == plain
        assert sample(lambda token: small if token % 2 else wide, seed, 40) == plain


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sampler", [SampledSelector, RecursiveSelector])
def test_a_seed_means_the_same_draws_on_a_gpu(tree_of, sampler):
    logits = torch.randn(5, 5, generator=torch.Generator().manual_seed(4)).double()
    here, there = sampler(0.7, 5), sampler(0.7, 5)
    for _ in range(300):
        assert here.walk(tree_of(*NODES), logits, never) == there.walk(tree_of(*NODES), logits.cuda(), never)

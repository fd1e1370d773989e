"""The training forward is the decoding forward, and the chunked loss is the plain one."""

import torch
import torch.nn.functional as F

from cast.models.layers import dense
from cast.training.batches import Batches, BatchSpec, MixedBatches
from cast.training.objective import block_hidden, block_loss


def test_training_forward_equals_drafting(target, drafter, sequences):
    sequence = sequences[1]
    tokens, anchors = sequence.tokens.long(), torch.tensor([9, 12, 20])
    with torch.no_grad():
        hidden = block_hidden(drafter, target.embedding, sequence.features[None], tokens[anchors][None], anchors[None])
        trained = target.logits(hidden[0, :, 1:])
    for anchor, logits in zip(anchors.tolist(), trained, strict=True):
        cache = drafter.new_cache(anchor + drafter.block_size)
        drafted = drafter.draft(target, sequence.features[:anchor], tokens[anchor : anchor + 1], cache)
        torch.testing.assert_close(logits, drafted, atol=1e-4, rtol=1e-4)


def test_loss_and_gradient_equal_plain_cross_entropy(target, drafter, sequences):
    spec = BatchSpec(sequences=3, anchors=4, block_size=6, loop_weight=0.5, sampled_tokens=None)
    batch = Batches(sequences, spec, target.vocab_size).at(2)
    assert batch.vocabulary.tolist() == list(range(target.vocab_size))
    loss, _ = block_loss(drafter, target.embedding, dense(target.lm_head), batch, soft_share=0.3, chunk=5)
    gradient = torch.autograd.grad(loss, drafter.fc.weight)[0]

    hidden = block_hidden(drafter, target.embedding, batch.features, batch.anchor_tokens, batch.anchors)
    hidden = hidden.flatten(0, 1)[batch.rows, batch.slots]
    logp = F.linear(hidden, dense(target.lm_head)).log_softmax(-1)
    hard = logp.gather(1, batch.labels[:, None])[:, 0]
    soft = (logp.gather(1, batch.soft_ids) * batch.soft_weights).sum(-1)
    expected = -((0.7 * hard + 0.3 * soft) * batch.weights).sum() / batch.weights.sum()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, drafter.fc.weight)[0], atol=1e-5, rtol=1e-4)


def test_sampled_tokens_stand_for_the_rest(target, drafter, sequences):
    """Averaged over samples, the estimated sum of exponentials is that of the whole vocabulary."""
    spec = BatchSpec(sequences=3, anchors=4, block_size=6, frequent_tokens=10, sampled_tokens=8)
    batches = Batches(sequences, spec, target.vocab_size)
    logits = torch.linspace(-1, 1, target.vocab_size)
    estimates = []
    for step in range(200):
        batch = batches.at(step)
        assert not batch.vocabulary_bias[batch.labels].any()  # labels are never among the sampled tokens
        estimates.append((logits[batch.vocabulary] + batch.vocabulary_bias).exp().sum())
    assert abs(torch.stack(estimates).mean() / logits.exp().sum() - 1) < 0.02


def test_short_and_whole_blocks_take_turns(target, sequences):
    short, whole = (
        Batches(sequences, BatchSpec(sequences=2, anchors=3, block_size=size, frequent_tokens=9), target.vocab_size)
        for size in (3, 6)
    )
    mixed = MixedBatches(short, whole, short_share=0.75, parts=2)
    sizes = [mixed.at(index).block_size for index in range(16)]
    assert sizes == [3, 3, 3, 3, 3, 3, 6, 6] * 2
    assert torch.equal(mixed.at(6).anchors, whole.at(6).anchors)

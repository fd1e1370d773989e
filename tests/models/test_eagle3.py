"""EAGLE-3 heads: features, drafted candidates and cache as the public code has them, and what is refused."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import cast
from cast import CastError
from cast.models import Eagle3Drafter
from cast.models.feature_head import FeatureHeadConfig, tapped_layers
from cast.models.loading import load_drafter

STEPS, TOP_K = 7, 10


@pytest.fixture(scope="module")
def random_head(golden):
    return load_drafter(golden / "eagle3_tiny" / "random_head", device="cpu")


@pytest.fixture(scope="module")
def recorded(golden):
    return load_file(golden / "eagle3_tiny" / "topk_genrate.safetensors")


@pytest.fixture
def head_folder(checkpoint):
    return checkpoint("eagle3_tiny", "drafter")


@pytest.fixture
def target(golden):
    return golden / "eagle3_tiny" / "target"


def draft_twice(head, recorded, steps=STEPS, top_k=TOP_K):
    """Both recorded calls, one after the other on one cache: (candidates, committed entries)."""
    cache = head.new_cache(32 + steps * top_k)
    for call in ("1", "2"):
        features = recorded["feat" + call][0]
        tokens = recorded["ids" + call][0, -len(features) :]
        yield head.draft(None, features, tokens, cache, draft_steps=steps, top_k=top_k), cache


def test_a_golden_target_gives_the_public_codes_features(golden, golden_pair):
    """The public code names a layer's input; we tap the output of the layer before it."""
    of = load_file(golden / "eagle3_tiny" / "aux_features.safetensors")
    pair, prompt = golden_pair("eagle3_tiny"), of["prompt_ids"][0]
    output = pair.target.forward(
        prompt,
        torch.arange(len(prompt)),
        pair.target.new_cache(len(prompt)),
        causal=True,
        taps=pair.drafter.tapped_layers(pair.target.layers),
    )
    torch.testing.assert_close(torch.cat(output.taps, dim=-1), of["aux_features"][0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("layers", "outputs"), [(7, (1, 2, 3)), (28, (1, 13, 24)), (36, (1, 17, 32))])
def test_tapped_layers(layers, outputs):
    assert tapped_layers(layers) == outputs


@pytest.mark.parametrize("layers", [1, 4, 6])
def test_a_shallow_target_is_refused(layers):
    with pytest.raises(CastError, match="at least 7"):
        tapped_layers(layers)


def test_every_steps_scores_are_the_public_codes(random_head, recorded):
    """Each level's recorded masses are its frontier's masses plus the best ten of the golden log-probabilities."""
    for number, (drafted, cache) in enumerate(draft_twice(random_head, recorded), start=1):
        level = slice(0, TOP_K)
        frontier_mass = torch.zeros(1)
        for step in range(STEPS + 1):
            best = recorded[f"t16_call{number}.step{step}.log_probs"].topk(TOP_K, dim=-1)
            mass = (best.values + frontier_mass[:, None]).flatten()
            torch.testing.assert_close(drafted.log_mass[level], mass, atol=1e-4, rtol=0)
            tokens = best.indices.flatten()
            assert drafted.tokens[level].tolist() == random_head.to_target(tokens).tolist()
            frontier_mass = mass.topk(TOP_K).values
            level = slice(level.stop, level.stop + TOP_K * TOP_K)
        assert len(drafted.tokens) == TOP_K + STEPS * TOP_K**2
        for name, held in (("keys", cache.keys), ("values", cache.values)):
            golden = recorded[f"t16_call{number}.stable_kv_{name}"][0]
            assert cache.length == golden.shape[1]
            torch.testing.assert_close(held[0, :, : cache.length], golden, atol=1e-5, rtol=1e-5)


def test_a_childs_mass_is_never_above_its_parents(random_head, recorded):
    for drafted, _ in draft_twice(random_head, recorded, steps=3):
        inner = drafted.parent >= 0
        assert (drafted.parent < torch.arange(len(drafted.parent))).all()
        assert (drafted.log_mass[inner] <= drafted.log_mass[drafted.parent[inner]]).all()


def test_candidates_are_scored_as_chains_alone(random_head, recorded):
    """A tree row sees its own ancestors only: each candidate's mass is that of its path drafted on its own."""
    (drafted, _), _ = draft_twice(random_head, recorded, steps=2, top_k=3)
    features, ids = recorded["feat1"][0], recorded["ids1"][0, 1:]
    head, layer = random_head, random_head.midlayer
    for node in range(len(drafted.tokens)):
        path = [node]
        while drafted.parent[path[0]] >= 0:
            path.insert(0, int(drafted.parent[path[0]]))
        hidden, tokens, mass, draft_ids = head.fc(features), ids, 0.0, drafted.tokens[path]
        cache = head.new_cache(32)
        for token in draft_ids:
            rows = layer.paired(head.embed_tokens(tokens), hidden)
            span = slice(cache.length, cache.length + len(rows))
            attended = layer.self_attn(rows, cache, span, queries=1)
            cache.commit(len(rows))
            hidden, tokens = layer.finish(hidden[-1:], attended), token[None]
            scores = head.lm_head(head.norm(hidden))[0].log_softmax(-1)
            mass += scores[(head.to_target(torch.arange(len(scores))) == token).nonzero()[0, 0]]
        torch.testing.assert_close(mass, drafted.log_mass[node], atol=1e-5, rtol=1e-5)


def test_a_width_beyond_the_draft_vocabulary_takes_all_of_it(random_head, recorded):
    (drafted, _), _ = draft_twice(random_head, recorded, steps=1, top_k=64)
    features, tokens = recorded["feat1"][0], recorded["ids1"][0, 1:]
    wide = random_head.draft(None, features, tokens, random_head.new_cache(200), draft_steps=1, top_k=1000)
    assert torch.equal(wide.tokens, drafted.tokens)


# --- checkpoints --------------------------------------------------------------------------------


def test_a_checkpoint_is_recognised(golden_pair):
    head = golden_pair("eagle3_tiny").drafter
    assert isinstance(head, Eagle3Drafter)
    assert head.embed_tokens is None
    assert head.d2t.dtype == torch.int64
    assert not any(parameter.requires_grad for parameter in head.parameters())


def test_two_heads_on_one_target(golden, golden_pair):
    pair = golden_pair("eagle3_tiny")
    prompt = torch.tensor([47, 75, 4, 44, 78, 18, 11, 48])
    other = pair.with_drafter(golden / "eagle3_tiny" / "random_head")
    assert other.target is pair.target
    first, second = (cast.generate(each, prompt, "eagle3", max_new_tokens=24) for each in (pair, other))
    assert first.tokens.tolist() == second.tokens.tolist()
    assert sum(first.committed) / len(first.committed) > sum(second.committed) / len(second.committed)


def test_a_head_of_the_full_vocabulary_needs_no_table(head_folder, target, golden_pair):
    """Ids stay as they are, as in the public code, whatever table the file holds."""
    head_folder.edit_config(draft_vocab_size=96)

    def widen(weights):
        narrow = weights["lm_head.weight"]
        ids = torch.arange(len(narrow)) + weights.pop("d2t")
        weights["lm_head.weight"] = torch.full((96, narrow.shape[1]), 0.0).index_copy(0, ids, narrow)
        del weights["t2d"]

    pair = cast.load_pair(target, head_folder.edit_weights(widen).folder, device="cpu")
    assert pair.drafter.to_target(torch.arange(96)).tolist() == list(range(96))
    prompt = torch.tensor([47, 75, 4, 44, 78, 18, 11, 48])
    out = cast.generate(pair, prompt, "eagle3", max_new_tokens=20)
    plain = cast.generate(pair, prompt, "autoregressive", max_new_tokens=20)
    assert out.tokens.tolist() == plain.tokens.tolist()


def test_a_head_of_another_width_brings_its_own_embedding(head_folder, target):
    hidden, generator = 32, torch.Generator().manual_seed(0)
    head_folder.edit_config(hidden_size=hidden, target_hidden_size=64, intermediate_size=48)

    def narrow(weights):
        shapes = {"fc.weight": (hidden, 192), "lm_head.weight": (64, hidden), "norm.weight": (hidden,)}
        shapes |= {f"midlayer.{n}.weight": (hidden,) for n in ("input_layernorm", "hidden_norm")}
        shapes |= {"midlayer.post_attention_layernorm.weight": (hidden,), "embed_tokens.weight": (96, hidden)}
        shapes |= {f"midlayer.self_attn.{n}_proj.weight": (w, 64) for n, w in (("q", 32), ("k", 16), ("v", 16))}
        shapes |= {"midlayer.self_attn.o_proj.weight": (32, 32), "midlayer.mlp.down_proj.weight": (32, 48)}
        shapes |= {f"midlayer.mlp.{n}_proj.weight": (48, 32) for n in ("gate", "up")}
        for name, shape in shapes.items():
            weights[name] = torch.randn(shape, generator=generator) / 5

    pair = cast.load_pair(target, head_folder.edit_weights(narrow).folder, device="cpu")
    prompt = torch.tensor([47, 75, 4, 44, 78, 18, 11, 48])
    out = cast.generate(pair, prompt, "eagle3", max_new_tokens=12)
    assert out.tokens.tolist() == cast.generate(pair, prompt, "autoregressive", max_new_tokens=12).tokens.tolist()
    without = head_folder.edit_weights(lambda weights: weights.pop("embed_tokens.weight"))
    with pytest.raises(CastError, match=r"lacks tensor 'embed_tokens.weight'"):
        cast.load_pair(target, without.folder, device="cpu")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": 96}, "hidden size 96 does not fit the target's 64"),
        ({"target_hidden_size": 128}, "hidden size 128 does not fit the target's 64"),
        ({"vocab_size": 97}, "vocabulary of 97 tokens is not the target's of 96"),
        ({"draft_vocab_size": 100}, "draft vocabulary of 100 tokens, more than the 96"),
        ({"draft_vocab_size": "many"}, "draft_vocab_size"),
        ({"num_hidden_layers": 2}, "one layer"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "scaled RoPE"),
        ({"draft_vocab_size": None}, "not a drafter of a known kind"),
    ],
)
def test_a_config_that_cannot_serve(head_folder, target, refusal, config, message):
    if "hidden size" in message:  # the tensors' shapes would give it away first
        head = Eagle3Drafter(FeatureHeadConfig.from_dict(head_folder.config | config))
        weights = head.state_dict() | {"embed_tokens.weight": torch.zeros(96, head.config.hidden_size)}
        save_file(weights, head_folder / "model.safetensors")
    assert message in refusal(target, head_folder.edit_config(**config))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("d2t"), "lacks d2t"),
        (lambda weights: weights["d2t"].add_(96), "d2t leaves the target's vocabulary of 96"),
        (lambda weights: weights["d2t"].sub_(96), "d2t leaves the target's vocabulary of 96"),
        (lambda weights: weights.update(d2t=weights["d2t"][:-1].clone()), "tensor 'd2t' of shape"),
        (lambda weights: weights.pop("lm_head.weight"), "lacks tensor 'lm_head.weight'"),
        (lambda weights: weights.update(extra=torch.zeros(1)), "unexpected tensor 'extra'"),
    ],
)
def test_weights_that_cannot_serve(head_folder, target, refusal, change, message):
    assert message in refusal(target, head_folder.edit_weights(change))


def test_a_head_on_a_shallow_target(head_folder, golden, refusal):
    """Five layers, all other sizes fitting."""
    assert "at least 7; this one has 5" in refusal(golden / "dflash_tiny_qwen3" / "target", head_folder)


def test_a_pickled_head_is_refused_with_the_way_to_convert_it(head_folder, target, refusal):
    torch.save(head_folder.weights, head_folder / "pytorch_model.bin")
    (head_folder / "model.safetensors").unlink()
    message = refusal(target, head_folder)
    assert "pickled weights are not read" in message
    command = message[message.index("import torch") : message.rindex("'")]
    here = head_folder.folder
    exec(
        command.replace('"pytorch_model.bin"', repr(str(here / "pytorch_model.bin"))).replace(
            '"model.safetensors"', repr(str(here / "model.safetensors"))
        )
    )
    assert isinstance(cast.load_pair(target, here, device="cpu").drafter, Eagle3Drafter)


def test_a_method_refuses_a_head_of_another_kind(golden_pair):
    pair, prompt = golden_pair("eagle3_tiny"), torch.tensor([1, 2, 3])
    for method, kind in (("cast", "DFlash"), ("dflash", "DFlash"), ("dart", "DART")):
        with pytest.raises(CastError, match=f"needs a drafter of kind {kind} and the pair holds one of kind EAGLE-3"):
            cast.generate(pair, prompt, method)
    with pytest.raises(CastError, match="the pair has none"):
        cast.generate(pair.with_drafter(None), prompt, "eagle3")

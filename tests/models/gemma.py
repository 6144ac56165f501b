"""A Gemma 3 decoder in numpy over a GGUF file: the reference of the example and its tests.

It follows the published description of the architecture and shares nothing with the
runtime: the file is read and its blocks are decoded by the package `gguf`, and the
tokens of the texts come from the package `sentencepiece`.

    REFERENCE/gemma.json          the texts with their tokens; per prompt the tokens that
                                  follow greedily and how far each was ahead of the next best
    REFERENCE/<prompt>.npy        logits at the positions of those tokens, [16, vocabulary]

What the file's metadata do not say is what the architecture fixes: of six layers one sees
everything, the others a sliding window with the rotary base 10,000.
"""
import json
import time

import numpy as np

STEPS = 16
FULL_EVERY = 6
LOCAL_BASE = 10_000.0

# Longer than the sliding window of 512, and it asks for what only the layers that see everything
# still see.
STORY = """The old lighthouse at the end of the pier had not been lit for thirty years. Every morning the keeper's \
daughter, whose name was Maria, walked out along the stones with a basket of bread and a bottle of milk, and every \
evening she walked back again with the basket empty. Nobody in the village asked her whom she fed. The fishermen \
thought that she gave the bread to the gulls; the baker thought that she ate it herself; and the priest, who was a \
careful man, thought nothing at all, because nobody had told him anything.
In the spring of that year a ship came into the harbour with a broken mast. Its captain was a tall woman from the \
north, and her crew were nine sailors who spoke three languages between them. They needed timber, rope and nails, and \
they had only salt to pay with. The carpenter, Tomas, said that salt was as good as silver to a village that lived on \
fish, and so the work began. For two weeks the sound of hammers went over the water from dawn until dusk. Children sat \
on the harbour wall and counted the planks. The captain drew a map of her journey in the sand for them, and each day \
the tide washed it away, and each day she drew it anew with one more island than before.
On the last evening, when the new mast stood straight and the sails were mended, the captain asked who kept the light. \
The fishermen looked at each other. There was no light, they said, there had been none for thirty years, not since the \
keeper was lost in the great storm. The captain shook her head. She had come in on a night without a moon, she said, \
through rocks that she had never seen, and she had steered by a lamp at the end of the pier that burned as clear as a \
star. Without it the ship and all her people would lie at the bottom of the sea.
Then they all turned and looked at Maria, who stood at the edge of the crowd with her empty basket. She did not say \
anything for a long time. The wind moved her hair, and behind her the first stars came out above the water. At last she \
put the basket down and told them what was in the tower. Her father had not been lost in the storm, she said. He had \
come back with his eyes burned blind by the salt, and he had been ashamed, because a keeper who cannot see his own \
light is no keeper. So he had hidden in the tower, and every night he climbed the stairs that he knew by heart and lit \
a small lamp behind the broken glass, for the ships that nobody else was waiting for.
Once more, from the start.
The old lighthouse at the end of the pier"""

# Chosen so that no greedy token is nearly a tie, which rounding would decide ("ahead").
PROMPTS = {"numbers": "1, 2, 3, 4, 5, 6,", "letters": "a b c d e f g", "window": STORY}

# What a tokenizer gets wrong: runs of spaces, line ends, other scripts, bytes without a piece, markup.
TEXTS = [
    "", " ", "Hello, world!", "  two  spaces   three    four", "tabs\tand\nlines\n\n\nof them \n ",
    "naïve café – “quotes” … €5", "Привет, мир", "日本語のテキスト", "مرحبا بالعالم", "👩‍🚀🚀 emoji", "\u0301\u0302",
    "\U00012000\U0001F9FF\uE000", "<h1>Title</h1><table><br>", "x = [i**2 for i in range(10)]  # squares",
    "1234567890 3.14159 1e-5", "▁ a real ▁", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\r\nCRLF\r\n", "\u00a0\u2003wide\u200b",
]


def tokenizer(field):
    """The file's vocabulary in the package `sentencepiece`."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb
    model = pb.ModelProto()
    for piece, score, kind in zip(field("tokenizer.ggml.tokens"), field("tokenizer.ggml.scores"),
                                  field("tokenizer.ggml.token_type")):
        # Pieces that users defined stand there as the text that they match.
        piece = piece.replace(" ", "▁") if kind == pb.ModelProto.SentencePiece.USER_DEFINED else piece
        model.pieces.add(piece=piece, score=score, type=kind)
    spec = model.trainer_spec
    spec.model_type = pb.TrainerSpec.BPE
    spec.byte_fallback = True
    spec.vocab_size = len(model.pieces)
    for name in ("unk", "bos", "eos", "pad"):
        key = {"unk": "unknown", "pad": "padding"}.get(name, name)
        at = int(field(f"tokenizer.ggml.{key}_token_id"))
        setattr(spec, f"{name}_id", at)
        setattr(spec, f"{name}_piece", model.pieces[at].piece)
    model.pieces[spec.unk_id].type = pb.ModelProto.SentencePiece.UNKNOWN
    norm = model.normalizer_spec
    norm.name = "identity"
    norm.add_dummy_prefix = bool(field("tokenizer.ggml.add_space_prefix"))
    norm.remove_extra_whitespaces = False
    norm.escape_whitespaces = True
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


class Decoder:
    """The decoder, with what it keeps of the tokens that it saw."""

    def __init__(self, reader):
        import gguf

        def field(key, default=None):
            f = reader.fields.get(key)
            if f is None and default is None:
                raise SystemExit(f"the file says nothing of {key}")
            return default if f is None else f.contents()

        self.field = field
        self.t = {}
        for t in reader.tensors:
            raw = np.asarray(t.data)
            self.t[t.name] = (raw if t.tensor_type.name == "F32"
                              else gguf.quants.dequantize(raw, t.tensor_type)).astype(np.float32, copy=False)
        a = "gemma3."
        self.layers = int(field(a + "block_count"))
        self.width = int(field(a + "embedding_length"))
        self.heads = int(field(a + "attention.head_count"))
        self.groups = int(field(a + "attention.head_count_kv"))
        self.depth = int(field(a + "attention.key_length"))
        self.window = int(field(a + "attention.sliding_window"))
        self.epsilon = float(field(a + "attention.layer_norm_rms_epsilon"))
        self.base = float(field(a + "rope.freq_base"))
        self.stretch = float(field(a + "rope.scaling.factor", 1.0))
        self.forget()

    def forget(self):
        self.kept = [(np.zeros((self.groups, 0, self.depth), np.float32),) * 2 for _ in range(self.layers)]

    def norm(self, x, name):
        scale = 1.0 / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + np.float32(self.epsilon))
        return x * scale * self.t[name + ".weight"]

    def turn(self, x, first, full):
        """Rotary positions: element k with element k + depth / 2."""
        half = self.depth // 2
        base, stretch = (self.base, self.stretch) if full else (LOCAL_BASE, 1.0)
        frequency = base ** (-np.arange(half) / half)
        angle = np.arange(first, first + x.shape[1])[:, None] / stretch * frequency
        c, s = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    def attention(self, i, x):
        p, n = f"blk.{i}.", len(x)
        full = (i + 1) % FULL_EVERY == 0

        def heads(name, count):
            return (x @ self.t[p + name + ".weight"].T).reshape(n, count, self.depth).transpose(1, 0, 2)

        past_k, past_v = self.kept[i]
        first = past_k.shape[1]
        q = self.turn(self.norm(heads("attn_q", self.heads), p + "attn_q_norm"), first, full)
        k = self.turn(self.norm(heads("attn_k", self.groups), p + "attn_k_norm"), first, full)
        k = np.concatenate([past_k, k], 1)
        v = np.concatenate([past_v, heads("attn_v", self.groups)], 1)
        self.kept[i] = (k, v)
        at, key = np.arange(first, first + n)[:, None], np.arange(first + n)[None]
        seen = key <= at if full else (key <= at) & (key > at - self.window)
        share = self.heads // self.groups
        k, v = np.repeat(k, share, 0), np.repeat(v, share, 0)
        score = np.where(seen, q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(self.depth)), -np.inf)
        score = np.exp(score - score.max(-1, keepdims=True))
        y = (score / score.sum(-1, keepdims=True)) @ v
        return y.transpose(1, 0, 2).reshape(n, -1) @ self.t[p + "attn_output.weight"].T

    def feed_forward(self, i, x):
        p = f"blk.{i}.ffn_"
        gate, up = x @ self.t[p + "gate.weight"].T, x @ self.t[p + "up.weight"].T
        gate = 0.5 * gate * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (gate + 0.044715 * gate ** 3)))
        return (gate * up) @ self.t[p + "down.weight"].T

    def step(self, tokens):
        """Logits behind the last of these tokens, which follow those that it saw before."""
        x = self.t["token_embd.weight"][tokens] * np.float32(np.sqrt(self.width))
        for i in range(self.layers):
            p = f"blk.{i}."
            y = self.attention(i, self.norm(x, p + "attn_norm"))
            x = x + self.norm(y, p + "post_attention_norm")
            y = self.feed_forward(i, self.norm(x, p + "ffn_norm"))
            x = x + self.norm(y, p + "post_ffw_norm")
        head = self.t.get("output.weight", self.t["token_embd.weight"])
        return head @ self.norm(x[-1], "output_norm")


def write_reference(folder, reader):
    """Writes the reference into a folder that is there; gives sums of all tensors by name."""
    begun = time.monotonic()
    decoder = Decoder(reader)
    sums = {name: {"sum": float(values.sum(dtype=np.float64)),
                   "sum_of_squares": float(np.square(values, dtype=np.float64).sum())}
            for name, values in decoder.t.items()}
    pieces = tokenizer(decoder.field)
    first = [int(decoder.field("tokenizer.ggml.bos_token_id"))]
    prompts = []
    for name, text in PROMPTS.items():
        decoder.forget()
        tokens = first + pieces.encode(text)
        greedy, ahead, rows, feed = [], [], [], tokens
        for _ in range(STEPS):
            logits = decoder.step(feed)
            second, best = np.argpartition(logits, -2)[-2:]
            greedy.append(int(best))
            ahead.append(float(logits[best] - logits[second]))
            rows.append(logits)
            feed = [int(best)]
        np.save(folder / f"{name}.npy", np.stack(rows))
        prompts.append({"name": name, "text": text, "tokens": tokens, "greedy": greedy, "ahead": ahead,
                        "continuation": pieces.decode(greedy), "logits": f"{name}.npy"})
    texts = [{"text": t, "tokens": pieces.encode(t)} for t in TEXTS]
    (folder / "gemma.json").write_text(json.dumps({"prompts": prompts, "texts": texts}, indent=1) + "\n")
    print(f"a numpy pass over {len(prompts)} prompts took {time.monotonic() - begun:.1f} s", flush=True)
    return sums

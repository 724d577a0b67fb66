"""Words that published pre-tokenizers cut texts into, by the library that they were published for.

    pip install tokenizers==0.23.3
    python tools/goldens/pre_tokenizers.py crates/tokenizer/tests/golden/pre_tokenizers.json

The wheel runs patterns on Oniguruma. The tests hold the splits that GGUF names stand for to these words: `tokenizer.ggml.pre`
names the definition, and each entry below is what the model's own tokenizer.json says. Words are written as their numbers of
bytes. Gemma's and Sarvam's have no words, since merges run over all of a text: of a small vocabulary of that kind, ids are.
"""

import json
import sys

import tokenizers
from tokenizers import Regex, Tokenizer, models, normalizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3_WORDS = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+")
POWERS = "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def bytes_after(*patterns):
    splits = [Split(Regex(pattern), "isolated") for pattern in patterns]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


DEFINITIONS = {
    "jais-2": bytes_after(LLAMA3_WORDS + POWERS + r"|\s{1,2}(?!\S)|\s{1}"),
    "tiny_aya": bytes_after(r"\d{1,3}(?=(?:\d{3})*\b)", CASED_WORDS),
    "superbpe": bytes_after(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "roberta-bpe": ByteLevel(add_prefix_space=False, use_regex=True),
    # Trinity's: digits in threes from the end of a number, in chunks that the pattern keeps short; then scripts that
    # write no spaces.
    "afmoe": bytes_after(
        r"\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510}",
        r"\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)",
        r"\A\p{Nd}{3}|\G\p{Nd}{3}",
        r"(?:[\u4E00-\u9FFF\u3040-\u309F\u30A0-\u30FF\u3400-\u4DBF\uf900-\uFAFF\uFF65-\uFF9F\u2F00-\u2FDF]+|[\u0E00-\u0E7F]+"
        r"|[\u0E80-\u0EFF]+|[\u1780-\u17FF]+|[\u1000-\u109F\uAA60-\uAA7F\uA9E0-\uA9FF]+|[\uAC00-\uD7AF\u1100-\u11FF]+)",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}

RUNS = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 65, 600]
TEXTS = [
    "",
    "It's THEY'LL we'Ve o'clock don't'd 'S x'ſ",
    "1 12 123 1234 12345 123456 1234567 1234567890123 v12345x 1234_ 1,234.5678",
    "1234½ 1234² ½1234 12345\u200d6 1234Ⅷ 1234ⓐ 1234\u0301 1234中 a1234 1234。",
    "٠١٢٣٤٥٦٧ १२३४५६७ 1٢3٤5 １２３４５ 𝟏𝟐𝟑𝟒",
    "你好，世界！今日は良い天気ですね 안녕하세요 세계 中文12345字",
    "مرحبا بالعالم، كَيْفَ حَالُكَ؟ שָׁלוֹם עוֹלָם",
    "नमस्ते दुनिया हिन्दी में क्षत्रिय বাংলা ভাষা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ස්‍රී ไทยแลนด์ ភាសាខ្មែរ မြန်မာ",
    "😀 👩‍💻👨‍👩‍👧 🇩🇪🦀🚀 ❤️ ✨!?",
    "Ünïcödé e\u0301 ÀÉÎ ǅ ʰ ª ß Ωμέγα Привет, МИР",
    "fn main() { x += 0x1F; }\r\n\r\n\tif (a /* b */ != c) // d\n",
    "#tag @user a_b-c/d\\e <|x|> [1,2,3] ~/` $100.00 50%",
    "\n\n\n a\n \n\tb \r\n  \r\nc  \n",
    "\u00a0\u3000 \u2003x\u0085y \u200b z\t\t\tw",
    *[f"a{' ' * count}b" for count in RUNS],
    *[f"a{' ' * count}" for count in RUNS],
    *[f"{' ' * count}!\n" for count in RUNS],
    *["\t \u3000" * count + "1" for count in (1, 2, 5, 43)],
    *["9" * count for count in (1, 2, 3, 4, 599, 600, 601)],
    *[f"x\n{chr(10) * count}y" for count in (0, 1, 2, 9)],
]

# For words alone: merges are those of the texts above.
MORE_TEXTS = [
    *["9" * count for count in (5, 6, 7, 509, 510, 511, 1020, 1021, 1022)],
    "ไทย๑๒๓๔ลาวພາສາລາວ၁၂၃၄ဗမာ 한국中文カナｶﾅ㐀豈⼀កខ 1234한5678",
    " 1234567 ٠١٢٣٤ (1234567) -12345.678\n1234\n",
]


def merged_text():
    """A tokenizer as Gemma's: `▁` for spaces, then merges over all of the text; its tokens hold newlines alone or none."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = Split(Regex(r"[^\n]+|\n+"), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=500, limit_alphabet=120, show_progress=False)
    tokenizer.train_from_iterator([text for text in TEXTS for _ in range(3)], trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(trained["vocab"], key=trained["vocab"].get)]
    merges = [tuple(merge) for merge in trained["merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer.model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer.pre_tokenizer = Split(" ", "merged_with_previous")
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    return {"tokens": tokens, "merges": [" ".join(merge) for merge in merges], "ids": ids}


def main(path):
    def sizes(definition, text):
        return [len(word) for word, _ in definition.pre_tokenize_str(text)]

    words = {name: [sizes(definition, text) for text in TEXTS + MORE_TEXTS] for name, definition in DEFINITIONS.items()}
    golden = {"tokenizers": tokenizers.__version__, "texts": TEXTS + MORE_TEXTS, "words": words, "merged": merged_text()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(golden, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")


main(sys.argv[1])

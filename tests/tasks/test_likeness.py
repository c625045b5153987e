"""The search for near-duplicates finds the same as comparing every pair."""

import random
import re
import subprocess
import sys

import pytest
from tests.checkout import environment

import gdpo
from gdpo.lab.tasks.likeness import _Index, find_alike, words


def jaccard(a, b):
    def grams(text):
        w = words(text)
        return {tuple(w[i : i + 5]) for i in range(len(w) - 4)} or {tuple(w)}

    return len(grams(a) & grams(b)) / len(grams(a) | grams(b))


def by_comparing_each_pair(texts, kinds):
    kept, found = [], []
    for i, text in enumerate(texts):
        same = (j for j in kept if kinds[j] == kinds[i] and jaccard(text, texts[j]) >= 0.8)
        found.append(next(same, None))
        if found[-1] is None:
            kept.append(i)
    return found


def changed(rng, text):
    new = text.split()
    for _ in range(rng.randint(0, 3)):
        place = rng.randint(0, len(new))
        new[place : place + rng.randint(0, 1)] = ["new"] * rng.randint(0, 1)
    return " ".join(new or ["gone"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_every_pair_is_found_that_comparing_all_finds(seed):
    rng = random.Random(seed)
    texts = [" ".join(rng.choices("abcdefgh", k=rng.randint(1, 60))) for _ in range(60)]
    texts += [changed(rng, rng.choice(texts)) for _ in range(240)]
    kinds = rng.choices("xy", weights=(9, 1), k=300)
    found = find_alike(texts, kinds)
    assert found == by_comparing_each_pair(texts, kinds)
    assert 20 < sum(like is not None for like in found) < 240


def test_case_punctuation_whitespace_and_compatible_characters_do_not_matter():
    same = ["Wie groß ist  A, B\nund C?", "wie GROSS ist a b und c", "Wie groß ist Ａ, B und C…"]
    assert find_alike(same) == [None, 0, 0]


def test_signs_of_arithmetic_are_words():
    assert find_alike(["Solve x+1=0!", "Solve x-1=0!", "solve x + 1 = 0"]) == [None, None, 0]


def test_short_texts_are_alike_only_where_their_words_are_the_same():
    assert find_alike(["a b c d", "a b c", "a, b, c d.", "", "?"]) == [None, None, 0, None, 3]


def test_the_index_at_the_bound_counts():
    text = [f"w{i}" for i in range(13)]  # nine 5-grams
    assert find_alike([" ".join(text), " ".join([*text, "x"])]) == [None, 0]  # 9 of 10
    assert find_alike([" ".join(text), " ".join([*text, "x", "y"])]) == [None, 0]  # 9 of 11
    assert find_alike([" ".join(text), " ".join([*text, "x", "y", "z"])]) == [None, None]  # 9 of 12
    four = text[:8]  # 4 of 5
    assert find_alike([" ".join(four), " ".join([*four, "x"])]) == [None, 0]


def test_what_is_left_out_is_compared_with_nothing():
    text = [f"w{i}" for i in range(30)]
    chain = [" ".join(text[i : i + 20]) for i in range(0, 6, 2)]  # neighbours are 14 of 18
    assert find_alike(chain) == [None, None, None]
    chain = [" ".join(text[i : i + 25]) for i in range(3)]  # 20 of 22; the ends 19 of 23
    assert find_alike(chain) == [None, 0, 0]
    chain = [" ".join(text[i : i + 23]) for i in range(0, 6, 2)]  # 17 of 21; the ends 15 of 23
    assert find_alike(chain) == [None, 0, None]


def test_known_texts_are_compared_with_nothing_and_the_others_only_with_them():
    texts = ["a b c d e f", "a b c d e f", "a b c d e f", "g h i j k", "g h i j k"]
    assert find_alike(texts, known=2) == [None, None, 0, None, None]
    assert find_alike(texts, known=0) == [None] * 5
    assert find_alike([]) == []


def test_equal_texts_are_found_among_any_number_of_one_template():
    rng = random.Random(0)
    numbers = [[str(rng.randrange(10**6)) for _ in range(4)] for _ in range(300)]
    texts = [
        "What is {} plus {} minus {} times {} in the end of it all?".format(*n) for n in numbers
    ]
    assert find_alike(texts + texts) == [None] * 300 + list(range(300))


def test_the_same_is_found_in_every_process(capsys):
    code = (
        "import random; from gdpo.lab.tasks.likeness import find_alike; r = random.Random(1);"
        "t = [' '.join(r.choices('abc', k=9)) for _ in range(2000)]; print(find_alike(t));"
        "import gdpo; print(gdpo.__file__)"
    )
    command, other = [sys.executable, "-c", code], environment(PYTHONHASHSEED="1")
    done = subprocess.run(command, env=other, capture_output=True, text=True, check=True)
    exec(code, {})  # with the random seed of this process
    printed = capsys.readouterr().out
    assert done.stdout == printed
    found, file = printed.splitlines()
    assert re.search(r"[0-9]", found)
    assert file == gdpo.__file__


def of_one_template(count):
    rng = random.Random(0)
    template = [f"w{i}" for i in range(60)]
    for _ in range(count):
        text = list(template)
        for place in rng.sample(range(60), 3):
            text[place] = str(rng.randrange(10**6))
        yield " ".join(text)


def test_twice_as_many_texts_of_one_template_take_no_more_comparisons_each(monkeypatch):
    compared = []
    alike = _Index._alike
    monkeypatch.setattr(_Index, "_alike", lambda *pair: compared.append(pair) or alike(*pair))
    find_alike(list(of_one_template(2_000)))
    each = len(compared) / 2_000
    compared.clear()
    find_alike(list(of_one_template(4_000)))
    assert each > 10
    assert len(compared) / 4_000 < 1.1 * each

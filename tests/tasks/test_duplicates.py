"""Near-duplicate rows, and rows that leak a test."""

from gdpo.lab.tasks import Problem, near_duplicates
from gdpo.lab.tasks.likeness import overlaps

QUESTION = "How many eggs do the ducks of Janet lay in a week of seven days?"


def sample(*turns, answer=None):
    return Problem([{"role": "user", "content": turn} for turn in turns], {}, answer=answer)


def test_the_first_of_several_alike_is_kept():
    rows = [sample(QUESTION), sample("Another?"), sample(QUESTION.upper()), sample(QUESTION)]
    assert near_duplicates(rows) == [None, None, 0, 0]


def test_rows_that_want_something_else_are_no_duplicates():
    rows = [sample(QUESTION, answer=answer) for answer in ("7", "8", " 7.", None)]
    assert near_duplicates(rows) == [None, None, 0, None]


def test_what_the_user_said_before_counts():
    rows = [sample(QUESTION), sample("Hello there, my good old friend.", QUESTION)]
    assert near_duplicates(rows) == [None, None]


def test_what_the_task_says_was_asked_counts_instead_of_its_prompt():
    prompt = [{"role": "user", "content": f"Think hard, and write nothing else. {QUESTION}"}]
    rows = [sample(QUESTION), Problem(prompt, {}), Problem(prompt, {}, asked=(QUESTION,))]
    assert near_duplicates(rows) == [None, None, 0]


def test_any_turn_gives_a_test_away_and_so_do_all_together():
    tests = [sample("Unrelated?"), sample(QUESTION, answer="7")]
    rows = [
        sample("Hello there, my good old friend.", QUESTION, "Thank you."),
        sample("How many eggs do the ducks", "of Janet lay in a week of seven days?"),
        sample("How many eggs?", answer="7"),
    ]
    assert overlaps(rows, tests) == [1, 1, None]
    assert overlaps(rows, []) == [None] * 3
    assert overlaps([], tests) == []


def test_signs_in_an_answer_count_and_signs_alone_are_like_nothing():
    answers = ["50%", "50", "3!", "3", "(1,2]", "[1,2)", "1.5", "1,5"]
    assert near_duplicates([sample(QUESTION, answer=a) for a in answers]) == [None] * len(answers)
    assert near_duplicates([sample("∞?"), sample("😀")]) == [None, None]

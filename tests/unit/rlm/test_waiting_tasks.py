"""Compare the next due task with a sorted list."""

from random import Random

from services.rlm.scheduler import WaitingTasks


def taken(waiting: WaitingTasks, now_s: float) -> list[object]:
    found = []
    while (key := waiting.take_due(now_s)) is not None:
        found.append(key)
    return found


def test_the_longest_due_task_comes_first_and_equals_in_order() -> None:
    waiting = WaitingTasks()
    for key, due_s in (("c", 3.0), ("b", 2.0), ("a", 2.0), ("d", 9.0)):
        waiting.put(key, due_s)
    assert waiting.next_due_s() == 2.0
    assert taken(waiting, 1.9) == []
    assert taken(waiting, 3.0) == ["b", "a", "c"]
    assert waiting.next_due_s() == 9.0


def test_a_key_has_one_turn_the_latest() -> None:
    waiting = WaitingTasks()
    waiting.put("a", 1.0)
    waiting.put("a", 5.0)
    waiting.put("b", 3.0)
    assert waiting.next_due_s() == 3.0
    waiting.put("a", 2.0)
    assert taken(waiting, 10.0) == ["a", "b"]
    assert waiting.next_due_s() is None


def test_a_discarded_task_does_not_wait() -> None:
    waiting = WaitingTasks()
    waiting.put("a", 1.0)
    waiting.put("b", 2.0)
    waiting.discard("a")
    waiting.discard("never came")
    assert waiting.next_due_s() == 2.0
    assert taken(waiting, 10.0) == ["b"]


def test_turns_that_are_moved_again_and_again_take_no_memory() -> None:
    waiting = WaitingTasks()
    for number in range(10_000):
        waiting.put("a", float(number))
    assert len(waiting._heap) < 100
    assert taken(waiting, 10_000.0) == ["a"]


def test_it_does_as_a_sorted_list() -> None:
    random, waiting = Random(20), WaitingTasks()
    expected: dict[int, tuple[float, int]] = {}
    for number in range(5_000):
        key, due_s = random.randrange(50), float(random.randrange(20))
        if random.random() < 0.6:
            waiting.put(key, due_s)
            expected[key] = (due_s, number)
        elif random.random() < 0.5:
            waiting.discard(key)
            expected.pop(key, None)
        else:
            due = [one for one in expected if expected[one][0] <= due_s]
            first = min(due, key=expected.__getitem__, default=None)
            assert waiting.take_due(due_s) == first
            if first is not None:
                del expected[first]
    assert len(expected) > 10

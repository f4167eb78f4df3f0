"""The last row is left to other keys by one that holds many; a key that is alone takes it."""

from tests.proxy.admission.small_core import Desk, lane

HIGH, LOW = lane("high"), lane("low", parkable=True)


def desk_of(slots=8):
    desk = Desk(HIGH, LOW)
    desk.worker(slots=slots)
    return desk


def heavy(desk, count=10, **where):
    names = [f"a{number}" for number in range(count)]
    desk.arrive(*names, key="a", **where)
    return names


def test_a_key_that_is_alone_takes_every_row():
    desk = desk_of()
    assert heavy(desk)[:8] == desk.starts()


def test_where_rows_are_few_the_last_is_taken_all_the_same():
    desk = desk_of(slots=7)
    desk.arrive("b0", key="b")
    desk.end("b0", completed=False)
    assert heavy(desk)[:7] == desk.starts()


def test_a_key_leaves_the_last_row_where_others_have_asked_and_they_need_not_wait():
    desk = desk_of()
    desk.arrive("b0", key="b")
    desk.end("b0", completed=False)
    names = heavy(desk)
    assert desk.starts() == names[:7]
    desk.arrive("b1", key="b")
    assert desk.starts() == ["b1"]
    desk.end("b1")
    assert desk.starts() == []
    desk.end("a0")
    assert desk.starts() == ["a7"]


def test_who_asked_long_ago_is_waited_for_no_more():
    desk = desk_of()
    desk.arrive("b0", key="b")
    desk.end("b0", completed=False)
    desk.now = 599.0
    names = heavy(desk)
    assert desk.starts() == names[:7]
    assert desk.starts(at=601.0) == names[7:8]


def test_a_key_of_few_rows_takes_the_last():
    desk = desk_of()
    desk.arrive(*(f"b{number}" for number in range(4)), key="b")
    desk.arrive(*(f"c{number}" for number in range(4)), key="c")
    heavy(desk, 3)
    assert len(desk.starts()) == 8


def test_rows_that_may_be_parked_for_the_lane_count_as_free():
    desk = desk_of()
    desk.arrive("b0", "b1", key="b", lane="low")
    names = heavy(desk, 6)
    assert desk.starts() == [*names, "b0", "b1"]


def test_no_row_is_parked_for_a_key_that_must_leave_the_last():
    desk = desk_of()
    desk.arrive("b0", key="b", lane="low")
    assert desk.starts() == ["b0"]
    names = heavy(desk, 9)
    assert desk.starts() == names[:7]
    assert desk.decide(at=9.0) == []
    desk.arrive("c0", key="c")
    assert desk.decide() == ["park b0", "start c0"]

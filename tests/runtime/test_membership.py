"""Who is there, and which of several starts of a device counts."""

from __future__ import annotations

from efhc.runtime.lockstep_neighbours import LockstepMembership
from efhc.runtime.node_messages import Presence


def members() -> LockstepMembership:
    return LockstepMembership(Presence(0, 10, (0, 50)), {0, 1, 2})


def test_all_go_on_from_the_latest_checkpoint_that_everybody_has() -> None:
    call = members()
    assert call.missing == [1, 2]
    assert call.update(Presence(1, 11, (0, 50, 100)))
    assert not call.update(Presence(1, 11, (0, 50, 100)))
    assert call.update(Presence(2, 12, (0,)))
    assert call.missing == []
    assert call.common == 0
    assert call.update(Presence(2, 12, (0, 50)))
    assert call.common == 50


def test_what_a_connected_device_says_is_not_replaced_by_what_comes_late_of_an_earlier_session() -> None:
    call = members()
    call.connect(1, 21)
    assert call.update(Presence(1, 21, (0,)))
    assert not call.update(Presence(1, 11, (0, 50, 100)))
    assert call.session_of(1) == 21
    assert not call.has_made(1, 50)


def test_what_comes_early_of_an_earlier_session_gives_way_and_does_not_count_meanwhile() -> None:
    call = members()
    call.update(Presence(2, 12, (0, 50)))
    call.update(Presence(1, 11, (0, 50)))
    call.connect(1, 21)
    assert call.missing == [1]
    assert call.update(Presence(1, 21, (0,)))
    assert call.missing == []
    assert call.common == 0


def test_a_session_that_another_has_followed_does_not_come_back() -> None:
    call = members()
    call.update(Presence(2, 12, (0, 50)))
    call.update(Presence(2, 22, (0,)))
    assert not call.update(Presence(2, 12, (0, 50, 100)))
    assert call.session_of(2) == 22


def test_a_device_that_was_restarted_behind_a_cut_link_is_heard_of_through_others() -> None:
    call = members()
    call.connect(1, 11)
    call.update(Presence(1, 11, (0, 50)))
    call.disconnect(1)
    assert call.update(Presence(1, 21, (0,)))
    call.connect(1, 11)  # it was the other way round: this is the session that lives
    assert call.update(Presence(1, 11, (0, 50)))
    assert call.session_of(1) == 11
